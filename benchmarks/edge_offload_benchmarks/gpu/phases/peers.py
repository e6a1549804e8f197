"""Remoting peers of other projects beside replay and lazy: the same program on the same GPU, direct and over a link.

Lupine (https://github.com/lupinemachines/lupine) carries calls of CUDA's driver, rgpu (https://pypi.org/project/rgpu)
torch's operators. Neither is part of this package: ``.gpu/peers`` has what was built elsewhere. All clients start and
warm up at once, with their links open; then one at a time is measured, and its link has the rate.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from edge_offload_benchmarks.gpu.peer_ways import PEERS, START_S, Way, own_way, why_absent
from edge_offload_benchmarks.gpu.processes import EmulatedLink, Process, Server, end_all, module_command
from edge_offload_benchmarks.gpu.results import Phase

PROGRAMS, TINY_PROGRAMS = ("transformer", "greedy", "resnet50"), ("transformer", "greedy", "tiny")
MBPS, RTT_MS, OPEN_MBPS = 93.0, 2.6, 2e4
#: Seconds that an answer may be late, after which its client is ended.
LATE_S = 8.0
#: Frames and seconds of a program before those that are timed, and of those.
WARM_FRAMES, WARM_S, TIMED_FRAMES, TIMED_S = 14, 22.0, 40, 1.0


def run(phase: Phase) -> None:
    """Measure the peers that are there, and our own modes beside them."""
    reasons = {name: why_absent(phase, name) for name in PEERS}
    for name, reason in reasons.items():
        if reason:
            phase.record(name, skipped=reason)
    if all(reasons.values()):
        return
    with contextlib.ExitStack() as stack:
        ways = [Way("plain", options=["--device", phase.settings.device])]
        peers: List[Way] = []
        for name, reason in reasons.items():
            if not reason:
                with phase.guard_errors(f"{name}: server"):
                    peers.append(PEERS[name](phase, stack))
        with phase.guard_errors("server"):
            server = stack.enter_context(Server(phase.settings))
            ways += [own_way(server, mode) for mode in ("replay", "lazy")]
        for way in peers:
            with phase.guard_errors(f"{way.name}: server"):
                way.await_server(min(START_S, phase.remaining_s()))
                ways.append(way)
        clients: List[Client] = []
        for way in ways:
            for mbps in (0.0, MBPS) if way.address else (0.0,):
                with phase.guard_errors(way.name):
                    clients.append(Client(phase, stack, way, mbps))
        stack.callback(lambda: end_all([client.process for client in clients], 0))
        for program in TINY_PROGRAMS if phase.settings.tiny else PROGRAMS:
            measure_program(phase, [client for client in clients if client.answers], program)


class Client:
    """A process that computes frames on a way to the GPU (:mod:`edge_offload_benchmarks.gpu.peers_client`).

    Args:
        phase: of the records.
        stack: ends what is started.
        way: to the GPU.
        mbps: of the link; 0: none.
    """

    def __init__(self, phase: Phase, stack: contextlib.ExitStack, way: Way, mbps: float) -> None:
        settings, self._mbps = phase.settings, mbps
        self.name = f"{way.name} at {mbps:g} Mbps" if mbps else way.name
        self._link: Optional[EmulatedLink] = None
        address = way.address
        if mbps:
            self._link = stack.enter_context(EmulatedLink(settings, way.address, OPEN_MBPS, 0.0))
            address = self._link.address.replace("tcp://", "")
        self._out = settings.folder / "peers" / self.name.replace(" ", "_")
        self._out.parent.mkdir(parents=True, exist_ok=True)
        command = [*way.command(address), *module_command("peers_client", *way.options, "--out", str(self._out))]
        self.process = stack.enter_context(
            Process(settings, f"peers_{self._out.name}", command, settings.client_cores, **way.variables(address))
        )
        self._tasks, self.answers = 0, True

    @contextlib.contextmanager
    def end_if_silent(self) -> Iterator[None]:
        """End the process if what is inside fails: its next answer would be to an earlier task."""
        try:
            yield
        except Exception:
            self.answers = False
            self.process.process.kill()
            raise

    def begin_task(self, program: str, frames: int, seconds: float) -> None:
        """Give a task."""
        self.process.write(json.dumps({"program": program, "frames": frames, "seconds": seconds}) + "\n")
        self._tasks += 1

    def await_answer(self, timeout_s: float) -> Dict[str, Any]:
        """The facts of the last task.

        Raises:
            RuntimeError: they did not come.
        """
        start = f"{self._tasks - 1} "
        facts: Dict[str, Any] = json.loads(self.process.wait_line(start, max(0.1, timeout_s))[len(start) :])
        return facts

    def time_frames(self, program: str, timeout_s: float) -> Dict[str, Any]:
        """Facts of timed frames, on the link with its rate; bytes per frame are those that the link carried."""
        if self._link is not None:
            self._link.control("set", mbps=self._mbps, rtt_s=RTT_MS / 1e3)
        before = self.carried_bytes()
        self.begin_task(program, TIMED_FRAMES, TIMED_S)
        facts = self.await_answer(timeout_s)
        sizes = [(b - a) / facts.get("frames", 1) for a, b in zip(before, self.carried_bytes())]
        if self._link is not None:
            self._link.control("set", mbps=OPEN_MBPS, rtt_s=0.0)
        return {**facts, **dict(zip(("up", "down"), map(round, sizes)))}

    def carried_bytes(self) -> Tuple[int, ...]:
        """Bytes that the link has carried up and down; none without a link."""
        if self._link is None:
            return ()
        stats = self._link.control("stats")
        return stats["bytes_up"], stats["bytes_down"]

    def load_results(self, program: str) -> Dict[int, Any]:
        """The results of the last frames by input; none if there are none."""
        import torch

        path = self._out.with_name(f"{self._out.name}.{program}.pt")
        results: Dict[int, Any] = torch.load(path, weights_only=True) if path.exists() else {}
        return results


def measure_program(phase: Phase, clients: List[Client], program: str) -> None:
    """Warm all clients up at once, then measure one after another, and record times, traffic and bits."""
    seconds = min(WARM_S, phase.remaining_s() / 2)
    ends = time.monotonic() + min(seconds + LATE_S, phase.remaining_s() - LATE_S)
    warm: Dict[str, Dict[str, Any]] = {}
    for client in clients:
        with phase.guard_errors(f"{program} {client.name}"), client.end_if_silent():
            client.begin_task(program, WARM_FRAMES, seconds)
    for client in [one for one in clients if one.answers]:
        with phase.guard_errors(f"{program} {client.name}"), client.end_if_silent():
            warm[client.name] = client.await_answer(ends - time.monotonic())
    want: Dict[int, Any] = {}
    for client in [one for one in clients if one.answers]:
        name, first = f"{program} {client.name}", warm[client.name]
        if "failed" in first:
            phase.record(name, failed=first["failed"], log=client.process.read_tail())
            continue
        if not phase.fits_in_time(TIMED_S + 3):
            phase.record(name, skipped="out of time", warm=first)
            continue
        with phase.guard_errors(name), client.end_if_silent():
            facts = client.time_frames(program, phase.remaining_s() - 2)
            results = client.load_results(program)
            want = want or results
            equal = f"{count_equal(want, results)} of {len(want)}"
            phase.record(name, program=program, way=client.name, **facts, equal=equal, warm=first)


def count_equal(want: Mapping[int, Any], have: Mapping[int, Any]) -> int:
    """Inputs whose results are the same to the bit."""
    import torch

    return sum(
        len(results) == len(have.get(number, ())) and all(map(torch.equal, results, have[number]))
        for number, results in want.items()
    )
