"""Same fingerprint, same bits; and what differs is said in words."""

import argparse
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edge_offload.errors import BadInput, DeviceLost, LinkLost, OutOfMemory, ProtocolError, Unsupported
from edge_offload.execute import devices, fallback, heap
from edge_offload.execute import fingerprint as fingerprints
from edge_offload.execute import module as execute_module
from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.fallback import PAUSE_S, CpuFallback
from edge_offload.execute.fingerprint import fingerprint_of, list_differences, two_torches
from edge_offload.execute.module import ModuleExecutor
from edge_offload.execute.session import worker
from edge_offload.execute.tensors import TensorSpec, check_descriptors, pack_tensors, unpack_tensors
from edge_offload.execute.threads import parse_cores, pin
from edge_offload.server.device import ComputeDevice
from edge_offload.server.settings import Compute


def test_fingerprint_is_plain_and_equal_to_itself():
    import json

    facts = fingerprint_of("cpu")
    assert list_differences(facts, json.loads(json.dumps(facts))) == []
    assert facts["torch"] == torch.__version__


def test_fingerprint_notices_what_changes_bits():
    before = fingerprint_of()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert list_differences(fingerprint_of(), before) == [f"threads: {threads + 1} here, {threads} there"]
    finally:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("medium")
    try:
        assert "matmul precision" in list_differences(fingerprint_of(), before)[0]
    finally:
        torch.set_float32_matmul_precision("highest")
    if torch.set_flush_denormal(True):
        try:
            assert "denormals" in list_differences(fingerprint_of(), before)[0]
        finally:
            torch.set_flush_denormal(False)


@pytest.fixture
def cudnn_flags():
    flags = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [flags[0].benchmark, flags[0].deterministic, flags[0].allow_tf32, flags[1].allow_tf32]
    yield
    flags[0].benchmark, flags[0].deterministic, flags[0].allow_tf32, flags[1].allow_tf32 = before


@pytest.mark.parametrize("allowed", [False, True])
def test_a_gpu_computes_without_tf32_unless_the_environment_allows_it(cudnn_flags, monkeypatch, allowed):
    monkeypatch.delenv(devices.TF32, raising=False)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not allowed
    torch.backends.cudnn.benchmark = True
    if allowed:
        monkeypatch.setenv(devices.TF32, "0")  # which has the variable removed again when the test ends
        devices.allow_tf32()
    assert devices.fix_kernel_choice(torch.device("cuda")) == torch.device("cuda")
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark


def test_a_cpu_leaves_the_flags_of_gpus(cudnn_flags):
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    devices.fix_kernel_choice(torch.device("cpu"))
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.process
def test_instruction_set_shows(tmp_path):
    code = "from edge_offload.execute.fingerprint import fingerprint_of as f; print(f()['cpu_capability'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().lower() in ("default", "no avx")


def test_a_fact_that_one_side_does_not_know_is_a_difference():
    assert list_differences({"threads": 1, "new": 5}, {"threads": 1}) == ["new: 5 here, not stated there"]


@pytest.mark.process
def test_pinning_keeps_every_thread_on_the_cores():
    allowed = sorted(os.sched_getaffinity(0))
    code = (
        "import os, threading, torch\n"
        "from edge_offload.execute.threads import pin\n"
        "torch.set_num_threads(2); torch.randn(400, 400) @ torch.randn(400, 400)\n"
        f"pin(1, [{allowed[0]}])\n"
        "print(torch.get_num_threads(), {tuple(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"1 {{({allowed[0]},)}}"
    with pytest.raises(BadInput, match="may use"):
        pin(cores=[65535])


@pytest.mark.parametrize(("text", "cores"), [("0", {0}), ("0,2-4", {0, 2, 3, 4}), (" 1 , 3", {1, 3})])
def test_core_lists(text, cores):
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "0-999999999", "-1"])
def test_bad_core_lists(text):
    with pytest.raises(BadInput, match="cores"):
        parse_cores(text)


def test_absent_devices_report_why():
    assert devices.pick_device("cpu").type == "cpu"
    for backend in devices.list_backends():
        assert backend.detail
        if not backend.present:
            assert backend.remedy
            with pytest.raises(Unsupported, match="absent"):
                devices.pick_device(backend.name)
    with pytest.raises(BadInput, match="no device"):
        devices.pick_device("abacus")


class Returns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x)


