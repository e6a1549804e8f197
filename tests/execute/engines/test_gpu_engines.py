"""Engines for a GPU where there is none: what they are called, what each lacks here, and CUDA graphs on a stand-in."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import subprocess
import sys
import types

import pytest
import torch

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.engines import cuda_graph, onnx_runtime, shared_library, table
from edge_offload.execute.engines.base import (
    CLOSE,
    CUDA,
    EXACT,
    REDUCED,
    Built,
    driver_release,
    fingerprint_entry,
    installed_version,
)
from edge_offload.execute.engines.cuda_graph import CudaGraphBackend, CudaGraphEngine
from edge_offload.execute.engines.export import export_onnx
from edge_offload.execute.engines.seat import Seat
from edge_offload.execute.engines.tensor_rt import TensorRT
from edge_offload.execute.module import ModuleExecutor
from edge_offload.older_torch import CAPTURES_BESIDE_THREADS
from tests.execute.engines import graph_stand_in
from tests.execute.engines.conftest import Doubling


def test_classes_bound_the_difference_of_an_engine_from_torch():
    assert {backend.name: backend.accuracy for backend in table.BACKENDS if backend.device == CUDA} == {
        "tensorrt": CLOSE, "tensorrt:fp16": REDUCED, "onnxruntime:cuda": CLOSE, "onnxruntime:tensorrt": REDUCED,
        "eager+graph": EXACT,
    }  # fmt: skip


def test_auto_is_an_engine_where_torch_computes_and_never_one_of_fewer_bits(monkeypatch):
    class Fast(Built):
        distributions = ("numpy",)

        def __init__(self, name, device, accuracy):
            self.name, self.device, self.accuracy = name, device, accuracy

    kinds = [Fast(f"{device} {one}", device, one) for device in ("cuda", "cpu") for one in (REDUCED, CLOSE)]
    monkeypatch.setattr(table, "BACKENDS", tuple(kinds))
    monkeypatch.setattr(table, "_has_exporter", lambda: True)
    assert [table.pick_backend("auto", device).name for device in ("cpu", "cuda")] == ["cpu close", "cuda close"]


def test_exact_is_torchs_kernels_as_steps_on_a_cpu_and_as_graphs_on_a_gpu(monkeypatch):
    assert table.pick_backend("exact", "cpu").name == "eager+steps"
    assert fingerprint_entry(table.pick_backend("exact", "cpu")) == "", "it has torch's bits"
    assert table.pick_backend("exact", "cuda") is None, "there is no GPU here"
    monkeypatch.setattr(CudaGraphBackend, "missing_parts", lambda self: "")
    assert isinstance(table.pick_backend("exact", "cuda"), CudaGraphBackend)
    assert fingerprint_entry(table.pick_backend("exact", "cuda")) == "", "it has torch's bits"
    assert [table.engine_for_model("movenet=auto", name, "exact") for name in ("movenet", "kapao")] == ["auto", "exact"]
    assert table.engine_for_model("eager", "kapao", "exact") == "eager"


def test_a_fallback_of_an_unnamed_engine_to_torch_is_silent():
    class Refusing(CudaGraphBackend):
        def capture(self, run, inputs):
            raise RuntimeError("operation not permitted when stream is capturing")

    for named in (True, False):
        seat = Seat(Doubling(), lambda inputs: (inputs[0] * 2,), Refusing(), named=named)
        seat.run([torch.arange(4.0)])
        assert seat.wait_until_built(60.0)
        state, amber = seat.state()
        assert "cannot be captured" in state
        assert amber is named


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorrt/torches", "no buffers 'torches'; use one of: torch, pycuda"),
        ("onnxruntime/pycuda", "engine 'onnxruntime' has no buffers to choose"),
        ("tensorrt:int8", "no engine 'tensorrt:int8'"),
    ],
)
def test_what_cannot_be_meant_is_refused(name, message):
    with pytest.raises(BadInput, match=message):
        table.pick_backend(name)


def test_buffers_are_for_tensorrt_only():
    assert table.with_buffers("auto,movenet=tensorrt:fp16", "pycuda") == "auto,movenet=tensorrt:fp16/pycuda"
    assert table.engine_for_model("auto,movenet=tensorrt:fp16/pycuda", "movenet") == "tensorrt:fp16/pycuda"
    with pytest.raises(BadInput, match="has no buffers to choose"):
        table.with_buffers("onnxruntime:tensorrt", "pycuda")


def test_each_engine_names_what_it_lacks(monkeypatch):
    with pytest.raises(Unsupported, match=r"'tensorrt/pycuda' is absent: not installed: tensorrt.*JetPack"):
        table.pick_backend("tensorrt/pycuda")
    with pytest.raises(Unsupported, match="not installed: onnxruntime-gpu"):
        table.pick_backend("onnxruntime:cuda")
    with pytest.raises(Unsupported, match="needs an NVIDIA GPU that torch can use"):
        table.pick_backend("eager+graph")
    from edge_offload.execute.engines import tensor_rt

    monkeypatch.setattr(tensor_rt, "installed_version", lambda _: "8.2.1.8")
    assert TensorRT().missing_parts() == "TensorRT 8.5 or later (JetPack 5.1); this is 8.2.1.8"
    monkeypatch.setattr(tensor_rt, "installed_version", lambda _: "8.5.2.2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert TensorRT(buffers="pycuda").missing_parts() == "pycuda, for buffers where torch has no CUDA"
    assert TensorRT(buffers="torch").missing_parts() == ""


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """All packages are installed; ONNX Runtime's is a folder of the test's."""
    monkeypatch.setattr(table, "installed_version", lambda backend: "1.20.0")
    monkeypatch.setattr(table, "_has_exporter", lambda: True)
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError")
    find = importlib.util.find_spec
    spec = importlib.util.spec_from_file_location("onnxruntime", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: spec if name == "onnxruntime" else find(name))
    return package / "capi"


def listed():
    return {one.name: one for one in table.list_engines() if one.name in ("onnxruntime:cuda", "onnxruntime:tensorrt")}


def test_onnx_runtime_has_no_gpu_where_torch_finds_none(packages):
    for one in listed().values():
        assert not one.present
        assert one.detail == "needs an NVIDIA GPU that torch can use"
        assert "nvidia-smi" in one.remedy
        with pytest.raises(Unsupported, match=r"is absent: needs an NVIDIA GPU.*; check nvidia-smi"):
            table.pick_backend(one.name)


def test_onnx_runtime_is_present_if_its_providers_have_their_libraries(packages, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "pip install onnxruntime-gpu" in listed()["onnxruntime:cuda"].remedy, "a build without the provider"
    # any library does for CUDA's provider, and one that needs what no machine has for TensorRT's
    library = pathlib.Path(importlib.util.find_spec("_ctypes").origin).read_bytes()
    (packages / "libonnxruntime_providers_cuda.so").write_bytes(library)
    (packages / "libonnxruntime_providers_tensorrt.so").write_bytes(library.replace(b"libc.so.6", b"libnvi.so"))
    engines = listed()
    assert engines["onnxruntime:cuda"].present
    assert engines["onnxruntime:tensorrt"].detail == "needs libnvi.so, for libonnxruntime_providers_tensorrt.so"
    assert engines["onnxruntime:tensorrt"].remedy == "put libnvi.so where the loader looks (LD_LIBRARY_PATH)"
    (packages / "libnvi.so").write_bytes(library)
    assert listed()["onnxruntime:tensorrt"].present, "it is beside the provider"


def test_what_is_no_library_needs_nothing(tmp_path):
    path = tmp_path / "file"
    assert shared_library.needed_libraries(path) == []
    for text in (b"", b"\x7fELF\x02", b"\x7fELF\x02" + b"\xff" * 59, b"words" * 40):
        path.write_bytes(text)
        assert shared_library.needed_libraries(path) == []


def test_a_package_of_the_systems_has_a_version_without_being_imported(tmp_path, monkeypatch):
    (tmp_path / "tensorrt_of_debian").mkdir()
    text = 'raise AssertionError\n__version__ = "8.5.2.2"\n'
    (tmp_path / "tensorrt_of_debian" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    backend = TensorRT()
    backend.module, backend.distributions = "tensorrt_of_debian", ("no such distribution",)
    assert installed_version(backend) == "8.5.2.2"


def test_a_fingerprint_omits_exact_engines():
    assert fingerprint_entry(None) == fingerprint_entry(CudaGraphBackend()) == ""
    assert fingerprint_entry(TensorRT()).startswith("tensorrt absent fp32, kernels picked by timing in process ")
    assert isinstance(driver_release(), str)


def test_onnx_runtime_that_would_compute_on_the_cpu_is_no_gpu_engine(monkeypatch):
    pytest.importorskip("onnx", reason="networks are exported with the package onnx")
    onnxruntime = pytest.importorskip("onnxruntime", reason="it is the engine")
    onnx = export_onnx(Doubling(), [torch.ones(3)])
    for name in ("onnxruntime:cuda", "onnxruntime:tensorrt"):
        backend = onnx_runtime.OnnxRuntime(name)
        with pytest.raises(Unsupported, match=r"this ONNX Runtime has no .*; pip install onnxruntime-gpu"):
            backend.load(backend.build(onnx, 1), 1)
    # with its package, but without CUDA's libraries, it takes the CPU and says so in its log alone
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"), pytest.raises(
        Unsupported, match="would compute on the CPU"
    ):
        onnx_runtime.OnnxRuntime("onnxruntime:cuda").load(onnx, 1)


def test_a_graph_is_for_the_gpu_and_an_engine_of_the_cpu_is_not(monkeypatch):
    monkeypatch.setattr(CudaGraphBackend, "missing_parts", lambda _: "")
    executor = ModuleExecutor(Doubling(), engine="eager+graph")
    assert executor.run_module([torch.ones(3)]).engine == "eager"
    assert executor.engine_state() == ("eager: engine eager+graph is for device cuda, and this one is cpu", True)


def test_torch_2_0_has_no_graphs_that_are_captured_beside_other_threads(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_graph, "CAPTURES_BESIDE_THREADS", False)
    assert CudaGraphBackend().missing_parts() == "torch 2.1 or later"


class Branch(torch.nn.Module):
    """Views, in-place operators, two outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(6, 8)

    def forward(self, x, y):
        both = self.linear(torch.cat([x, y], 1)).relu_()
        return both[:, :4] * 2, both.sum(1).add_(1.0)


