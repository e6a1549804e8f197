"""TensorRT without a GPU: parsed and built by NVIDIA's own library, driven through real pycuda on stand-ins."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
import torch

from edge_offload.errors import Unsupported
from edge_offload.execute.engines import base, buffers, export, seat, table, tensor_rt
from edge_offload.execute.engines.base import CLOSE, REDUCED, TOLERANCE, find_mismatch
from edge_offload.execute.engines.tensor_rt import TensorRTEngine
from edge_offload.execute.module import ModuleExecutor
from tests.execute.engines.driver import execution, mutations, prepare
from tests.execute.engines.driver.conftest import driven
from tests.execute.engines.driver.small import Small, picture


def taken_over(executor: ModuleExecutor) -> ModuleExecutor:
    executor.run_module([picture(0)])
    assert executor.engine_ready(120)
    for number in range(seat.TRIALS):
        executor.run_module([picture(number)])
    assert executor.engine.startswith("tensorrt"), executor.engine_state()
    return executor


def in_a_thread(work):
    """As a callback of ROS: in a thread that made nothing. Its result, or its error."""
    done = []

    def run():
        try:
            done.append((work(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = done[0]
    if error is not None:
        raise error
    return result


def test_it_computes_what_torch_does_and_gives_everything_back(backend, allocations):
    before, plain = allocations(), ModuleExecutor(Small())
    executor = taken_over(ModuleExecutor(Small(), engine="tensorrt"))
    running = allocations()
    assert running != before
    for number in range(10):
        want, report = (
            plain.run_module([picture(number)]),
            in_a_thread(lambda n=number: executor.run_module([picture(n)])),
        )
        assert re.match(rf"tensorrt {prepare.TENSORRT} fp32 plan [0-9a-f]{{12}}$", report.engine)
        assert find_mismatch(want.outputs, report.outputs, TOLERANCE[CLOSE]) == ""
    assert allocations() == running, "a run keeps nothing"
    executor.close()
    ends = time.monotonic() + 10
    while allocations() != before and time.monotonic() < ends:
        time.sleep(0.01)
    assert allocations() == before


def test_weights_off_by_a_thousandth_never_take_over(backend, monkeypatch):
    real = seat.export_onnx

    def off(given, inputs, *typed):
        other = Small()
        with torch.no_grad():
            for one in other.parameters():
                one.mul_(1.001)
        return real(other, inputs, *typed)

    monkeypatch.setattr(seat, "export_onnx", off)
    executor = ModuleExecutor(Small(), engine="tensorrt")
    executor.run_module([picture(0)])
    assert executor.engine_ready(120)
    assert executor.run_module([picture(1)]).engine == "eager"
    assert "off by" in executor.engine_state()[0]


def test_frames_are_answered_while_nvidias_builder_works(backend, trt, monkeypatch):
    """The builder releases the interpreter, so frames do not wait for it: seen in one of three builds at least."""
    real, builds = backend.build, []

    def build(onnx, threads):
        started_s = time.monotonic()
        try:
            return real(onnx, threads)
        finally:
            builds.append((started_s, time.monotonic()))

    monkeypatch.setattr(backend, "build", build)
    for attempt in range(1, 4):
        network = Small()
        with torch.no_grad():
            network.body[0].bias += attempt  # another network than the one that the cache has
        executor = ModuleExecutor(network, engine="tensorrt")
        engines, ends = [executor.run_module([picture(0)]).engine], []
        while len(builds) < attempt:
            engines.append(executor.run_module([picture(len(engines))]).engine)
            ends.append(time.monotonic())
        assert set(engines) == {"eager"}
        started_s, ended_s = builds[-1]
        quarter_s = (ended_s - started_s) / 4
        assert executor.engine_ready(120)
        # of a builder that keeps the interpreter, frames end only just before and just after its work
        if any(started_s + quarter_s < end < ended_s - quarter_s for end in ends):
            return
    raise AssertionError((builds, ends))


@pytest.fixture(scope="session")
def without_a_line(trt, cuda):
    """By the line of PycudaBuffers that was missing: what went wrong."""
    done = subprocess.run([sys.executable, "-m", mutations.__name__], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_with_every_line_nothing_is_wrong(without_a_line):
    assert without_a_line["whole"] == ""
    kinds = {mutations.CALL.search(mutations.SOURCE[line]).group(1) for line in mutations.LINES}
    assert kinds == {"push", "pop", "synchronize", "free", "detach"}


@pytest.mark.parametrize("line", [mutations.name_of(line) for line in mutations.LINES])
def test_without_one_push_synchronize_or_free_something_is_wrong(line, without_a_line):
    assert without_a_line[line] != ""


@pytest.fixture
def plan(backend):
    return backend.build(export.export_onnx(Small().eval(), [picture(0)]), 1)


def test_a_plan_that_is_not_used_is_evicted_and_torch_continues(backend, bindings, cache, monkeypatch):
    monkeypatch.setattr(execution.StandInRuntime, "deserialize_cuda_engine", lambda *_: None)
    executor = ModuleExecutor(Small(), engine="tensorrt")
    executor.run_module([picture(0)])
    assert executor.engine_ready(120)
    assert "TensorRT cannot load the plan" in executor.engine_state()[0]
    assert list(cache.glob("*.engine")) == []
    assert executor.run_module([picture(1)]).engine == "eager"


def test_a_device_that_is_full_is_given_back_what_was_taken(backend, bindings, plan, allocations, cuda, monkeypatch):
    before, allocate = allocations(), buffers.PycudaBuffers.allocate_buffer

    def full(self, name, shape, dtype):
        if self._device:
            raise cuda.MemoryError("out of memory")
        return allocate(self, name, shape, dtype)

    monkeypatch.setattr(buffers.PycudaBuffers, "allocate_buffer", full)
    with pytest.raises(cuda.MemoryError):
        in_a_thread(lambda: TensorRTEngine(bindings, plan, buffers.PycudaBuffers()))
    assert allocations() == before


def test_what_the_stand_in_for_execution_has_the_real_bindings_have(trt):
    """Class by class: each method, property and argument."""
    pairs = {
        execution.StandInRuntime: trt.Runtime, execution.StandInEngine: trt.ICudaEngine,
        execution.StandInContext: trt.IExecutionContext,
    }  # fmt: skip
    checked = 0
    for stand_in, real in pairs.items():
        for name, method in vars(stand_in).items():
            if name.startswith("_") and name != "__init__":
                continue
            documentation = getattr(real, name).__doc__
            if stand_in is execution.StandInRuntime and name == "__init__":
                assert "logger: " in documentation
            elif name != "__init__":
                for argument in list(inspect.signature(method).parameters)[1:]:
                    assert f"{argument}: " in documentation.split("\n\n\n")[0] + documentation, (
                        f"{real.__name__}.{name}({argument})"
                    )
                    checked += 1
    assert checked >= 7
    assert "num_io_tensors" in dir(trt.ICudaEngine)
    assert {"INPUT", "OUTPUT"} <= set(dir(trt.TensorIOMode))


def test_every_type_of_tensorrts_that_numpy_has_is_supported(trt):
    types = {name: getattr(trt.DataType, name) for name in tensor_rt._DTYPES}
    for dtype in types.values():
        assert tensor_rt.numpy_type(dtype) == np.dtype(trt.nptype(dtype))
    with pytest.raises(Unsupported, match="BF16 is none of numpy's"):
        tensor_rt.numpy_type(trt.DataType.BF16)


def test_ten_bits_of_mantissa_are_not_taken_for_fp32(bindings):
    flags = []

    class Watched(bindings.Builder):
        def build_serialized_network(self, network, config):
            flags.append(config.get_flag(bindings.BuilderFlag.TF32))
            return super().build_serialized_network(network, config)

    bindings.Builder = Watched
    driven(bindings).build(export.export_onnx(Small().eval(), [picture(0)]), 1)
    assert flags == [False]


def test_half_precision_is_a_flag_up_to_10_and_a_type_of_the_network_after(bindings, trt, monkeypatch):
    flagged = types.SimpleNamespace(__version__="10.3.0", BuilderFlag=types.SimpleNamespace(FP16=0))
    assert driven(flagged, "fp16").export_dtype() is None
    assert driven(bindings, "fp16").export_dtype() is torch.float16
    monkeypatch.setattr(table, "BACKENDS", (driven(bindings, "fp16"),))
    assert table.pick_backend("auto", "cuda") is None, "nobody gets fewer bits unasked"
    executor = taken_over(ModuleExecutor(Small(), engine="tensorrt:fp16"))
    want, report = ModuleExecutor(Small()).run_module([picture(3)]), executor.run_module([picture(3)])
    assert report.outputs[0].dtype is torch.float32
    assert find_mismatch(want.outputs, report.outputs, TOLERANCE[CLOSE]) != ""
    assert find_mismatch(want.outputs, report.outputs, TOLERANCE[REDUCED]) == ""
    executor.close()


def test_an_image_of_bytes_is_taken_into_a_cast_and_nothing_else(bindings, trt, monkeypatch):
    driven(bindings).build(export.export_onnx(Small().eval(), [picture(0)]), 1)
    monkeypatch.setattr(export, "_CastFirst", lambda network, typed: network)
    with pytest.raises(Unsupported, match=r"TensorRT cannot (parse|build) it"):
        driven(bindings).build(export.export_onnx(Small().eval(), [picture(0)]), 1)


@pytest.mark.parametrize("part", ["gpu", "capability", "cuda", "driver"])
def test_another_gpu_or_driver_is_another_entry(backend, cache, monkeypatch, part):
    taken_over(ModuleExecutor(Small(), engine="tensorrt")).close()
    facts = buffers.gpu_facts("pycuda")
    assert (facts["gpu"], facts["capability"], facts["cuda"]) == ("no GPU (stand-in for the driver)", "8.9", "12090")
    monkeypatch.setattr(buffers, "gpu_facts", lambda _: {**facts, part: "another"})
    taken_over(ModuleExecutor(Small(), engine="tensorrt")).close()
    assert len(list(cache.glob("*.engine"))) == 2


def test_two_processes_never_claim_equal_bits_of_kernels_that_were_timed(backend, monkeypatch):
    mine = ModuleExecutor(Small(), engine="tensorrt").engine_facts()
    monkeypatch.setattr(base, "_PROCESS", "another")
    assert mine != ModuleExecutor(Small(), engine="tensorrt").engine_facts()


def test_buffers_may_be_torchs(trt, bindings, monkeypatch):
    """On ordinary memory: the calls of ``torch.cuda`` are counted, and not one is missing where it matters."""
    calls = []

    class Stream:
        cuda_stream = 7

        def __getattr__(self, name):
            assert hasattr(torch.cuda.Stream, name)
            return lambda *_: calls.append(name)

    cuda = types.SimpleNamespace(Stream=Stream, default_stream=str, stream=lambda _: torch.inference_mode())
    assert all(hasattr(torch.cuda, name) for name in vars(cuda))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: calls.append("record_stream"))
    host_bindings, module = execution.Bindings(trt, execution.HostMemory()), Small().eval()
    plan = driven(host_bindings).build(export.export_onnx(module, [picture(0)]), 1)
    engine = TensorRTEngine(host_bindings, plan, buffers.TorchBuffers(cuda, "cpu"))
    for number in range(3):
        with torch.inference_mode():
            want = module(picture(number))
        calls.clear()
        assert find_mismatch(want, engine.run([picture(number)]), TOLERANCE[CLOSE]) == ""
        assert calls == ["wait_stream", "synchronize", "record_stream", "record_stream"]
    engine.close()
