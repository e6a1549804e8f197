"""What only a GPU can show: ``pytest -m gpu`` on a machine that has one. It has not been run on any yet."""

from __future__ import annotations

import pytest
import torch

from edge_offload.execute.engines import seat, table
from edge_offload.execute.engines.base import CUDA, EXACT, TOLERANCE, find_mismatch
from edge_offload.execute.module import ModuleExecutor
from edge_offload.models import registry

pytestmark = pytest.mark.gpu
NAMES = [backend.name for backend in table.BACKENDS if backend.device == CUDA] + ["tensorrt/pycuda"]


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_replaces_torch_within_the_tolerance_of_its_class(name):
    if torch.version.cuda is None or not torch.cuda.is_available():
        pytest.skip("no GPU: TensorRT, its buffers and CUDA graphs have not been run")
    try:
        backend = table.pick_backend(name, CUDA)
    except Exception as error:
        pytest.skip(str(error))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    network = registry.build_module("mobilenet_v3_large")
    plain, fast = ModuleExecutor(network, CUDA), ModuleExecutor(network, CUDA, name)
    frames = [torch.rand(1, 3, 224, 224) for _ in range(8)]
    fast.run_module([frames[0]])
    assert fast.engine_ready(900)
    for frame in frames[: seat.TRIALS]:
        fast.run_module([frame])
    assert fast.engine != "eager", fast.engine_state()
    for frame in frames:
        want, report = plain.run_module([frame]), fast.run_module([frame])
        assert report.engine.startswith(name.split("/")[0])
        assert find_mismatch(want.outputs, report.outputs, TOLERANCE[backend.accuracy]) == ""
        assert backend.accuracy != EXACT or torch.equal(want.outputs[0], report.outputs[0])
    fast.close()