def test_a_graph_gives_torchs_bits_for_every_input(monkeypatch):
    recorded = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda one, _: recorded.append(one))
    module, draw = Branch().eval(), torch.Generator().manual_seed(0)

    def inputs():
        return [torch.rand(5, 3, generator=draw), torch.rand(5, 3, generator=draw)]

    engine = CudaGraphEngine(lambda given: module(*given), inputs(), graph_stand_in)
    results = []
    for _ in range(5):
        given = inputs()
        engine._stream.calls.clear()
        results.append((engine.run(given), module(*given)))
        assert engine._stream.calls == ["wait_stream", "synchronize"]
    for outputs, want in results:
        assert all(map(torch.equal, outputs, want)), "and the next run has not overwritten it"
    assert len(recorded) == 10, "the caller's stream may still read what is returned"
    engine.close()


@pytest.mark.skipif(not CAPTURES_BESIDE_THREADS, reason="torch 2.0 captures no graph beside other threads")
def test_what_the_stand_in_for_graphs_has_torch_has():
    for name in ("CUDAGraph", "Stream", "graph", "stream", "default_stream"):
        assert hasattr(torch.cuda, name)
    for kind in (graph_stand_in.CUDAGraph, graph_stand_in.Stream):
        for name, method in vars(kind).items():
            if isinstance(method, types.FunctionType) and not name.startswith("_"):
                assert hasattr(getattr(torch.cuda, kind.__name__), name), f"{kind.__name__}.{name}"
    accepted = inspect.signature(torch.cuda.graph.__init__).parameters
    assert set(inspect.signature(graph_stand_in.graph).parameters) <= set(accepted)


@pytest.mark.process
def test_on_a_device_cuda_an_engine_gets_and_gives_tensors_of_that_device(monkeypatch):
    """The device is our virtual one: what is not on it cannot be mixed with what is."""
    pytest.importorskip("onnx", reason="networks are exported with the package onnx")
    monkeypatch.delenv("EDGE_OFFLOAD_CACHE")  # native libraries are where they always are
    code = [sys.executable, "-m", "tests.execute.engines.virtual_gpu_app"]
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--", *code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    first_line, graph = done.stdout.splitlines()
    assert first_line.startswith("again ")
    assert graph.startswith("eager | ")
    assert "torch.cuda.CUDAGraph is not there on the virtual device" in graph
