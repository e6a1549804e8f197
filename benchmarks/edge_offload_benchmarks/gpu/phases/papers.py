"""The papers' table: networks, links and modes of a slow robot without a GPU, and a server with the device.

A robot computes with one thread of one core, slowed so that DenseNet-121 takes as long as on a Jetson Xavier NX. All
robots open their networks at once; then one network at a time is measured, the most important rows first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from typing import Any, Container, Dict, List, Sequence, Tuple

from edge_offload.execute.threads import parse_cores
from edge_offload_benchmarks.gpu import served
from edge_offload_benchmarks.gpu.papers_links import LINKS, OPENING_MBPS, PIECE_S, Links
from edge_offload_benchmarks.gpu.power import EnergyLog
from edge_offload_benchmarks.gpu.processes import BLIND, EmulatedLink, Process, Server, module_command
from edge_offload_benchmarks.gpu.results import Phase
from edge_offload_benchmarks.gpu.settings import ROOT, Settings

#: Networks, the most important first; ``sconet`` is AGRNav's. Seconds of a phase for each of them.
NETWORKS = ("kapao_s", "resnet50", "mobilenet_v3_large", "convnext_tiny", "sconet", "vit_s", "densenet121")
NETWORK_S = 33.0
#: Milliseconds of a frame on a Jetson Xavier NX, as LOPInfer's authors measured them; who sets the slowdown.
XAVIER_MS = {"densenet121": 74.8, "kapao_s": 396.6, "sconet": 782.1}
REFERENCE = "densenet121"
#: Modes on the first link, and on each other one; those with a round trip per call, for so many networks.
MODES = ("local", "server", "replay", "split", "lazy")
LINK_MODES = ("server", "replay", "split")
CALL_MODES, CALL_NETWORKS = ("cached", "per_op"), 2
MODULE_MODES = ("local", "server", "split")
#: Part of the phase's time in which networks are opened.
OPENING_PART = 0.42
#: Fewest frames, and the shortest and longest time of a measurement (seconds).
FRAMES, FEW_FRAMES, WINDOW_S, MOST_S = 10, 2, 1.2, 6.0
#: Seconds beyond its own limits in which a robot has to answer: more than a frame takes.
SLACK_S = 12.0


class Robot:
    """A process of :mod:`edge_offload_benchmarks.gpu.papers_robot`, which answers commands."""

    def __init__(self, settings: Settings, command: Sequence[str], cores: str) -> None:
        self._process = Process(settings, "papers_robot", command, cores, **BLIND)
        self._sent = 0

    def send(self, do: str, mode: str, **arguments: Any) -> int:
        """Send a command; its number.

        Raises:
            RuntimeError: the robot has ended.
        """
        try:
            self._process.write(json.dumps({"do": do, "mode": mode, **arguments}) + "\n")
        except BrokenPipeError:
            raise RuntimeError(f"the robot has ended: {self._process.read_tail()}") from None
        self._sent += 1
        return self._sent - 1

    def read_answer(self, number: int, timeout_s: float) -> Dict[str, Any]:
        """The answer to a command.

        Raises:
            RuntimeError: it did not come.
        """
        line = self._process.wait_line(f"{number} {{", timeout_s)
        answer: Dict[str, Any] = json.loads(line.partition(" ")[2])
        return answer

    def ask(self, do: str, mode: str, seconds: float, **arguments: Any) -> Dict[str, Any]:
        """Have a command done that takes ``seconds``; a robot that does not answer is ended."""
        number = self.send(do, mode, ends=time.monotonic() + seconds, **arguments)
        try:
            return self.read_answer(number, seconds + SLACK_S)
        except RuntimeError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process."""
        self._process.stop()


def run(phase: Phase) -> None:
    """Open the networks, and record a row per network, link and mode."""
    tiny = phase.settings.tiny
    names = ("tiny",) if tiny else NETWORKS[: max(2, int(phase.seconds / NETWORK_S))]
    link_cores, module_cores, device_cores = share_client_cores(phase.settings.client_cores)
    at_link = dataclasses.replace(phase.settings, client_cores=link_cores)
    with contextlib.ExitStack() as stack:
        # weights that are calibrated while a network is built have the same bits by one thread on both sides
        server = stack.enter_context(Server(phase.settings, "--threads", "1", *served.allow_options(names)))
        energy = stack.enter_context(EnergyLog())
        link = stack.enter_context(EmulatedLink(at_link, server.address, OPENING_MBPS))
        links = stack.enter_context(Links(link.control_address, phase.settings.folder))
        slowdown = 1.5 if tiny else measure_slowdown(phase, module_cores[0], energy)
        robots: Dict[Tuple[str, bool], Robot] = {}
        for number, name in enumerate(names):
            for plain, cores in ((True, module_cores), (False, device_cores)):
                command = robot_command(server, link.address, name, slowdown, plain)
                robot = Robot(phase.settings, command, cores[number % len(cores)])
                stack.callback(robot.stop)
                robots[name, plain] = robot
        table = Table(phase, robots, links, energy, slowdown)
        with phase.guard_errors("opening"):
            table.open_networks(names, 40.0 if tiny else OPENING_PART * phase.seconds)
        if tiny:
            for mode in ("local", "server", "replay", "split"):
                table.measure("tiny", mode, "93 Mbps")
            return
        for name, mode, link_name in order_measurements(names, read_recorded()):
            table.measure(name, mode, link_name)


def read_recorded() -> Container[str]:
    """Titles of the measurements in the record of the calls before this one."""
    path = ROOT / "docs" / "results" / "gpu.json"
    phases = json.loads(path.read_text("utf-8"))["phases"] if path.exists() else {}
    return {row["name"] for row in phases.get("papers", {}).get("records", ()) if "wall" in row}


