"""Programs whose executor computes on "cuda", which is a virtual device too, print the bits that a CPU gives.

No GPU is needed: what runs are the branches that sessions have for one.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from edge_offload.native import libraries
from tests.programs.test_programs import PROGRAMS, run

FOLDER = pathlib.Path(__file__).parent
RUNNER = FOLDER / "run_programs.py"
SESSIONS = [sys.executable, str(FOLDER / "virtual_gpu_sessions.py")]
#: Of the device itself, without "memory": nothing bounds that of a virtual GPU, and a real one bounds its own.
ABOUT = ["surface", "calls"]
needs_compiler = pytest.mark.skipif(
    not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built"
)
pytestmark = [pytest.mark.process, needs_compiler]
MODES = ["lazy", "replay", "per_op"]
#: Random numbers and states of generators, which no mode may skip.
IN_ALL = ["saved", "random_loops:0:12", "random_programs:0:8:12"]
#: A third of the other programs in each mode: what differs between modes is compared on a CPU (test_programs).
PROGRAMS_OF = {
    mode: [*IN_ALL, *[name for name in PROGRAMS if name not in IN_ALL][number :: len(MODES)]]
    for number, mode in enumerate(MODES)
}

RANDOM = """
import json, torch
def draw(*shape, **how):
    return torch.rand(*shape, device="cuda", **how).tolist()
torch.manual_seed(5)
first = draw(3)
torch.manual_seed(5)
again = draw(3)
torch.manual_seed(5)
on_host = torch.rand(3).tolist()
state = torch.cuda.get_rng_state()
after = draw(4)
torch.cuda.set_rng_state(state)
restored = draw(4)
own = torch.Generator(device="cuda").manual_seed(9)
on_hosts_own = torch.rand(2, generator=torch.Generator().manual_seed(9)).tolist()
print(json.dumps({"again": first == again, "host": first == on_host, "restored": after == restored,
                  "own": draw(2, generator=own) == on_hosts_own}))
"""
NORMS = """
import json, torch
from torch import nn
from torch.nn import functional
from edge_offload.device.installation import current_installation
torch.manual_seed(1)
right, averages = [], []
def on(device, turn):
    torch.manual_seed(7)
    norm = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), norm).to(device).train(turn % 2 == 0)
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(turn)).to(device)
    grid = torch.rand(2, 5, 5, 2, generator=torch.Generator().manual_seed(turn)).to(device)
    with torch.no_grad():
        y = functional.grid_sample(net(x), grid, align_corners=False)
        z = functional.instance_norm(x)
    return [y.cpu(), z.cpu(), *[one.cpu() for one in net.buffers()]]
for turn in range(8):
    right.append(all(torch.equal(a, b) for a, b in zip(on("cuda", turn), on("cpu", turn))))
def gradient(device):
    x = torch.ones(2, 3, 4, 4, device=device, requires_grad=True)
    weight = torch.full((3,), 2.0, device=device, requires_grad=True)
    y = functional.batch_norm(x * torch.arange(96.0).view(2, 3, 4, 4).to(device), None, None, weight, training=True)
    y.pow(2).sum().backward()
    return [x.grad.cpu(), weight.grad.cpu()]
gradients = all(torch.equal(a, b) for a, b in zip(gradient("cuda"), gradient("cpu")))
def deviating(device):
    # averages after an inference that begins like those before it, and then goes another way
    results = []
    norms = [nn.BatchNorm2d(3).to(device), nn.InstanceNorm2d(3, track_running_stats=True).to(device)]
    for norm in norms:
        for turn in range(12):
            x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(turn)).to(device)
            with torch.no_grad():
                y = x * 2
                y = norm(y) if turn not in (7, 11) else y + 1
                results.append(y.sum().cpu())
            if turn in (7, 11):
                results.append(norm.running_mean.clone().cpu())
    return results
undone = all(torch.equal(a, b) for a, b in zip(deviating("cuda"), deviating("cpu")))
native = current_installation().native
names = {native.entry(number)[0] for number in range(native.counters()["entries"])}
print(json.dumps({"right": right, "gradients": gradients, "undone": undone, "names": sorted(names)}))
"""


@pytest.fixture(scope="module")
def local() -> Dict[str, Dict[str, Any]]:
    return run([sys.executable, str(RUNNER), *PROGRAMS])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lazy", "replay", pytest.param("per_op", marks=pytest.mark.release)])
def test_programs_print_the_same_bits_as_on_the_cpu(local: Dict[str, Any], mode: str) -> None:
    libraries.build_device()
    away = run([*SESSIONS, mode, str(RUNNER), *PROGRAMS_OF[mode], *ABOUT])
    for name in PROGRAMS_OF[mode]:
        assert not away[name]["error"], away[name]["error"]
        assert away[name]["output"] == local[name]["output"], name
    for name in ABOUT:
        assert away[name]["output"] == f"{name} ok\n", away[name]["error"]


def run_text(tmp_path: pathlib.Path, text: str, command: List[str]) -> Dict[str, Any]:
    program = tmp_path / "program.py"
    program.write_text(text)
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("mode", ["lazy", "replay", "per_op"])
def test_a_seed_and_a_state_decide_what_a_gpu_draws(tmp_path: pathlib.Path, mode: str) -> None:
    assert run_text(tmp_path, RANDOM, [*SESSIONS, mode]) == {"again": True, "host": True, "restored": True, "own": True}


@pytest.mark.parametrize("mode", ["lazy", "replay"])
def test_norms_and_grid_samples_are_recorded_as_one_call_for_a_gpu(tmp_path: pathlib.Path, mode: str) -> None:
    result = run_text(tmp_path, NORMS, [*SESSIONS, mode])
    assert result["right"] == [True] * 8
    assert result["gradients"]
    assert result["undone"], "running averages of an inference that did not take place"
    assert {"aten::batch_norm", "aten::instance_norm", "aten::grid_sampler"} <= set(result["names"])
    assert "aten::grid_sampler_2d" not in result["names"]


def test_norms_are_recorded_by_their_parts_for_a_cpu(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--threads", "1", "--mode", "replay", "--"]
    result = run_text(tmp_path, NORMS, [*command, sys.executable])
    assert result["right"] == [True] * 8
    assert {"aten::native_batch_norm", "aten::grid_sampler_2d"} <= set(result["names"])
    assert "aten::batch_norm" not in result["names"]
