"""Programs on a build of torch with CUDA: operators that only such a build dispatches to, on a server without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from edge_offload.ir.trace.allowlist import resolve_operator
from edge_offload.native import libraries

RMS_NORM = getattr(torch.ops.aten, "_fused_rms_norm", None)
needs_rms_norm = pytest.mark.skipif(RMS_NORM is None, reason=f"torch {torch.__version__} has no _fused_rms_norm")
needs_compiler = pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device")
#: A kernel for CUDA is there before the virtual device is installed, as in a build with CUDA.
PROGRAM = """
import json, sys
from edge_offload.device import installation
libraries = installation.preload_guard()
import torch
from edge_offload.device.remotes.executor import WorkerRemote
from edge_offload.mode import parse_mode

def never(*arguments):
    raise AssertionError("the program's own kernel was called")

if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_rms_norm", "CUDA"):
    cuda = torch.library.Library("aten", "IMPL", "CUDA")
    cuda.impl("_fused_rms_norm", never)
made = installation.install_device(libraries, WorkerRemote("cpu", 1), parse_mode(sys.argv[1]))
torch.manual_seed(0)
differing = []
with torch.no_grad():
    for turn in range(4):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for shape, over in (((3, 7), 1), ((2, 5, 64), 2), ((4, 0, 8), 1)):
                x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-over:]).to(dtype)
                for given in (x, torch.stack((x, x), -1)[..., 0], x.transpose(0, 1).contiguous().transpose(0, 1)):
                    for scale in (weight, None):
                        there = None if scale is None else scale.cuda()
                        found = torch.nn.functional.rms_norm(given.cuda(), weight.shape, there)
                        wanted = torch.nn.functional.rms_norm(given, weight.shape, scale)
                        both = torch.ops.aten._fused_rms_norm(given.cuda(), weight.shape, there, 1e-3)
                        parts = torch.ops.aten._fused_rms_norm(given, weight.shape, scale, 1e-3)
                        for a, b in zip((found, *both), (wanted, *parts)):
                            if not torch.equal(a.cpu(), b) or a.stride() != b.stride() or a.dtype != b.dtype:
                                differing.append(str((dtype, shape, given.stride(), scale is None)))
def gradients(device):
    x = torch.linspace(-1, 1, 30).view(5, 6).to(device).requires_grad_()
    weight = torch.ones(6, device=device).requires_grad_()
    (torch.nn.functional.rms_norm(x, (6,), weight) ** 3).sum().backward()
    return x.grad.cpu(), weight.grad.cpu()
for a, b in zip(gradients("cuda"), gradients("cpu")):
    if not torch.allclose(a, b, rtol=1e-5, atol=1e-6):
        differing.append(f"a gradient: {(a - b).abs().max()}")
names = {made.native.entry(entry)[0] for entry in range(made.native.counters()["entries"])}
print(json.dumps({"differing": differing, "whole": "aten::_fused_rms_norm" in names}))
"""


@needs_rms_norm
def test_a_fused_rms_norm_has_the_bits_of_rms_norm() -> None:
    operator = resolve_operator("aten::_fused_rms_norm")
    x, weight = torch.randn(2, 5, 64), torch.randn(64)
    assert torch.equal(operator(x, [64], weight, 1e-6)[0], torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))


@needs_rms_norm
@needs_compiler
@pytest.mark.process
@pytest.mark.parametrize("mode", ["lazy", "replay"])
def test_a_program_on_a_build_with_cuda_has_the_bits_of_the_cpu_in_rms_norm(mode: str) -> None:
    libraries.build_device()
    command = [sys.executable, "-c", PROGRAM, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"differing": [], "whole": True}