def order_measurements(names: Sequence[str], recorded: Container[str]) -> List[Tuple[str, str, str]]:
    """Network, mode and link of all measurements: those without a record first, then the most important ones."""
    first, *others = LINKS
    every = [
        (name, mode, first)
        for place, name in enumerate(names)
        for mode in (*MODES, *(CALL_MODES if place < CALL_NETWORKS else ()))
    ]
    every += [(name, mode, link) for link in others for name in names for mode in LINK_MODES]
    return sorted(every, key=lambda measurement: title_of(*measurement) in recorded)


def title_of(name: str, mode: str, link: str) -> str:
    """The name of a measurement's record."""
    return f"{name} {mode} at {link}"


def share_client_cores(cores: str) -> Tuple[str, List[str], List[str]]:
    """Cores of the link, of robots that compute (one each), and of robots that do not, among the clients'."""
    numbers = sorted(map(str, sorted(parse_cores(cores))), key=int) if cores else []
    if len(numbers) < 4:
        return cores, [cores], [cores]
    return numbers[0], numbers[1:-2], numbers[-2:]


def robot_command(server: Server, address: str, name: str, slowdown: float, plain: bool) -> List[str]:
    """The command of a robot behind the link at ``address``: with the module at hand, or on the virtual device."""
    keys = server.make_robot(address)
    command = module_command("papers_robot", "--model", name)
    if plain:
        return [*command, "--server", address, "--keys", keys, "--slowdown", f"{slowdown:g}"]
    return [*server.exec_command("--mode", "replay", address=address, keys=keys), *command, "--device"]


def measure_slowdown(phase: Phase, core: str, energy: EnergyLog) -> float:
    """Record how much slower than its core a robot is made, and the idle GPU's power; the factor."""
    robot = Robot(phase.settings, module_command("papers_robot", "--model", REFERENCE), core)
    with phase.guard_errors("robot"):
        try:
            robot.ask("prepare", "local", 30.0)
            facts = robot.ask("measure", "local", MOST_S, window_s=WINDOW_S, least=FRAMES)
        finally:
            robot.stop()
        core_ms = facts["wall"]["ms"]
        slowdown = max(1.0, round(XAVIER_MS[REFERENCE] / float(core_ms), 2))
        from_s, to_s = facts["from_s"], facts["to_s"]
        phase.record(
            "robot", reference=REFERENCE, core_ms=core_ms, xavier_ms=XAVIER_MS[REFERENCE], slowdown=slowdown,
            idle_watts=energy.joules_between(from_s, to_s) / (to_s - from_s),
        )  # fmt: skip
        return slowdown
    return 1.0


class Table:
    """The rows of the phase.

    Args:
        phase: of the records.
        robots: by network, and whether they have the module at hand.
        links: the link before the server.
        energy: of the GPU.
        slowdown: of the robots.
    """

    def __init__(
        self, phase: Phase, robots: Dict[Tuple[str, bool], Robot], links: Links, energy: EnergyLog, slowdown: float
    ) -> None:
        self._phase, self._robots, self._links, self._energy = phase, robots, links, energy
        self._slowdown = slowdown

    def open_networks(self, names: Sequence[str], seconds: float) -> None:
        """Have all robots open their networks at once, and record when each mode could run."""
        ends = time.monotonic() + min(seconds, self._phase.remaining_s())
        sent = [
            (name, mode, self._robots[name, mode != "replay"].send("prepare", mode, ends=ends))
            for name in names
            for mode in ("server", "replay", "split")
        ]
        for name, mode, number in sent:
            with self._phase.guard_errors(f"opening {name} {mode}"):
                limit = ends + SLACK_S - time.monotonic()
                answer = self._robots[name, mode != "replay"].read_answer(number, limit)
                self._phase.record(f"opening {name} {mode}", **answer)

    def measure(self, name: str, mode: str, link: str) -> None:
        """Measure a network in a mode on a link, and record it."""
        title = title_of(name, mode, link)
        if not self._phase.fits_in_time(2 * WINDOW_S):
            self._phase.record(title, skipped="out of time")
            return
        with self._phase.guard_errors(title):
            facts = {"model": name, "mode": mode, "link": link, "slowdown": self._slowdown}
            self._phase.record(title, **facts, **self._measure_mode(name, mode, link))

    def _measure_mode(self, name: str, mode: str, link: str) -> Dict[str, Any]:
        robot = self._robots[name, mode in MODULE_MODES]
        few = mode in CALL_MODES
        most_s = min(3 * MOST_S if few else MOST_S, self._phase.remaining_s())
        self._links.restart(link)
        facts = robot.ask("prepare", mode, most_s)
        if "failed" in facts:
            return facts
        self._links.restart(link)
        window_s = WINDOW_S if LINKS[link] else PIECE_S
        most_s = max(window_s, min(most_s, self._phase.remaining_s()))
        facts.update(robot.ask("measure", mode, most_s, window_s=window_s, least=FEW_FRAMES if few else FRAMES))
        return {**facts, **self._read_gpu(facts)}

    def _read_gpu(self, facts: Dict[str, Any]) -> Dict[str, float]:
        """What NVML says of the time of a measurement."""
        if "from_s" not in facts:
            return {}
        times = facts["from_s"], facts["to_s"]
        read = {
            "J_per_frame": self._energy.joules_between(*times) / facts["wall"]["n"],
            "gpu": self._energy.utilisation_between(*times),
        }
        return {key: value for key, value in read.items() if not math.isnan(value)}
