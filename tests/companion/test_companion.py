"""The process beside a program computes its network and its half of a plan; its end costs an attempt and no result.

Its GPU is the virtual CUDA device, whose calls lag; no GPU is tested.
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import signal
import socket
import stat
import sys
import threading

import pytest
import torch

from edge_offload.companion import module as companion_module
from edge_offload.companion import process as beside
from edge_offload.companion.memory import MAX_BYTES, SharedRegion, TensorChannel
from edge_offload.errors import BadInput, LinkLost, OutOfMemory, ProtocolError, Refused, RemoteError, Unsupported
from edge_offload.execute import devices, heap
from edge_offload.execute.devices import Virtual
from edge_offload.ir import sequence_hash
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.native import libraries
from edge_offload.protocol.channel import Channel
from edge_offload.runtime.module import OffloadedModule
from tests.modes.split import conftest, split_nets
from tests.modes.split.conftest import NETS, TIMINGS, UNHURRIED
from tests.modes.split.test_runtime import close_to, image, install, random_plan
from tests.modes.split.waiting import until

on_virtual_gpu = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]


@pytest.fixture
def gpu(monkeypatch):
    """A process beside this one that has a GPU."""
    root = str(pathlib.Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("EDGE_OFFLOAD_ASYNC", "1")
    launcher = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]
    monkeypatch.setattr(heap, "LAUNCHER", launcher)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60.0)  # as rospy does in every node that subscribes
    process = beside.ExecutorProcess("cuda", threads=1)
    yield process
    process.close()
    socket.setdefaulttimeout(before)


def reason(module, picture, expected, mode=Mode.LOCAL):
    """Why a frame did not run as asked for; its result is right in any case."""
    outputs, report = module.run_inference([picture], mode)
    close_to(outputs, expected)
    assert report.mode is mode or report.fallback_reason
    return report.fallback_reason


class TestOnItsGpu:
    pytestmark = on_virtual_gpu

    def test_a_network_is_computed_by_the_companion_and_locally_without_it(self, gpu):
        module = split_nets.pictures(seed=3)
        offloaded = OffloadedModule(f"{NETS}:pictures", module, options={"seed": 3}, device=gpu.device, companion=gpu)
        picture = image()
        with torch.no_grad():
            expected = module(picture)
        assert offloaded.state()["local"] == "ready on cuda, in a process beside this one"
        reasons = [""] * 4
        together = threading.Barrier(4)

        def run(number):
            together.wait()
            reasons[number] = reason(offloaded, image(number), _expected(module, image(number)))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert reasons == [""] * 4
        os.kill(gpu.pid, signal.SIGKILL)
        assert "computed on the CPU in place of cuda: the executor process" in reason(offloaded, picture, expected)
        until(lambda: not reason(offloaded, picture, expected), 120)
        offloaded.close()

    def test_other_weights_than_the_programs_are_not_computed_with(self, gpu):
        module = split_nets.pictures(seed=3)
        offloaded = OffloadedModule(f"{NETS}:pictures", module, options={"seed": 4}, device=gpu.device, companion=gpu)
        assert "built with other weights" in reason(offloaded, image(), _expected(module, image()))
        offloaded.close()

    def test_the_robots_half_of_plans_is_computed_by_the_companion(self, gpu, tmp_path):
        server = conftest.Server(tmp_path)
        client = Client(server.address, keys=KeyStore(tmp_path), timings=TIMINGS)
        try:
            module = split_nets.pictures()
            offloaded = OffloadedModule(f"{NETS}:pictures", module, client, device=gpu.device, companion=gpu,
                                        hedging=False, patience=UNHURRIED)  # fmt: skip
            client.start()
            client.wait_ready(60.0)
            picture = image()
            expected = _expected(module, picture)
            until(lambda: offloaded.unavailable_reason(Mode.SPLIT, [picture]) is None, 240,
                  lambda: str(offloaded.state()))  # fmt: skip
            runner = offloaded.runners.by_mode[Mode.SPLIT]
            located = runner.planned([picture]).network.located
            identity = sequence_hash(located.sequence)
            plans = [random_plan(located, random.Random(seed), identity) for seed in range(6)]
            robot = type("Robot", (), {"runner": runner})
            install(robot, picture, plans)
            for place in range(6):
                runner.bandwidth = 1e6 * place
                assert reason(offloaded, picture, expected, Mode.SPLIT) == ""
            os.kill(gpu.pid, signal.SIGKILL)
            assert "the executor process beside this one is gone" in reason(offloaded, picture, expected, Mode.SPLIT)
            until(lambda: not reason(offloaded, picture, expected, Mode.LOCAL), 120)
            until(lambda: offloaded.unavailable_reason(Mode.SPLIT, [picture]) is None, 60)
            install(robot, picture, plans)
            assert reason(offloaded, picture, expected, Mode.SPLIT) == "", "what it had traced is traced again"
            offloaded.close()
        finally:
            client.close()
            server.stop(signal.SIGKILL)


def test_an_answer_to_a_question_that_was_given_up_is_not_taken_for_another() -> None:
    ours, theirs = socket.socketpair()
    forth, back = SharedRegion(), SharedRegion()
    asking = TensorChannel(Channel(ours), forth, back)
    answering = TensorChannel(Channel(theirs), SharedRegion(os.dup(back.fd)), SharedRegion(os.dup(forth.fd)))

    def double(tensors, **facts):
        return facts, [2 * tensor for tensor in tensors]

    def fail(tensors):
        raise OutOfMemory("it is full", "free some")

    serving = threading.Thread(target=_serve_until_closed, args=(answering, {"double": double, "fail": fail}))
    serving.start()
    asking.headers.send({"number": 0, "what": "double", "facts": {}, "tensors": forth.write([torch.ones(3)])})
    facts, (doubled,) = asking.request("double", [torch.full((2,), 4.0)], name="x")
    assert facts == {"name": "x"}
    assert doubled.tolist() == [8.0, 8.0]
    with pytest.raises(OutOfMemory, match="it is full; free some"):
        asking.request("fail")
    with pytest.raises(RemoteError, match="KeyError"):
        asking.request("nothing")
    assert asking.request("double")[1] == []
    asking.headers.close()
    serving.join()


def _serve_until_closed(lane, handlers):
    with pytest.raises(LinkLost):
        lane.serve_requests(handlers)


def _expected(module, picture):
    with torch.no_grad():
        return module.eval()(picture)


def test_tensors_of_all_kinds_lie_in_shared_memory() -> None:
    chooser = random.Random(1)
    writer = SharedRegion()
    reader = SharedRegion(os.dup(writer.fd))
    for _ in range(20):
        tensors = []
        for _ in range(chooser.randint(0, 5)):
            shape = [chooser.randint(0, 40) for _ in range(chooser.randint(0, 3))]
            dtype = chooser.choice([torch.float32, torch.uint8, torch.bool, torch.int64, torch.bfloat16])
            tensors.append(
                torch.randint(0, 2, shape).to(dtype).t() if len(shape) == 2 else torch.zeros(shape, dtype=dtype)
            )
        received = reader.read(writer.write(tensors), copy=bool(chooser.randint(0, 1)))
        assert [item.dtype for item in received] == [item.dtype for item in tensors]
        assert all(torch.equal(one, other) for one, other in zip(received, tensors))
    writer.close()
    reader.close()


def test_shared_memory_is_private_to_the_two_processes() -> None:
    writer = SharedRegion()
    writer.write([torch.zeros(16)])
    assert os.fstat(writer.fd).st_nlink == 0, "no name in any folder"
    assert not os.get_inheritable(writer.fd), "handed on by number only"
    assert stat.S_IMODE(os.fstat(writer.fd).st_mode) == 0o600
    writer.close()


def test_what_lies_outside_shared_memory_is_refused() -> None:
    writer = SharedRegion()
    (placed,) = writer.write([torch.zeros(16)])
    for wrong in (
        {**placed, "at": 1 << 40}, {**placed, "at": -64}, {**placed, "at": 1}, {**placed, "at": "0"},
        {**placed, "shape": [1 << 35]}, {**placed, "shape": [-1]}, {**placed, "dtype": "object"},
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            writer.read([wrong], copy=False)
    with pytest.raises(ProtocolError):
        writer.read({"at": 0}, copy=False)
    with pytest.raises(BadInput, match="in one question"):
        writer.write([torch.empty(1, dtype=torch.uint8).expand(MAX_BYTES + 1)])
    writer.close()


class FailingProcess:
    """Stands for the process; it answers requests by doubling, and fails as often as it is told to."""

    device = torch.device("cuda")

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def run_operation(self, channel, operation, tensors=(), **facts):
        if self.failures:
            raise self.failures.pop(0)
        return {"engine": "doubling", "note": "", "words": "ready", "wrong": False}, [2 * each for each in tensors]

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


class Double(torch.nn.Module):
    def forward(self, x):
        return 2 * x


class Pauses(threading.Event):
    """Takes no time, and notes how long was waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = []

    def wait(self, timeout=None):
        self.waited_s.append(timeout)
        return self.is_set()


