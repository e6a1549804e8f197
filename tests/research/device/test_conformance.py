"""The judge of the virtual device: what it calls wrong, what it survives, and a few entries from end to end."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any, Dict, List

import pytest
import torch

from edge_offload import records
from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload.execute import heap
from edge_offload.native import libraries
from edge_offload_research.device.conformance import report
from edge_offload_research.device.conformance import run as running
from edge_offload_research.device.conformance.exclusions import EXCLUSIONS
from edge_offload_research.device.conformance.judge import compare_results, laid_out, layout_difference
from edge_offload_research.device.conformance.reference import as_it_lies

pytestmark = pytest.mark.process

FACTS = {"torch": "2", "modes": ["lazy"], "dtypes": ["float32"], "limit": 0}
INEXACT = pathlib.Path(__file__).parent / "inexact_reference.py"
#: Stands for the judging process: dies on "deadly", and on "unlucky" unless it is asked first.
STUB = """
import json, os, sys
for count, line in enumerate(sys.stdin):
    name = line.strip()
    if name == "deadly" or (name == "unlucky" and count):
        os.abort()
    print("noise")
    print("conformance " + json.dumps({"entry": name, "outcomes": {"lazy": "passed"}, "reasons": {}, "samples": 1,
                                       "replayed": 0, "seconds": 0.0}), flush=True)
