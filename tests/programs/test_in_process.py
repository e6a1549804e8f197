"""The device that the program's own process computes: the same bits as on the CPU, the same refusals as on a GPU."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from edge_offload.cli import main
from edge_offload.native import libraries

FOLDER = pathlib.Path(__file__).parent
PROGRAMS = [
    "conv_net", "in_place_state", "branches", "suppression", "two_threads", "buffers", "saved", "random_loops:0:12",
    "names",
    "composites", "sparse", "ragged", "gradients", "loops:36",
]  # fmt: skip
#: Of the device itself: what they print says whether all went as it should.
ABOUT = ["surface", "calls", "memory"]
MODES = {
    "local": ["--mode", "local"],
    "split, without its server": ["--mode", "split", "--server", "tcp://127.0.0.1:9"],
}
ENTRIES = [
    "add", "nn.functional.conv2d", "nn.functional.batch_norm", "nn.functional.dropout", "nonzero", "index_put", "cat",
    "linalg.svd", "resize_", "normal.in_place", "masked_select", "view_as_complex", "nn.functional.embedding_bag",
]  # fmt: skip
SEPARATE_DEVICE = """
import json, os, pathlib, torch
from edge_offload.device.installation import current_installation
x = torch.arange(10.0, device="cuda")
view = x[2:5]
view.add_(10)
torch.add(x, 1, out=(out := torch.empty(0, device="cuda")))
errors = []
for wrong in (lambda: x + torch.ones(10), lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
              lambda: torch.ones(1, device="cuda:1")):
    try:
        wrong()
    except (RuntimeError, NotImplementedError) as error:
        errors.append(str(error))
torch.manual_seed(3)
drawn = torch.rand(4, device="cuda").tolist() + torch.dropout(torch.ones(8, device="cuda"), 0.5, True).tolist()
torch.manual_seed(3)
expected = torch.rand(4).tolist() + torch.dropout(torch.ones(8), 0.5, True).tolist()
state = torch.get_rng_state()
torch.rand(3, device="cuda")
children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
print(json.dumps({"x": x.tolist(), "out": out.tolist(), "errors": errors, "drawn": drawn == expected,
                  "host": torch.equal(state, torch.get_rng_state()), "children": children,
                  "held": torch.cuda.memory_allocated()}))
"""
CROWD = """
import json, threading, torch
torch.set_num_threads(1)
right = [False] * 6
together = threading.Barrier(6)
def infer(number):
    x = torch.arange(64.0) + number
    expected = x
    for _ in range(20):
        expected = (expected * 0.5 + number).relu()
    together.wait()
    found = []
    for _ in range(150):
        y = x.cuda()
        for _ in range(20):
            y = (y * 0.5 + number).relu()
        found.append(torch.equal(y.cpu(), expected))
    right[number] = all(found)
threads = [threading.Thread(target=infer, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(right))
"""
MEMORY = """
import gc, json, random, torch
random.seed(1)
kept = []
for number in range(400):
    size = random.choice([1, 15, 16, 17, 500, 513, 4097, 70001])
    kept.append((number, torch.full((size,), float(number)).cuda()))
    if len(kept) > 20:
        del kept[random.randrange(len(kept))]
intact = all(bool((tensor.cpu() == number).all()) for number, tensor in kept)
turned = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
stepped = torch.zeros(6).cuda()
stepped[::2].copy_(torch.ones(3))
spread = torch.empty(2, 3).copy_(torch.arange(3.0).cuda())
halves = torch.zeros(3).cuda().copy_(torch.ones(3, dtype=torch.float16))
grown = torch.arange(4.0).cuda().resize_(100000)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
before = resident()
many = [torch.ones(1 << 20, device="cuda") for _ in range(64)]
held = resident()
del many
gc.collect()
print(json.dumps({"intact": intact, "turned": torch.equal(turned.cuda().cpu(), turned), "stepped": stepped.tolist(),
                  "spread": spread.tolist(), "halves": halves.tolist(), "grown": grown[:4].tolist(),
                  "held": held - before, "after": resident() - before}))
"""
pytestmark = [
    pytest.mark.process,
    pytest.mark.process,
    pytest.mark.skipif(
        not libraries.device_is_possible(),
        reason="no C++ compiler: the native device cannot be built",
    ),
]


def run(command: List[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def outputs(text: str) -> Dict[str, Any]:
    records = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert not [record["error"] for record in records if record["error"]]
    return {record["program"]: record["output"] for record in records}


@pytest.fixture(scope="module")
def on_the_cpu() -> Dict[str, Any]:
    return outputs(run([sys.executable, str(FOLDER / "run_programs.py"), *PROGRAMS]))


@pytest.mark.parametrize("mode", MODES)
def test_programs_print_the_same_bits_as_on_the_cpu(on_the_cpu: Dict[str, Any], mode: str) -> None:
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--threads", "1", *MODES[mode], "--"]
    printed = outputs(run([*command, sys.executable, str(FOLDER / "run_programs.py"), *PROGRAMS, *ABOUT]))
    assert {name: printed.pop(name) for name in ABOUT} == {name: f"{name} ok\n" for name in ABOUT}
    assert printed == on_the_cpu


def test_calls_of_several_threads_are_noted_one_after_the_other() -> None:
    server = ["--mode", "split", "--server", "tcp://127.0.0.1:9"]
    command = [sys.executable, "-m", "edge_offload.cli", "exec", *server, "--", sys.executable, "-c", CROWD]
    assert json.loads(run(command)) == [True] * 6


def test_the_device_in_process_is_separate_and_needs_no_process() -> None:
    command = [
        sys.executable,
        "-m",
        "edge_offload.cli",
        "exec",
        "--mode",
        "local",
        "--",
        sys.executable,
        "-c",
        SEPARATE_DEVICE,
    ]
    facts = json.loads(run(command))
    assert facts["x"] == [0, 1, 12, 13, 14, 5, 6, 7, 8, 9]
    assert facts["out"] == [value + 1 for value in facts["x"]]
    mixed, quantised, second = facts["errors"]
    assert "two devices" in mixed
    assert "add" in mixed
    assert "quantize_per_tensor" in quantised
    assert "invalid device ordinal" in second
    assert facts["drawn"], "the same seed draws the same numbers"
    assert facts["host"], "the CPU's generator is left alone"
    assert facts["children"] == []
    assert facts["held"] == 80


def test_memory_of_the_device_is_reused_and_returned() -> None:
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--", sys.executable, "-c", MEMORY]
    facts = json.loads(run(command))
    assert facts["intact"], "what one tensor leaves, another may have, and nobody else"
    assert facts["turned"]
    assert facts["stepped"] == [1, 0, 1, 0, 1, 0]
    assert facts["spread"] == [[0, 1, 2]] * 2
    assert facts["halves"] == [1, 1, 1]
    assert facts["grown"] == [0, 1, 2, 3]
    assert facts["held"] > 200  # of 256 MiB
    assert facts["after"] < 100


def test_operators_give_the_same_bits(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("expecttest", reason="torch's own list of operators needs it: pip install expecttest")
    record = tmp_path / "record.json"
    assert main(["conformance", "--modes", "local", "--limit", "2", "--json", str(record), "--entries", *ENTRIES]) == 0
    judged = json.loads(record.read_text())
    assert judged["totals"]["local"]["passed"] == len(ENTRIES)


def test_local_is_judged_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--modes", "local,lazy"]) == 1
    assert "by itself" in capsys.readouterr().err