@pytest.mark.parametrize("what", [lambda x: {"a": x}, lambda x: (x, 3), lambda x: None])
def test_what_is_no_tensor_is_refused_by_name(what):
    with pytest.raises(Unsupported, match="the model returned a"):
        ModuleExecutor(Returns(what)).run_module([torch.ones(1)])


def test_a_gpu_without_memory_is_retried_later_and_a_failed_one_never():
    spare = CpuFallback("cuda:1")
    assert spare.stands_in(0.0) == ""
    now = time.monotonic()
    note = spare.note_failure(OutOfMemory("it is full"), for_good=False)
    assert note == "computed on the CPU in place of cuda:1: it is full"
    assert "it is full" in spare.stands_in(now + 0.9 * PAUSE_S)
    assert spare.stands_in(now + 10 * PAUSE_S) == ""
    spare.note_failure(OutOfMemory("again"), for_good=False)
    assert spare.stands_in(now + 1.9 * PAUSE_S), "for longer"
    assert "it is gone" in spare.note_failure(DeviceLost("it is gone"), for_good=True)
    assert spare.stands_in(1e12)


class FullGpu(ModuleExecutor):
    """Stands for an executor on a GPU whose memory is full at every attempt but one; one run takes a second."""

    def __init__(self, good_attempt):
        super().__init__(nn.Identity())
        self.device, self._fallback = torch.device("cuda"), CpuFallback("cuda")
        self.good_attempt, self.now_s, self.attempts_s = good_attempt, 0.0, []

    def monotonic(self):
        return self.now_s

    def _run_on(self, inputs, module, device):
        if device.type == "cuda":
            self.attempts_s.append(self.now_s)
            if len(self.attempts_s) != self.good_attempt:
                raise OutOfMemory("it is full")
        self.now_s += 1.0
        return super()._run_on(inputs, module, torch.device("cpu"))


def test_a_failure_after_a_success_of_the_gpu_costs_the_first_pause_again(monkeypatch):
    executor = FullGpu(good_attempt=4)
    for module in (execute_module, fallback):
        monkeypatch.setattr(module, "time", executor)
    for _ in range(20):
        executor.run_module([torch.ones(1)])
    assert executor.attempts_s == [0.0, 2.0, 6.0, 14.0, 15.0, 17.0]


@pytest.mark.parametrize(("raised", "expected"), [
    (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried ...\nmore"), OutOfMemory),
    (RuntimeError("CUDA error: an illegal memory access\nmore"), DeviceLost),
    (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), DeviceLost),
    (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling ..."), DeviceLost),
    (RuntimeError("CUDA error: out of memory\nmore"), OutOfMemory),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), OutOfMemory),
    (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. A non-contiguous input"), RuntimeError),
    (RuntimeError("CUDA error: invalid configuration argument"), RuntimeError),
    (torch.linalg.LinAlgError("cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED, NaN"), torch.linalg.LinAlgError),
    (RuntimeError("shapes do not fit"), RuntimeError), (BadInput("wrong"), BadInput),
])  # fmt: skip
def test_failures_of_a_gpu_are_distinguished_from_those_of_a_program(raised, expected):
    with pytest.raises(expected) as result, gpu_failures():
        raise raised
    assert type(result.value) is expected
    assert "\n" not in str(result.value)


@pytest.mark.parametrize(("device", "selected"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_what_an_executor_makes_without_a_device_is_on_its_gpu(monkeypatch, device, selected):
    made, chosen = [], []
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: chosen.append(str(one)))
    monkeypatch.setattr(heap, "retain_freed_memory", lambda: True)

    def session(args):
        made.append(list(chosen))
        raise LinkLost("far enough")

    monkeypatch.setattr(worker, "make_session", session)
    monkeypatch.setattr(devices, "device_facts", lambda *_: {})
    with pytest.raises(LinkLost, match="far enough"):
        worker.serve_forever(None, argparse.Namespace(device=device, cores="", threads=0, storage_bytes=0))
    assert made == [selected], "it was chosen before anything was made"


def test_executor_leaves_training_mode_and_writes_no_gradients():
    executor = ModuleExecutor(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)))
    one, two = (executor.run_module([torch.ones(1, 4)]).outputs[0] for _ in range(2))
    assert torch.equal(one, two)
    assert not one.requires_grad
    one.add_(1)


