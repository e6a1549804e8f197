"""Runs a module on ``cuda`` with engines, and prints what computed it: for ``edge-offload exec --mode local``."""

from __future__ import annotations

import copy

import torch
from torch import nn

from edge_offload.execute.engines import table
from edge_offload.execute.engines.base import CUDA, Built
from edge_offload.execute.module import ModuleExecutor

net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
on_device = copy.deepcopy(net).cuda()


class Rebuilt(Built):
    """A stand-in: torch once more, on the device."""

    name, distributions, device = "again", ("numpy",), CUDA

    def build(self, onnx, threads):
        return onnx

    def load(self, built, threads):
        return self

    def run(self, inputs):
        assert inputs[0].is_cuda
        with torch.inference_mode():
            return [on_device(inputs[0])]

    def close(self):
        pass


table.BACKENDS = (*table.BACKENDS, Rebuilt())
plain = ModuleExecutor(net, "cuda")
for name in ("again", "eager+graph"):
    executor = ModuleExecutor(net, "cuda", name)
    for _ in range(4):
        x = torch.rand(1, 3, 8, 8)
        done = executor.run_module([x])
        assert executor.engine_ready(100)
        assert torch.equal(done.outputs[0], plain.run_module([x]).outputs[0])
    print(f"{done.engine} | {executor.engine_state()[0]}")
