"""A program whose half of a split is computed on CUDA, the virtual device, whose calls lag; prints a line of JSON.

Started by test_cuda_split.py under ``exec --mode split --device cuda``. What computes for it is started on that device.
"""

from __future__ import annotations

import copy
import json
import sys
import time

from edge_offload.execute import heap

heap.LAUNCHER[:] = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]

import torch  # noqa: E402 - the device comes with it, and what computes for it
from divided import divide_everything  # noqa: E402
from torch import nn  # noqa: E402

from edge_offload.device.installation import current_installation  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
strategy = current_installation().recorder.strategy
divide_everything(current_installation().recorder)
reference = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3), nn.SiLU(), nn.Flatten(),
    nn.Linear(4 * 10 * 14, 5),
).double().eval()  # fmt: skip
network = copy.deepcopy(reference).to("cuda")
worst, end = 0.0, time.monotonic() + 120.0
with torch.no_grad():
    while strategy.splits.operators_split < 4 and time.monotonic() < end:
        picture = torch.rand(1, 3, 24, 32, dtype=torch.float64)
        want, got = reference(picture), network(picture.to("cuda")).cpu()
        worst = max(worst, float((got - want).abs().max() / want.abs().max()))
        time.sleep(0.02)
print(json.dumps({
    "distance": worst, "split": strategy.splits.operators_split, "state": strategy.state(),
    "halves": [str(item.runner.opener.place.device) for item in strategy.inferences.list_inferences() if item.runner],
}), flush=True)  # fmt: skip
