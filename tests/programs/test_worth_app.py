"""An inference that is not run ahead, in between of those that are: the same bits, and the round trips of mode lazy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edge_offload.native import libraries

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]
PROGRAM = """
import copy, json, random, torch
from edge_offload.device.installation import installed
from edge_offload.replay.worth import Worth

class Told(Worth):
    def begin(self, kind, trips, undone):
        super().begin(kind, trips, undone)
        self.ahead = wanted
        return wanted

torch.manual_seed(0)
here = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
there, recorder = copy.deepcopy(here).to("cuda"), installed().recorder
recorder.strategy._worth = Told()
held = {"cpu": torch.zeros(8), "cuda": torch.zeros(8, device="cuda")}

def infer(net, device, number):
    image = torch.rand(6, 8, generator=torch.Generator().manual_seed(number)).to(device)
    found = net(image)
    held[device].add_(found.sum(0))  # what was rolled back must not count
    for _ in range(3):
        found = found[(found > 0.05)[:, number % 8]]  # how many rows there are is known there alone
        if found.sum().item() < 0:
            break
        found = net(found)
    return [found.cpu(), held[device].cpu()]

draw, rows = random.Random(1), []
for number in range(60):
    wanted = number < 20 or draw.random() < 0.5
    before = recorder.counters.round_trips
    with torch.no_grad():
        mine, theirs = infer(here, "cpu", number), infer(there, "cuda", number)
    equal = all(torch.equal(a, b) for a, b in zip(mine, theirs))
    rows.append([wanted, recorder.counters.round_trips - before, equal])
print(json.dumps(rows))
"""


def test_inferences_are_run_ahead_or_not_as_it_is_worth() -> None:
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "replay", "--threads", "1", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=True
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert all(equal for _, _, equal in rows)
    later = rows[20:]
    ahead = [trips for wanted, trips, _ in later if wanted]
    plain = [trips for wanted, trips, _ in later if not wanted]
    assert min(plain) >= 4, "each size and each number is waited for"
    assert 2 * sum(ahead) / len(ahead) < sum(plain) / len(plain)