def test_module_sees_contiguous_aligned_inputs_whatever_comes():
    executor = ModuleExecutor(Returns(lambda x: torch.tensor([x.data_ptr() % 64, x.is_contiguous()])))
    base = torch.zeros(13, 8)
    for odd in (base.reshape(-1)[1:], base.t(), base[:, 3:]):
        assert executor.run_module([odd]).outputs[0].tolist() == [0, 1]


DTYPES = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool]


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4)), max_size=5),
    st.sampled_from(["auto", "raw"]),
)
def test_tensors_survive_the_wire_bit_for_bit(kinds, codec):
    rng = np.random.default_rng(len(kinds))
    tensors = []
    for dtype, shape in kinds:
        spec = TensorSpec(str(dtype).replace("torch.", ""), tuple(shape))
        if dtype is torch.bool:
            tensors.append(torch.from_numpy(rng.integers(0, 2, shape).astype(bool)))
        else:
            raw = torch.from_numpy(rng.integers(0, 256, spec.nbytes, dtype=np.uint8))
            tensors.append((raw.view(dtype) if spec.nbytes else torch.empty(0, dtype=dtype)).reshape(shape))
    descriptors, buffers = pack_tensors(tensors, codec)
    back = unpack_tensors(descriptors, [memoryview(bytes(part)) for part in buffers])
    for sent, got in zip(tensors, back):
        assert (sent.dtype, sent.shape) == (got.dtype, got.shape)
        if sent.numel():
            assert got.data_ptr() % 64 == 0, "kernels may take another path for unaligned memory"
            assert torch.equal(sent.reshape(-1).view(torch.uint8), got.reshape(-1).view(torch.uint8))


def test_bounds_hold_before_decoding():
    descriptors, buffers = pack_tensors([torch.zeros(1000)])
    with pytest.raises(ProtocolError, match="4000 bytes where 3999"):
        unpack_tensors(descriptors, buffers, max_bytes=3999)
    with pytest.raises(ProtocolError, match="claim"):
        check_descriptors(descriptors, len(buffers) + 1)
    with pytest.raises(BadInput, match="do not fit"):
        check_descriptors(descriptors, len(buffers), [TensorSpec("float32", (999,))])


def test_dtypes_that_do_not_travel_are_named():
    with pytest.raises(BadInput, match="complex32"):
        pack_tensors([torch.zeros(2, dtype=torch.complex32)])


@pytest.mark.parametrize(
    ("robot", "server", "reported"),
    [
        ("2.13.0+cpu", "2.15.0+cu132", ["torch==2.13.0 on the server", "torch==2.15.0 on the robot"]),
        ("2.4.0a0+07cecf4168.nv24.05", "2.13.0", ["torch==2.4.0 on the server"]),
        ("2.13.0+cpu", "2.13.0+cu130", []),  # another build: the same operators
        ("2.13.0", None, []),
        ("2.13.0", {"a": 1}, []),
        ("2.13.0", "not a version", []),
    ],
)
def test_two_versions_of_torch_are_reported_with_the_packages_to_install(robot, server, reported):
    message = two_torches({"torch": robot}, {"torch": server})
    assert bool(message) == bool(reported)
    assert all(part in message for part in reported)
    assert bool(reported) == ("random numbers" in message)
    assert "\n" not in message
    assert two_torches({"torch": robot}, server) == "", "a fingerprint that is none"


def test_a_server_sends_robots_the_cudnn_flags_that_it_computes_with(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(fingerprints, "device_name", str)
    monkeypatch.setattr(devices, "device_facts", lambda device, most_bytes: {})
    device = ComputeDevice(Compute("cpu"))
    device.placed = torch.device("cuda")
    device.prepare_device(0)
    flags = dict(device.fingerprint["cudnn_flags"])
    ModuleExecutor(torch.nn.Identity(), "cuda")
    assert flags == fingerprint_of("cuda")["cudnn_flags"]
    assert (flags["benchmark"], flags["deterministic"]) == (False, True)


@pytest.mark.process
def test_an_executor_closes_what_it_inherits():
    """A program under ``PYTHONWARNINGS=error`` sees no traceback of it."""
    parent, inherited = socket.socketpair()
    parent.close()
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "edge_offload.execute.session.worker"]
    with inherited:
        ended = subprocess.run(
            [*command, str(inherited.fileno())], pass_fds=[inherited.fileno()], capture_output=True, timeout=120
        )
    assert (ended.returncode, ended.stderr) == (1, b"")
