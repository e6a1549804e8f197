"""The robot's process of ``bench transparent``: started by ``edge-offload exec``, told by JSON lines what to measure.

Each request names a network, modes and a number of inferences; modes that can are measured in turn, inference by
inference, so that what the machine does meanwhile hits all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.device.installation import current_installation
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.execute.module import as_tensors
from edge_offload.execute.tensors import TensorSpec
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import Budget
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.modes.server import ServerRunner
from edge_offload_benchmarks.transparent.models import Case, Inputs, cases, small_cases
from edge_offload_benchmarks.transparent.reference import CudaReference

LEARN = 8
#: Of networks whose sizes depend on the image: until each inference costs the same, but no more than so many.
MOST_LEARN = 40
PATIENT = Budget(120.0, 120.0)


class Robot:
    """One network, ready in every mode. Its connection is its own: when it ends, the server's replica is free."""

    def __init__(self, case: Case, address: str) -> None:
        self.case = case
        self.inputs = Inputs(case)
        self.local = case.module()
        device = current_installation()
        assert device is not None
        self.device = device
        self.remote: Any = device.remote
        self.remote_module: Optional[nn.Module] = None
        self.client = Client(address).start()
        self.client.wait_ready(30.0)
        self.server = ServerRunner(
            case.registered, case.options, self.client, lambda: registry.state_hash(self.local), fingerprint_of("cpu")
        )

    def prepare(self) -> None:
        """Weights over, the model open on the server."""
        self.remote_module = self.case.module().to("cuda")
        example = [self.inputs.next()]
        ends = time.monotonic() + 300
        while self.server.unavailable_reason(example) is not None and time.monotonic() < ends:
            time.sleep(0.05)

    def learn(self, mode: Mode) -> None:
        """Inferences that are not measured: the device's modes record what there is to record."""
        if mode in (Mode.SERVER, Mode.LOCAL):
            for _ in range(2):
                self.measure(mode)
            return
        self.device.switch_mode(mode)
        trips: List[int] = []
        while len(trips) < (LEARN if mode is Mode.REPLAY else 2):
            trips.append(self.measure(mode)["round_trips"])
        while mode is Mode.REPLAY and len(set(trips[-LEARN // 2 :])) > 1 and len(trips) < MOST_LEARN:
            trips.append(self.measure(mode)["round_trips"])

    def measure(self, mode: Mode) -> Dict[str, Any]:
        """One inference with a fresh input."""
        tensor = self.inputs.next()
        before = self._counts()
        self.remote.spent.reset()
        cpu_s, started_s = time.thread_time(), time.monotonic()
        outputs = self._run(mode, tensor)
        ended_s = time.monotonic()
        walk_s = time.thread_time() - cpu_s
        after = self._counts()
        record = {"latency_s": ended_s - started_s, "walk_s": walk_s, "outputs": outputs, "input": tensor}
        if mode is Mode.SERVER:
            attempt = self._attempt
            stages = attempt.stages_s
            names = ("encode", "uplink", "downlink", "decode")
            record["stages_s"] = {**{name: stages[name] for name in names}, "server": stages["compute_server"]}
            record.update(round_trips=1, rpcs=1, bytes_up=attempt.bytes_up, bytes_down=attempt.bytes_down, ops=0)
        elif mode is Mode.LOCAL:
            record.update(round_trips=0, rpcs=0, bytes_up=0, bytes_down=0, ops=0)
        else:
            record.update({name: count - before[name] for name, count in after.items()})
            spent = self.remote.spent
            record["stages_s"] = {
                "encode": spent.encode_s, "uplink": spent.uplink_s, "server": spent.server_s,
                "downlink": spent.downlink_s, "decode": spent.decode_s,
            }  # fmt: skip
        return record

    def _counts(self) -> Dict[str, int]:
        counters, remote = self.device.recorder.counters, self.remote
        return {
            "round_trips": counters.round_trips, "rpcs": counters.messages, "bytes_up": remote.bytes_up,
            "bytes_down": remote.bytes_down, "ops": self.device.native.counters()["calls"],
        }  # fmt: skip

    def _run(self, mode: Mode, tensor: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        with torch.no_grad():
            if mode is Mode.SERVER:
                self._attempt = self.server.attempt_inference([tensor], {}, PATIENT)
                return self._attempt.outputs
            if mode is Mode.LOCAL:
                outputs = self.local(tensor)
            else:
                assert self.remote_module is not None
                outputs = self.remote_module(tensor.to("cuda"))
            return tuple(item.cpu() for item in as_tensors(outputs))


def measure(robot: Robot, modes: List[Mode], count: int, reference: Optional[CudaReference] = None) -> Dict[str, Any]:
    """``count`` inferences in each of ``modes``, in turn; the first of each is compared.

    ``reference``: with what; None: the robot's own result.
    """
    samples: Dict[Mode, List[Dict[str, Any]]] = {mode: [] for mode in modes}
    for mode in modes:
        robot.learn(mode)
    equal = {}
    for mode in modes:
        record = robot.measure(mode)
        if reference is None:
            mine = robot._run(Mode.LOCAL, record["input"])
        else:
            mine = tuple(reference.outputs(robot.case.name, record["input"]))
        equal[mode.value] = same_bits(record["outputs"], mine)
    for _ in range(count):
        for mode in modes:
            samples[mode].append(robot.measure(mode))
    spec = TensorSpec.of(samples[modes[0]][0]["input"])
    return {
        "input": spec.to_dict(),
        "equal": equal,
        "samples": {
            mode.value: [{k: v for k, v in item.items() if k not in ("input", "outputs")} for item in items]
            for mode, items in samples.items()
        },
    }


class Steady:
    """A network on the device in mode replay, again and again, with fresh inputs."""

    def __init__(self, case: Case, reference: Optional[CudaReference] = None) -> None:
        device = current_installation()
        assert device is not None
        device.switch_mode(Mode.REPLAY)
        self._name, self._reference = case.name, reference
        self._device = device
        self._inputs = Inputs(case)
        self._local = case.module()
        self._module = case.module().to("cuda")

    def repeat(self, count: int, compared: int = 1) -> Dict[str, Any]:
        """``count`` inferences; says what they cost, and how many of the last ``compared`` have the wanted bits."""
        before, equal = self._device.recorder.counters.round_trips, 0
        with torch.no_grad():
            for remaining in reversed(range(count)):
                tensor = self._inputs.next()
                outputs = [item.cpu() for item in as_tensors(self._module(tensor.to("cuda")))]
                equal += remaining < compared and same_bits(outputs, self._expected(tensor))
        trips = self._device.recorder.counters.round_trips - before
        return {"inferences": count, "round_trips": trips, "equal": equal}

    def _expected(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        if self._reference is not None:
            return self._reference.outputs(self._name, tensor)
        return as_tensors(self._local(tensor))


def same_bits(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Return whether two results have the same shapes and values."""
    return len(outputs) == len(expected) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(outputs, expected)
    )


def kernel_cost(chain: int = 200, repeats: int = 50) -> Dict[str, float]:
    """Time a call in a chain of replayed functional operators, the interpreter and torch's binding included.

    The median of ``repeats`` chains, by the clock and by the processor time of the calling thread: the link, the
    emulator and whatever else runs on the same core take from the one and not from the other.
    """
    device = current_installation()
    assert device is not None
    device.switch_mode(Mode.REPLAY)
    state = torch.zeros(16, device="cuda")
    plain, other = torch.randn(16), torch.zeros(16)

    def walk(tensor: torch.Tensor, added: torch.Tensor) -> Tuple[torch.Tensor, float, float]:
        cpu_s, started_s = time.thread_time(), time.perf_counter()
        for _ in range(chain):
            tensor = torch.add(tensor, added)
        spent_s = time.perf_counter() - started_s
        return tensor, spent_s / chain, (time.thread_time() - cpu_s) / chain

    def once() -> Tuple[float, float]:
        tensor, wall_s, cpu_s = walk(torch.randn(16).to("cuda"), state)
        tensor.cpu()
        return wall_s, cpu_s

    for _ in range(LEARN):
        once()
    device_s, device_thread_s = map(statistics.median, zip(*(once() for _ in range(repeats))))
    cpu_s, cpu_thread_s = map(statistics.median, zip(*(walk(plain, other)[1:] for _ in range(repeats))))
    return {"device_s": device_s, "device_thread_s": device_thread_s, "cpu_s": cpu_s, "cpu_thread_s": cpu_thread_s}


class Requests:
    """Requests to the robot: a method per request, with the request's other fields as arguments."""

    def __init__(self, address: str, reference: Optional[CudaReference] = None) -> None:
        self._address = address
        self._reference = reference
        self._cases = {case.name: case for case in (*cases(), *small_cases())}
        self.robot: Optional[Robot] = None
        self._steady: Optional[Steady] = None

    def answer(self, do: str, **arguments: Any) -> Dict[str, Any]:
        """The answer; what goes wrong is one, too."""
        try:
            response: Dict[str, Any] = getattr(self, f"do_{do}")(**arguments)
            return response
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def do_load(self, model: str) -> Dict[str, Any]:
        """A network, ready in every mode."""
        self.close()
        self.robot = Robot(self._cases[model], self._address)
        self.robot.prepare()
        return {}

    def do_run(self, modes: List[str], count: int) -> Dict[str, Any]:
        """Inferences of the network that was loaded."""
        assert self.robot is not None
        return measure(self.robot, [Mode(name) for name in modes], count, self._reference)

    def do_kernel(self) -> Dict[str, float]:
        """Measure the cost of a replayed call."""
        return kernel_cost()

    def do_steady(self, model: str) -> Dict[str, Any]:
        """A network in mode replay alone."""
        self._steady = None
        self._steady = Steady(self._cases[model], self._reference)
        return {}

    def do_repeat(self, count: int, compared: int = 1) -> Dict[str, Any]:
        """Inferences of that."""
        assert self._steady is not None
        return self._steady.repeat(count, compared)

    def close(self) -> None:
        """End the connection."""
        if self.robot is not None:
            self.robot.client.close()
        self.robot = None


def main() -> int:
    """Serve requests from stdin until it ends."""
    torch.set_num_threads(1)
    cores = os.environ.get("EDGE_OFFLOAD_BENCH_CORES", "")
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    reference = CudaReference(json.loads(sys.argv[3])) if sys.argv[2] == "cuda" else None
    requests = Requests(sys.argv[1], reference)
    for line in sys.stdin:
        print(json.dumps(requests.answer(**json.loads(line))), file=out, flush=True)
    requests.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
