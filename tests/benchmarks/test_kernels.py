"""Plain CUDA's operators against those that the virtual device records (bench kernels): verdicts, and a few entries."""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any, Dict, List

import pytest
import torch

from edge_offload import records
from edge_offload.errors import BadInput, Unsupported
from edge_offload.native import libraries, torch_facts
from edge_offload_benchmarks.experiments import kernels

CUDA = torch_facts.built_with_cuda()
needs_cuda_build = pytest.mark.skipif(not CUDA, reason=f"torch {torch.__version__} is no build with CUDA")
needs_compiler = pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device")


def observation(samples: int = 1, **operators: List[str]) -> Dict[str, Any]:
    named = {f"aten::{name}": [f"aten::{parent}" for parent in parents] for name, parents in operators.items()}
    return {"operators": named, "samples": samples, "failed": "" if samples else "RuntimeError: no driver"}


def test_an_operator_is_recorded_or_part_of_one_or_explained_or_something_else() -> None:
    fake = {
        "norm": observation(cudnn_norm=["norm", "norm_impl"]),
        "fused": observation(_fused=[]),
        "sampler": observation(cudnn_sampler=["sampler"]),
        "cell": observation(_thnn=["cell"]),
        "lstm": observation(samples=0),
        "refused": observation(_fused=[]),
    }
    recorded = {
        "norm": observation(norm=[]),
        "fused": observation(_fused=[]),
        "sampler": observation(sampler_2d=[]),
        "cell": observation(sigmoid=[], mul=[]),
        "lstm": observation(lstm=[]),
        "refused": observation(samples=0),
    }
    record = kernels.compare_observations(
        fake, recorded, {"aten::cudnn_sampler": "why", "aten::_fused": "", "aten::absent": ""}
    )
    verdicts = {item["entry"]: item["verdict"] for item in record["kernels"]}
    assert verdicts == {"norm": "whole", "fused": "recorded", "sampler": "explained", "cell": "other"}
    assert set(record["not_judged"]) == {"lstm", "refused"}
    assert record["judged"] == 4
    assert record["unused"] == ["aten::_fused"], "it was seen, and recorded"


@pytest.mark.skipif(CUDA, reason="this torch is a build with CUDA")
def test_a_build_for_the_cpu_cannot_compare_with_plain_cuda() -> None:
    with pytest.raises(Unsupported, match="no build with CUDA"):
        kernels.measure_kernels()


@needs_cuda_build
@needs_compiler
@pytest.mark.process
def test_a_few_entries_are_recorded_as_plain_cuda_dispatches(tmp_path: pathlib.Path, capsys: Any) -> None:
    libraries.build_device()
    parser = argparse.ArgumentParser()
    kernels.add_arguments(parser)
    written = tmp_path / "kernels.json"
    entries = ["nn.functional.rms_norm", "nn.functional.batch_norm", "nn.LSTMCell", "add"]
    assert kernels.run(parser.parse_args(["--entries", *entries, "--limit", "2", "--json", str(written)])) == 0
    record = json.loads(written.read_text())
    records.validate("kernels", record)
    verdicts = {item["operator"]: item["verdict"] for item in record["kernels"]}
    assert verdicts["aten::_fused_rms_norm"] == "recorded"
    assert verdicts["aten::_thnn_fused_lstm_cell"] == "whole"
    assert verdicts["aten::cudnn_batch_norm"] in ("explained", "whole")
    assert record["judged"] == 4
    assert "recorded  aten::_fused_rms_norm in nn.functional.rms_norm" in capsys.readouterr().out


@needs_cuda_build
@needs_compiler
@pytest.mark.process
def test_what_is_recorded_otherwise_for_no_reason_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {"nn.LSTMCell": observation(sigmoid=[], mul=[])}
    observe = kernels.observe_command
    monkeypatch.setattr(
        kernels, "observe_command", lambda command: recorded if "recorded" in command else observe(command)
    )
    assert kernels.run(argparse.Namespace(entries=["nn.LSTMCell"], limit=1, json=None)) == 1


@needs_cuda_build
@needs_compiler
@pytest.mark.process
def test_a_name_that_no_entry_has_is_refused() -> None:
    with pytest.raises(BadInput, match="no entry"):
        kernels.measure_kernels(["no.such.entry"])
