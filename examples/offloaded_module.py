"""Any nn.Module, here or on a server, with one call: python offloaded_module.py gpu-machine:5700.

The server is started by: edge-offload serve --allow offloaded_module:make (both with this folder in PYTHONPATH).
"""

import sys
import time

import torch
from torch import nn

from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.runtime.module import OffloadedModule


def make() -> nn.Module:
    """The factory, called on both sides: the weights must be the same (a checkpoint; here, a seed)."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 4, 3, stride=2))


if __name__ == "__main__":
    image = torch.rand(1, 3, 240, 320)
    with Client(f"tcp://{sys.argv[1]}") as client:
        module = OffloadedModule("offloaded_module:make", make(), client, example=image)
        client.wait_ready(10.0)
        for _ in range(100):  # the model is opened in the background; until it is, calls are answered here
            if module.unavailable_reason(Mode.SERVER, image) is None:
                break
            time.sleep(0.1)
        for mode in (Mode.LOCAL, Mode.SERVER):
            (output,), report = module.run_inference(image, mode)
            cost = f"{report.total_s * 1e3:.1f} ms, {report.bytes_up} bytes up {report.fallback_reason}"
            print(f"{report.mode}: {list(output.shape)}, sum {output.sum():.6f}, {cost}")
        module.close()
