"""What a program's first frame on the virtual device does not wait for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edge_offload.native import libraries

needs_compiler = pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device")
PROGRAM = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 900, 4))
x = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
with torch.no_grad():
    here = net.eval()(x).softmax(-1) + 1
    there = net.to("cuda")(x.to("cuda")).softmax(-1) + 1
print(torch.equal(here, there.cpu()), "torch._dynamo" in sys.modules)
"""


@pytest.mark.process
@needs_compiler
def test_a_first_frame_does_not_import_the_compiler_of_torch() -> None:
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "lazy", "--threads", "1", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "True False\n", done.stderr[-3000:]
