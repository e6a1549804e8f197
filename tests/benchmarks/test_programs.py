"""The corpus of programs: what a run is held to be, and some that need no package of their own."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Dict, List, Tuple

import pytest

from edge_offload.cli import main
from edge_offload.execute import heap
from edge_offload_benchmarks.programs.catalogue import (
    ENVIRONMENTS,
    MAIN,
    choose_programs,
    list_packages,
    load_catalogue,
)
from edge_offload_benchmarks.programs.compare import STEADY, Run, judge_run

torch = pytest.importorskip("torch")


def lines(*digests: str, trips: int = 1) -> List[Dict[str, Any]]:
    return [{"digest": digest, "seconds": 0.1, "busy_s": 0.1, "trips": trips} for digest in digests]


def test_equal_bits_pass_and_other_bits_are_wrong_whatever_else_happened():
    plain = Run(lines("a", "b", "c"))
    assert judge_run(plain, Run(lines("a", "b", "c")), 3)["verdict"] == "passed"
    assert judge_run(plain, Run(lines("a", "x", "c")), 3)["verdict"] == "wrong"
    assert judge_run(plain, Run(lines("a", "x"), "hangs: not over after 9 s"), 3)["verdict"] == "wrong"


def test_divided_inferences_may_round_otherwise_and_no_more():
    plain, other = Run(lines("a", "b", "c")), Run(lines("a", "x", "c"))
    assert judge_run(plain, other, 3, 2e-7)["verdict"] == "passed"
    assert judge_run(plain, other, 3, 2e-4)["verdict"] == "wrong"
    assert judge_run(plain, Run(lines("a", "x")), 3, 2e-7)["verdict"] == "failed"


def test_a_program_that_amplifies_rounding_is_seen_to():
    from edge_offload_benchmarks.programs.operators import measure_growth

    def make(amplifies: bool) -> Any:
        def built(device: str) -> Any:
            torch.manual_seed(0)
            layer = torch.nn.Conv2d(3, 8, 3)

            def infer(number: int) -> Any:
                with torch.no_grad():
                    output = layer(torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(number)))
                return [
                    output - output.round(decimals=3) if amplifies else output
                ]  # where most cancels, rounding is left

            return infer

        return built

    assert 1e-8 < measure_growth(make(False), 2) < 1e-6
    assert measure_growth(make(True), 2) > 1e-5


LAYOUTS = """
import torch
from edge_offload_benchmarks.programs.operators import BothSides
torch.manual_seed(0)
norm, after = torch.nn.GroupNorm(4, 32).cuda(), torch.nn.Conv2d(32, 32, 3).cuda()
x = torch.rand(1, 32, 16, 16).contiguous(memory_format=torch.channels_last).cuda()
with torch.no_grad(), BothSides() as sides:
    after(norm(x)).relu_().cpu()