"""


def test_results_are_compared_bit_by_bit() -> None:
    one = torch.tensor([1.0, float("nan")])
    assert compare_results(one, one.clone()) == ""
    assert compare_results((one, 3), (one.clone(), 3)) == ""
    assert "1 of 2" in compare_results(one, torch.nextafter(one, torch.tensor(2.0)))
    assert "1 of 2" in compare_results(torch.zeros(2), torch.tensor([0.0, -0.0]))
    assert "1 of 1" in compare_results(torch.tensor([float("nan")]), torch.zeros(1))
    assert "1 of 2" in compare_results(torch.tensor([1 + 1j]), torch.tensor([1 + 2j]))
    assert "float64" in compare_results(one, one.double())
    assert "(2, 1)" in compare_results(one, one[:, None])
    assert "instead of 3" in compare_results(3, 4)
    assert "1 results" in compare_results((one, one), (one,))
    assert "strides" in layout_difference(torch.zeros(2, 3), torch.zeros(3, 2).t())
    assert layout_difference(torch.zeros(1, 3), torch.zeros(1, 3).as_strided((1, 3), (7, 1))) == ""


def stub_settings(monkeypatch: pytest.MonkeyPatch) -> running.Settings:
    monkeypatch.setattr(running, "command_of", lambda settings: [sys.executable, "-c", STUB])
    return running.Settings(["lazy"], timeout_s=60)


def test_a_crash_is_repeated_in_a_fresh_process_and_is_wrong_if_it_recurs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["add", "deadly", "mul", "unlucky", "sub"]
    seen: List[str] = []
    verdicts = running.judge_all(
        names, stub_settings(monkeypatch), running.Journal(None, FACTS), 1, lambda record: seen.append(record["entry"])
    )
    assert [record["outcomes"]["lazy"] for record in verdicts] == ["passed", "wrong", "passed", "passed", "passed"]
    assert "exit code -6" in verdicts[1]["reasons"]["lazy"]
    assert seen == names


def test_an_interrupted_run_goes_on_from_its_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    settings, path = stub_settings(monkeypatch), tmp_path / "journal"
    running.judge_all(["add", "mul"], settings, running.Journal(path, FACTS), 1, lambda record: None)
    seen: List[str] = []
    verdicts = running.judge_all(
        ["add", "mul", "sub"], settings, running.Journal(path, FACTS), 2, lambda record: seen.append(record["entry"])
    )
    assert (seen, len(verdicts)) == (["sub"], 3)
    with pytest.raises(BadInput, match="journal of a run with"):
        running.Journal(path, {**FACTS, "limit": 3})
    path.write_text("{}\nnot JSON\n")
    with pytest.raises(BadInput, match="not a journal"):
        running.Journal(path, FACTS)


def test_the_page_names_what_is_wrong_refused_and_excluded() -> None:
    outcomes = {"add": "passed", "mul": "wrong", "sub": "refused", "empty": "excluded"}
    entries: List[Dict[str, Any]] = [
        {"entry": name, "outcomes": {"lazy": outcome}, "reasons": {"lazy": f"because of {name}"}, "samples": 2,
         "replayed": 0, "seconds": 0.0}
        for name, outcome in outcomes.items()
    ]  # fmt: skip
    record = report.record_of(entries, FACTS)
    records.validate("conformance", record)
    assert record["totals"]["lazy"] == dict.fromkeys(("passed", "refused", "wrong", "excluded"), 1)
    page = report.format_page(record)
    assert "- `mul`: because of mul" in page.split("## Wrong")[1].split("##")[0]
    assert "- `sub`: because of sub" in page.split("## Refused")[1].split("##")[0]
    assert f"- `empty`: {EXCLUSIONS['empty']}" in page
    assert "25.0 %" in page


@pytest.mark.slow
@pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built")
def test_entries_of_op_db_pass_in_every_mode(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("expecttest")
    libraries.build_device()
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    names = ["add", "nonzero", "nn.functional.dropout", "fft.fft", "linalg.svd", "index_put", "empty", "tensor_split"]
    command = ["conformance", "--entries", *names, "--limit", "2", "--json", str(out), "--markdown", str(page)]
    assert main(command) == 0
    record = json.loads(out.read_text())
    records.validate("conformance", record)
    expected = {"passed": len(names) - 1, "refused": 0, "wrong": 0, "excluded": 1}
    assert record["totals"] == dict.fromkeys(("per_op", "lazy", "replay"), expected)
    by_name = {entry["entry"]: entry for entry in record["entries"]}
    assert by_name["add"]["replayed"] >= 6
    assert by_name["nn.functional.dropout"]["replayed"] >= 2
    assert "87.5 %" in page.read_text()
    assert "replay" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built")
def test_entries_pass_however_their_tensors_lie(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("expecttest")
    libraries.build_device()
    out = tmp_path / "out.json"
    names = [
        "nn.functional.group_norm",
        "nn.functional.conv2d",
        "nn.functional.interpolate.bilinear",
        "sum",
        "to_sparse",
    ]
    command = ["conformance", "--entries", *names, "--limit", "2", "--modes", "replay", "--json", str(out)]
    assert main([*command, "--layouts", "channels_last,transposed,strided"]) == 0
    record = json.loads(out.read_text())
    records.validate("conformance", record)
    assert record["totals"]["replay"] == {"passed": len(names), "refused": 0, "wrong": 0, "excluded": 0}
    assert all(entry["samples"] >= 6 for entry in record["entries"])


def lies(tensor: torch.Tensor) -> Any:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def test_a_result_keeps_its_strides_on_its_way_from_the_reference(tmp_path: pathlib.Path) -> None:
    drawn = torch.arange(48.0).view(2, 3, 8)
    for tensor in (drawn[1:, ::2, 3:], drawn.transpose(0, 2), drawn[:1].expand(4, 3, 8), drawn[:0], torch.tensor(3)):
        torch.save(as_it_lies(tensor), tmp_path / "tensor.pt")
        loaded = torch.load(tmp_path / "tensor.pt", weights_only=True)
        assert torch.equal(loaded, tensor)
        assert lies(loaded) == lies(tensor)
    conjugated = torch.complex(drawn, drawn).conj()
    assert compare_results(conjugated.resolve_conj(), as_it_lies(conjugated)) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built")
def test_without_a_gpu_the_reference_on_cuda_is_unavailable(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("expecttest")
    assert main(["conformance", "--entries", "add", "--reference", "cuda"]) != 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "reference" in line]
    assert "no reference on cuda: device 'cuda' is absent: torch " in line
    assert "CUDA build" in line or "nvidia-smi" in line


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built")
def test_results_are_compared_with_those_of_a_separate_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ``cuda`` is the virtual device in mode local: no GPU is tested."""
    pytest.importorskip("expecttest")
    launcher = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]
    monkeypatch.setattr(heap, "LAUNCHER", launcher)
    out = tmp_path / "out.json"
    command = ["conformance", "--reference", "cuda", "--limit", "2", "--modes", "lazy", "--json", str(out), "--entries"]
    names = ["nonzero", "nn.functional.group_norm", "to_sparse", "linalg.svd", "fft.fft", "tensor_split"]
    assert main([*command, *names, "--layouts", "sampled,transposed"]) == 0
    record = json.loads(out.read_text())
    records.validate("conformance", record)
    assert record["reference"] == "cuda"
    assert record["totals"]["lazy"]["passed"] == len(names)
    monkeypatch.setattr(heap, "LAUNCHER", [*launcher, sys.executable, str(INEXACT)])
    assert main([*command, "add", "mul"]) == 1
    by_name = {entry["entry"]: entry for entry in json.loads(out.read_text())["entries"]}
    assert {name: entry["outcomes"]["lazy"] for name, entry in by_name.items()} == {"add": "wrong", "mul": "passed"}
    assert "values differ" in by_name["add"]["reasons"]["lazy"]


def test_a_layout_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--layouts", "sideways"]) != 0
    assert "no layout 'sideways'" in capsys.readouterr().err


def test_tensors_have_the_strides_of_their_layout() -> None:
    drawn = torch.arange(48.0).view(1, 3, 4, 4)
    strides_by_layout = {"sampled": (48, 16, 4, 1), "channels_last": (48, 1, 12, 3), "transposed": (48, 16, 1, 4)}
    for layout, strides in {**strides_by_layout, "strided": (96, 32, 8, 2)}.items():
        loaded = laid_out(drawn, layout)
        assert torch.equal(loaded, drawn)
        assert loaded.stride() == strides
