"""Clients of several ways in turn, so that all of them meet the same machine: starts, inferences, many clients."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import time
from concurrent import futures
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from edge_offload.errors import EdgeOffloadError, RemoteError
from edge_offload_benchmarks.peers.environments import make_search_path
from edge_offload_benchmarks.peers.ways import KEYS, Way
from edge_offload_benchmarks.ports import lasting_port
from edge_offload_benchmarks.processes import ONE_THREAD, Process, two_cores

ANSWER_S, START_S = 180.0, 90.0
#: Inferences before those that are measured, and in a turn, of which the first is not timed.
WARM_FRAMES, TURN_FRAMES = 16, 4
#: What a process does after its last answer is counted for so long.
SETTLE_S = 0.02
#: Values of one way: a list for each quantity, one entry for each round.
Values = Dict[str, List[float]]


class Served:
    """A way's server, running.

    Args:
        way: of it.
        network: that it serves, if it serves one.
        folder: of the bench.
    """

    def __init__(self, way: Way, network: str, folder: pathlib.Path) -> None:
        self.way, self._network, self._folder = way, network, folder
        self._port = lasting_port()
        self.address = f"127.0.0.1:{self._port}"
        cores = two_cores()[1:]
        command = way.server(network, self._port, folder)
        self.process = Process(command, {**ONE_THREAD, **make_search_path()}, cores)

    def await_port(self) -> None:
        """Wait until it listens.

        Raises:
            RemoteError: it does not.
        """
        ends = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
                return
            if not self.process.alive or time.monotonic() > ends:
                raise RemoteError(f"{self.way.name}'s server does not listen: {self.process.read_stderr()[-300:]}")
            time.sleep(0.05)

    @contextlib.contextmanager
    def open_client(self, network: str, address: str, keys: str = KEYS) -> Iterator[Client]:
        """Run a client whose server is at ``address``: a link's end, or the server itself."""
        command = self.way.client(network, address, self._folder / keys)
        environment = {**ONE_THREAD, **make_search_path(), **self.way.variables(address)}
        with Process(command, environment, two_cores()[:1]) as process:
            yield Client(process)


class Client:
    """A client, from its start on."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._started_s = time.monotonic()
        self.digests: Dict[str, str] = {}

    def await_start(self) -> Dict[str, float]:
        """Seconds of the whole start, and of its first inference.

        Raises:
            RemoteError: it failed.
        """
        stages = self._request_answer(frames=0)["stages"]
        return {"start": stages["result"] - self._started_s, "first": stages["result"] - stages["ready"]}

    def run(self, **request: float) -> List[float]:
        """Run inferences, ``frames`` or ``seconds`` of them; seconds of each.

        Raises:
            RemoteError: it failed.
        """
        seconds: List[float] = self._request_answer(**request)["seconds"]
        return seconds

    def _request_answer(self, **request: float) -> Dict[str, Any]:
        answer = self.process.request_answer(request, ANSWER_S)
        self.digests = answer["digests"]
        return answer


def read_cpu_s(pid: int) -> float:
    """Processor seconds of a process and those that it started, as far as they run."""
    import psutil

    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(OSError):
                total += time.clock_gettime((~process.pid << 3) | 2)  # its clock, as clock_getcpuclockid(3) names it
    return total


class Failures:
    """Ways that failed, and why; their clients have no further turn."""

    def __init__(self) -> None:
        self.reasons: Dict[str, str] = {}

    @contextlib.contextmanager
    def note(self, way: str) -> Iterator[None]:
        """Note what fails inside."""
        try:
            yield
        except (EdgeOffloadError, OSError, AssertionError) as error:
            lines = str(error).strip().splitlines()
            self.reasons.setdefault(way, (lines[-1] if lines else type(error).__name__)[:200])


def measure_starts(
    served: Sequence[Served], network: str, addresses: Mapping[str, str], starts: int, failures: Failures
) -> Dict[str, Values]:
    """Start clients in turn; one start of each before is not counted."""
    values: Dict[str, Values] = {each.way.name: {"start": [], "first": []} for each in served}
    for number in range(starts + 1):
        for each in _turn(served, number):
            name = each.way.name
            if name not in failures.reasons:
                with failures.note(name), each.open_client(network, addresses[name]) as client:
                    for quantity, value in client.await_start().items():
                        values[name][quantity] += [value] if number else []
                    client.process.end()
    return values


def measure_steady(
    served: Sequence[Served], network: str, addresses: Mapping[str, str], pairs: int, failures: Failures
) -> Dict[str, Values]:
    """Inferences back to back, in turn, and what they take of both sides' processors; whose results have whose bits."""
    values: Dict[str, Values] = {each.way.name: {"steady": [], "robot_cpu": [], "server_cpu": []} for each in served}
    with contextlib.ExitStack() as stack:
        clients: Dict[str, Client] = {}
        for each in served:
            with failures.note(each.way.name):
                clients[each.way.name] = stack.enter_context(each.open_client(network, addresses[each.way.name]))
        for name, client in clients.items():
            with failures.note(name):
                client.await_start()
                client.run(frames=WARM_FRAMES)
        for number in range(pairs):
            for each in _turn(served, number):
                name = each.way.name
                if name not in failures.reasons:
                    with failures.note(name):
                        _measure_turn(values[name], clients[name], each.process.pid)
        own = clients[served[0].way.name].digests
        for name, client in clients.items():
            if name not in failures.reasons and client.digests != own:
                values[name]["differs"] = [1.0]
    return values


def _measure_turn(values: Values, client: Client, server: int) -> None:
    pids = {"robot_cpu": client.process.pid, "server_cpu": server}
    before = {quantity: read_cpu_s(pid) for quantity, pid in pids.items()}
    seconds = sorted(client.run(frames=TURN_FRAMES)[1:])
    time.sleep(SETTLE_S)
    for quantity, pid in pids.items():
        values[quantity].append((read_cpu_s(pid) - before[quantity]) / TURN_FRAMES)
    values["steady"].append(seconds[len(seconds) // 2])


def measure_many(
    served: Sequence[Served], network: str, clients: Sequence[str], rounds: int, seconds: float, failures: Failures
) -> Dict[str, Values]:
    """Answers per second of several clients of a way at once, by their key stores, the ways in turn, on loopback."""
    values: Dict[str, Values] = {each.way.name: {"answers": []} for each in served}
    with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor(len(clients)) as threads:
        groups: Dict[str, List[Client]] = {}
        for each in served:
            name = each.way.name
            with failures.note(name):
                opened = [each.open_client(network, each.address, keys) for keys in clients]
                groups[name] = [stack.enter_context(one) for one in opened]
                for client in groups[name]:
                    client.await_start()
        for number in range(rounds + 1):
            for each in _turn(served, number):
                name = each.way.name
                if name not in failures.reasons:
                    with failures.note(name):
                        counts = list(threads.map(lambda one: len(one.run(seconds=seconds)), groups[name]))
                        values[name]["answers"] += [sum(counts) / seconds] if number else []
    return values


def _turn(served: Sequence[Served], number: int) -> List[Served]:
    first = number % len(served)
    return [*served[first:], *served[:first]]
