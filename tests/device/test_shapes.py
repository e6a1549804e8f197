"""Results' metadata that the robot works out by itself is what the executor finds; a first inference asks seldom."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from edge_offload.device.conformance.shapes import Watch, judge
from edge_offload.device.installation import sampled_shapes

FIRST = """
import copy, json, torch
from torch import nn
from edge_offload.device.installation import installed

network = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.SiLU(), nn.Flatten(),
    nn.Linear(8 * 14 * 14, 32), nn.GELU(), nn.Linear(32, 5), nn.Sigmoid(),
).eval()
trips, equal, counters = [], [], installed().recorder.counters
there = copy.deepcopy(network).to("cuda")
for count in (1, 3):
    picture = torch.rand(count, 3, 32, 32)
    before = counters.round_trips
    with torch.no_grad():
        found = there(picture.to("cuda")).cpu()
        equal.append(torch.equal(found, network(picture)))
    trips.append(counters.round_trips - before)
print(json.dumps({"trips": trips, "equal": equal}))
"""


@pytest.mark.process
def test_no_operator_that_is_trusted_differs_on_samples_of_every_tenth():
    from torch.testing._internal.common_methods_invocations import op_db

    known = sampled_shapes()
    if not known:
        pytest.skip(f"the operators of torch {torch.__version__} have not been sampled")
    watch = Watch()
    for op in op_db[3::10]:
        judge(op, torch.float32, watch)
    differ = {name for name, rows in watch.differ if rows or name in known["strided"]}
    assert not differ & {*known["rows"], *known["strided"]}
    assert sum(watch.agree.values()) > 1000, "they were looked at"


def test_a_wrong_meta_kernel_is_found():
    """The channels_last convolution, whose meta kernel gives other strides."""
    watch = Watch()
    picture = torch.rand(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    with watch:
        torch.var_mean(picture)
        torch.nn.functional.mse_loss(picture, picture)
    assert ("aten::mse_loss", False) in watch.differ, "its scratch memory is not a scalar's"


@pytest.mark.process
def test_a_first_inference_asks_for_nothing_that_is_known_here(tmp_path):
    if not sampled_shapes():
        pytest.skip(f"the operators of torch {torch.__version__} have not been sampled")
    program = tmp_path / "first.py"
    program.write_text(FIRST)
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "lazy", "--", sys.executable, str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told == {"trips": [1, 1], "equal": [True, True]}
