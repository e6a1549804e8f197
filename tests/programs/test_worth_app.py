"""Programs of one process that begin with the same step: one is run ahead, of the other the rest is not.

Time is counted, not measured, so that it is the same on every machine: round trips, and what ran ahead.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from edge_offload.native import libraries
from edge_offload.replay.worth import FIRST_TRIP, TRIALS

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]
PROGRAM = """
import copy, json, sys, torch
from edge_offload.device.installation import current_installation
from edge_offload.replay.worth import AheadGain

trip_s, step_s = map(float, sys.argv[1:])
torch.manual_seed(0)
here = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 18)).eval()
there, recorder = copy.deepcopy(here).to("cuda"), current_installation().recorder
counters, strategy = recorder.counters, recorder.strategy
strategy._worth = AheadGain(lambda: trip_s * counters.round_trips + step_s * counters.speculated)
held = {"cpu": torch.zeros(6), "cuda": torch.zeros(6, device="cuda")}

def suppressed(boxes, scores):
    kept, order = [], scores.argsort(descending=True)
    while order.numel() > 0:
        best = order[0]
        kept.append(best)
        if order.numel() == 1:
            break
        rest = order[1:]
        near = (boxes[rest] - boxes[best]).abs().sum(1) + scores[rest]
        order = rest[near > 1.0]
    return torch.stack(kept)

def begin(net, device, number):
    image = torch.rand(40, 8, generator=torch.Generator().manual_seed(number)).to(device)
    out = net(image)
    held[device].add_(out[:, :6].sum(0))  # what was rolled back must not count
    return out, out[:, 0].cpu()

def one(net, device, number):
    return [begin(net, device, number)[1], held[device].cpu()]

def loops(net, device, number):
    out, first = begin(net, device, number)
    found = [first]
    for scored in out.view(40, 3, 6).unbind(1):
        scores = scored[:, 0].sigmoid()
        likely = scores > scores.mean()
        boxes, scores = scored[likely], scores[likely]
        found.append(boxes[suppressed(boxes, scores)].cpu())
    return [*found, held[device].cpu()]

def chain(net, device, number):
    out, first = begin(net, device, number)
    found = [first]
    for turn in range(8):
        out = out[out[:, turn] > -0.2]
        out = out + 0.01 * out.sum()
        found.append(out[:1].sum(0).cpu())
    return [*found, held[device].cpu()]

rows = []
for number in range(60):
    for program in (one, loops, chain):
        before = counters.round_trips
        with torch.no_grad():
            mine, theirs = program(here, "cpu", number), program(there, "cuda", number)
        equal = all(torch.equal(a, b) for a, b in zip(mine, theirs))
        rows.append([program.__name__, counters.round_trips - before, strategy._plain_reason is not None, equal])
print(json.dumps(rows))
"""


@functools.lru_cache(maxsize=None)
def _rows(trip_s: float, step_s: float) -> Dict[str, List[Any]]:
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "replay", "--threads", "1", "--"]
    command += [sys.executable, "-c", PROGRAM, str(trip_s), str(step_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert all(equal for *_, equal in rows)
    return {name: [row[1:3] for row in rows if row[0] == name] for name in ("one", "loops", "chain")}


@pytest.mark.release
@pytest.mark.parametrize("costs", [(1.0, 0.0), (1.0, 100.0)], ids=["a slow link", "trips nearly free"])
def test_a_program_with_one_round_trip_preserves_it(costs: Any) -> None:
    rows = _rows(*costs)
    assert [trips for trips, _ in rows["one"][30:]] == [1] * 30
    assert statistics.median(trips for trips, _ in rows["chain"][30:]) == 1
    assert not any(ran_ahead for name in ("one", "chain") for _, ran_ahead in rows[name])


@pytest.mark.release
def test_where_running_ahead_costs_more_the_rest_of_an_inference_is_not() -> None:
    rows = _rows(1.0, 100.0)["loops"]
    assert not any(ran_ahead for _, ran_ahead in rows[:12]), "so many are for learning"
    assert sum(remaining for _, remaining in rows[30:]) >= 20
    assert all(trips > FIRST_TRIP for trips, rest in rows if rest)


def test_where_it_costs_less_it_goes_on() -> None:
    assert sum(ran_ahead for _, ran_ahead in _rows(1.0, 0.0)["loops"]) <= 2 * TRIALS
