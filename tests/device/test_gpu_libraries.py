"""Libraries that compute beside torch, by stand-ins of their names: refused by name on a GPU, else one line."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "src"
EXEC = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "lazy", "--"]
#: Modules as the real ones are laid out, in the part that makes a context or takes memory.
LAID_OUT = {
    "cupy/__init__.py": """
        from . import cuda
        cuda.set_allocator(lambda size: size)
        def ones(count): return cuda.alloc(8 * count)
        """,
    "cupy/cuda.py": """
        _now = None
        def set_allocator(allocator):
            global _now
            _now = allocator
        def alloc(size): return _now(size)
        """,
    "numba/__init__.py": "def njit(function): return function\n",
    "numba/cuda/__init__.py": """
        from numba.cuda.cudadrv import devices
        def to_device(array): return devices._runtime.get_or_create_context(0)
        """,
    "numba/cuda/cudadrv/__init__.py": "",
    "numba/cuda/cudadrv/devices.py": """
        class _Runtime:
            def get_or_create_context(self, number): return "context"
        _runtime = _Runtime()
        """,
    "cuda/bindings/driver.py": "def cuInit(flags): return 0\ndef cuCtxCreate(*args): return 'context'\n",
    "triton/runtime/jit.py": "class JITFunction:\n    def run(self, *args, **kwargs): return 'ran'\n",
    "jax.py": "",
    "nvidia/dali.py": "",
}


@pytest.fixture
def stand_ins(tmp_path):
    for name, text in LAID_OUT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def run(program, *more):
    path = os.pathsep.join(map(str, (SOURCE, *more)))
    return subprocess.run(
        [*EXEC, sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("import cupy; cupy.cuda.set_allocator(None); cupy.ones(3)", "memory of cupy"),
        ("import numba.cuda; numba.cuda.to_device(1)", "numba.cuda.cudadrv.devices"),
        ("import cuda.bindings.driver as d; d.cuInit(0); d.cuCtxCreate(0)", "cuda.bindings.driver.cuCtxCreate"),
        ("import triton.runtime.jit as j; j.JITFunction().run()", "triton.runtime.jit.JITFunction.run"),
    ],
)
def test_a_context_on_a_gpu_of_this_machine_is_refused_by_name(program, name, stand_ins):
    done = run(program, stand_ins)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert name in last
    assert "run this model in PyTorch" in last


@pytest.mark.process
def test_the_computing_device_is_reported_once(stand_ins):
    done = run("import jax, nvidia.dali, numba; importlib = __import__('importlib'); importlib.reload(jax)", stand_ins)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stderr.strip().splitlines()] == ["jax", "nvidia.dali"]


@pytest.mark.process
@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None,
    reason="without onnxruntime and onnx",
)
def test_a_session_of_onnx_runtime_names_its_provider(tmp_path):
    program = """
import onnx, onnxruntime, sys
from onnx import TensorProto, helper
value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
print(session.get_providers())
onnxruntime.InferenceSession.get_providers = lambda self: ["CUDAExecutionProvider", "CPUExecutionProvider"]
onnxruntime.InferenceSession(model)
"""
    done = run(program)
    assert done.stdout == "['CPUExecutionProvider']\n", done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("edge-offload exec: ")]
    assert lines == [
        "edge-offload exec: onnxruntime computes on this machine: only what PyTorch puts on cuda is offloaded"
    ]
    assert "onnxruntime's CUDAExecutionProvider is not there" in done.stderr.strip().splitlines()[-1]