print(sides.calls, {name.rsplit(".", 1)[-1]: off < 1e-6 for name, off in sides.worst.items()})
"""


@pytest.mark.process
def test_operators_are_compared_in_the_layouts_of_a_plain_cpu():
    """The CPU keeps channels last behind the norm, a GPU does not: only the convolution may round otherwise."""
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--threads", "1", "--"]
    done = subprocess.run([*command, sys.executable, "-c", LAYOUTS], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() in ("3 {'conv2d': True}", "3 {}"), done.stdout + done.stderr


def test_a_refusal_names_the_remedy_and_a_crash_does_not():
    plain = Run(lines("a", "b"))
    refused = "Unsupported: operator 'aten::x' is not supported -> leave it out"
    assert judge_run(plain, Run([], refused), 2)["verdict"] == "refused"
    assert judge_run(plain, Run([], "terminate called without an active exception"), 2)["verdict"] == "failed"
    assert judge_run(plain, Run(lines("a"), "hangs: not over after 9 s"), 2)["verdict"] == "hangs"


def test_steady_trips_are_those_from_the_fifteenth_inference_on():
    digests = [str(number) for number in range(20)]
    run = Run([{**line, "trips": 7 if number < 5 else 1} for number, line in enumerate(lines(*digests))])
    row = judge_run(Run(lines(*digests)), run, 20)
    assert STEADY == 14
    assert (row["first_trips"], row["steady_trips"], row["steady_from"]) == (7, 1, 5)


def test_the_corpus_is_large_and_its_names_begin_with_the_package():
    programs = load_catalogue()
    assert len(programs) >= 60
    assert all("/" in name for name in programs)
    assert len({name.split("/")[0] for name in programs}) >= 12


def test_programs_name_the_environment_of_their_packages():
    main, lerobot = choose_programs((), MAIN), choose_programs((), "lerobot")
    assert set(main) | set(lerobot) == set(load_catalogue())
    assert set(lerobot) == set(choose_programs(["lerobot/"], "lerobot"))
    assert choose_programs(["lerobot/"], MAIN) == ()
    assert ENVIRONMENTS["lerobot"].isolated  # it has a torch of its own
    assert not ENVIRONMENTS[MAIN].isolated


def test_a_record_names_the_packages_of_what_ran():
    assert list_packages(["lerobot/act"]) == {"lerobot": list(ENVIRONMENTS["lerobot"].requirements)}
    assert list(list_packages(["lerobot/act", "timm/resnet18", "gone/since"])) == [MAIN, "lerobot"]


def test_a_separate_environment_gets_the_projects_requirements_but_torch_and_numpy():
    from edge_offload_benchmarks.experiments.programs import _project_requirements

    needed = {re.split(r"[^\w-]", line)[0] for line in _project_requirements()}
    assert {"pyzmq", "msgpack", "lz4"} <= needed
    assert not {"torch", "numpy", "ray", "pytest", "edge_offload"} & needed


QUICK = tuple(name for name, item in load_catalogue().items() if item.quick)
BY_THREE = [QUICK[start : start + 3] for start in range(0, len(QUICK), 3)]


def test_a_dozen_are_small_enough_for_every_run_of_the_tests():
    assert len(QUICK) >= 12
    assert {name.split("/")[0] for name in QUICK} == {"plain", "torchdiffeq", "torchscript", "torchvision"}


@pytest.mark.release
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("torchvision") and find_spec("torchdiffeq")), reason="needs scripts/setup --test")
@pytest.mark.parametrize("names", BY_THREE, ids=["-".join(name.split("/")[1] for name in names) for names in BY_THREE])
def test_the_dozen_has_the_bits_of_the_cpu(tmp_path: pathlib.Path, names: Tuple[str, ...]):
    record = tmp_path / "programs.json"
    arguments = [
        "bench",
        "programs",
        "--modes",
        "replay",
        "--inferences",
        "16",
        "--json",
        str(record),
        "--only",
        *names,
    ]
    command = [sys.executable, "-m", "edge_offload.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {item["program"]: item["modes"]["replay"] for item in json.loads(record.read_text())["programs"]}
    assert {name: row["verdict"] for name, row in rows.items()} == dict.fromkeys(names, "passed")
    assert all(row["steady_trips"] <= 3 for row in rows.values()), rows  # learnt well before the last inference


VIRTUAL = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]
REFERENCE = pathlib.Path(__file__).parents[1] / "research" / "device" / "inexact_reference.py"
INEXACT = [*VIRTUAL, sys.executable, str(REFERENCE)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "outcome"), [(VIRTUAL, "passed"), (INEXACT, "wrong")])
def test_programs_are_compared_with_plain_cuda_on_request(tmp_path, monkeypatch, capsys, launcher, outcome):
    """The reference's ``cuda`` is the virtual device in mode local: no GPU is tested."""
    monkeypatch.setattr(heap, "LAUNCHER", launcher)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("EDGE_OFFLOAD_LOCAL_GPU", "hidden")
    record = tmp_path / "programs.json"
    arguments = [
        "bench",
        "programs",
        "--reference",
        "cuda",
        "--modes",
        "lazy",
        "--inferences",
        "2",
        "--json",
        str(record),
    ]
    assert main([*arguments, "--only", "plain/lstm_policy"]) == int(outcome == "wrong")
    (item,) = json.loads(record.read_text())["programs"]
    assert item["modes"]["lazy"]["verdict"] == outcome
    assert item["reference"] == "cuda"
    assert main(["bench", "programs", "--resume", "--json", str(record), "--only", "plain/lstm_policy"]) != 0
    assert "has results of another --reference" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("bench", [["programs", "--modes", "lazy"], ["transparent", "--bits", "2"]])
def test_without_a_gpu_nothing_is_compared_with_plain_cuda(bench, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["bench", *bench, "--reference", "cuda"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "device 'cuda' is absent" in line
    assert "CUDA build" in line or "nvidia-smi" in line


@pytest.mark.process
@pytest.mark.parametrize(("launcher", "same"), [(VIRTUAL, True), (INEXACT, False)])
def test_networks_are_computed_by_plain_cuda_in_a_separate_process(launcher, same):
    from edge_offload_benchmarks.transparent.models import Inputs, small_cases
    from edge_offload_benchmarks.transparent.reference import CudaReference

    case = small_cases()[0]
    reference, module, inputs = CudaReference(launcher), case.module(), Inputs(case)
    with torch.no_grad():
        for tensor in (inputs.next(), inputs.next()):
            (output,) = reference.outputs(case.name, tensor)
            assert torch.equal(output, module(tensor)) is same
            assert torch.allclose(output, module(tensor), atol=1e-5)
    reference.close()