@pytest.mark.process
@pytest.mark.parametrize("failure", [LinkLost("it was killed"), RemoteError("no memory"), OutOfMemory("it is full")])
def test_a_process_that_cannot_open_the_network_at_first_is_restarted_and_health_says_so(monkeypatch, failure) -> None:
    monkeypatch.setattr(companion_module, "PAUSE_S", 0.3)
    module = companion_module.CompanionModule(Double(), FailingProcess(failure, failure), "double", {})
    text, wrong = module.engine_state()
    assert wrong
    assert re.search(f"on the CPU in place of cuda: {failure}.*restarted", text)
    execution = module.run_module([torch.ones(2)])
    assert (execution.outputs[0].tolist(), execution.note) == ([2.0, 2.0], text)
    until(lambda: module.engine_state() == ("ready", False), 10)
    assert module.run_module([torch.ones(2)]).engine == "doubling"
    module.close()


@pytest.mark.process
def test_the_pause_before_a_restart_is_the_first_one_again_after_a_success() -> None:
    process, pauses = FailingProcess(), Pauses()
    module = companion_module.CompanionModule(Double(), process, "double", {})
    module._closed = pauses
    for _ in range(2):
        process.failures = [LinkLost("it was killed")] * 3
        module.run_module([torch.ones(2)])
        until(lambda: module.engine_state()[0] == "ready", 10)
    assert pauses.waited_s == [2.0, 4.0, 8.0] * 2
    module.close()


def test_weights_that_differ_are_refused_once(monkeypatch) -> None:
    monkeypatch.setattr(companion_module, "PAUSE_S", 0.0)
    module = companion_module.CompanionModule(Double(), FailingProcess(Refused("other weights")), "double", {})
    for thread in threading.enumerate():
        if thread.name == "edge-offload-executor":
            thread.join()
    assert "other weights" in module.engine_state()[0]


class RequestedProcess:
    """Stands for the process, and notes that it was asked."""

    def __init__(self, device, threads):
        self.device, self.closed = torch.device("cuda:1" if device == "auto" else device), False

    def close(self):
        self.closed = True


@pytest.mark.parametrize(("device", "engine", "expected"), [
    ("auto", "eager", "cuda:1"), ("cuda", "eager", "cuda"), ("cpu", "eager", None), ("cpu", "onnxruntime", "cpu"),
])  # fmt: skip
def test_under_the_virtual_device_the_companion_computes(monkeypatch, device, engine, expected) -> None:
    monkeypatch.setattr(Virtual, "owner", "a server")
    monkeypatch.setattr(beside, "ExecutorProcess", RequestedProcess)
    monkeypatch.setattr(beside.torch_facts, "built_with_cuda", lambda: True)
    where, process = beside.choose_device(device, engine)
    assert (None if process is None else str(process.device)) == expected
    assert str(where) == (expected or "cpu")
    with pytest.raises(Unsupported, match="virtual device"):
        devices.pick_device("cuda")
    assert devices.pick_device("auto").type == "cpu", "the virtual device is never meant"


def test_without_a_build_for_cuda_no_companion_is_started(monkeypatch) -> None:
    monkeypatch.setattr(Virtual, "owner", "a server")
    monkeypatch.setattr(beside, "ExecutorProcess", None)
    monkeypatch.setattr(beside.torch_facts, "built_with_cuda", lambda: False)
    assert beside.choose_device("auto") == (torch.device("cpu"), None)


def test_without_the_virtual_device_a_program_owns_what_it_has(monkeypatch) -> None:
    monkeypatch.setattr(beside, "ExecutorProcess", None)
    assert beside.choose_device("cpu") == (torch.device("cpu"), None)
    with pytest.raises(BadInput, match="no device"):
        beside.choose_device("gpu")
