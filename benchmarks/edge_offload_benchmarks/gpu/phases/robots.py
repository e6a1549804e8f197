"""Robots with keys of their own that share the device: one by one, and in batches of the server's promises."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple

from edge_offload_benchmarks.gpu.processes import Server
from edge_offload_benchmarks.gpu.results import Phase
from edge_offload_benchmarks.gpu.robots_load import RobotsLoad, Watch, summarize_row, write_frames
from edge_offload_benchmarks.gpu.served import allow_options

#: Processes of robots, and seconds between two frames of a camera.
PROCESSES, INTERVAL_S = 8, 0.1
#: Loss of accuracy per frame of age that robots tell: that of people in the sample video.
SLOPE = 0.0133
#: Frames from result to result: promises leave room for delays, so that "every frame" is no interval to plan for.
LEAST_INTERVAL = 1.1
#: Frames of a model, which robots send in turn.
FRAMES = 4
#: Until a row is counted: robots ask for a promise, and follow their first turns.
SETTLE_S = {"answered": 0.3, "turns": 4.0}


@dataclass(frozen=True)
class Load:
    """A row: a model, how many robots, how they send, and for how long.

    Attributes:
        share: of the device's time that robots with turns are to take; less if their cameras have no more frames.
    """

    model: str
    robots: int
    way: str = "answered"
    seconds: float = 3.0
    share: float = 0.75

    @property
    def name(self) -> str:
        """The name of the record."""
        way = "one by one" if self.way == "answered" else f"batches, {self.share:.0%} of the device"
        return f"{self.robots} robots {self.model} {way}"


LOADS = (
    Load("kapao_s", 16),
    Load("kapao_s", 64),
    Load("kapao_s", 16, "turns", 5.0),
    Load("kapao_s", 64, "turns", 5.0),
    Load("kapao_s", 64, "turns", 5.0, share=0.97),
    *(Load("mobilenet_v3_large", count, seconds=2.0) for count in (64, 16, 4, 1)),
)
TINY_LOADS = (
    Load("tiny", 1, seconds=1.0),
    Load("tiny", 4, seconds=1.0),
    Load("tiny", 4, "turns", 2.0),
    Load("tiny", 4, "turns", 2.0, share=0.97),
)


def run(phase: Phase) -> None:
    """Start a server and all robots once; measure every row."""
    from edge_offload_benchmarks.processes import introduce_robots

    settings = phase.settings
    loads = TINY_LOADS if settings.tiny else LOADS
    models = list(dict.fromkeys(load.model for load in loads))
    root = settings.folder / f"robots.{time.monotonic_ns()}"
    names = [f"robot{number}" for number in range(max(load.robots for load in loads))]
    public, robots = introduce_robots(root, names)
    options = [*allow_options(models), "--promises"]
    with phase.guard_errors("robots"), Server(settings, *options, keys=root / "server") as server:
        for store in robots.values():
            store.trust_server(server.address, public)
        for model in models:
            write_frames(root / f"frames.{model}", model, FRAMES)
        with RobotsLoad(settings, root, server.address, names, 2 if settings.tiny else PROCESSES) as load:
            phase.record("server", start_s=server.start_s)
            Rows(phase, server, load).measure_loads(loads)


class Rows:
    """The rows of one server."""

    def __init__(self, phase: Phase, server: Server, load: RobotsLoad) -> None:
        self._phase, self._server, self._load = phase, server, load
        self._tables: Dict[str, Tuple[float, ...]] = {}
        self._rates: Dict[Tuple[str, str], float] = {}

    def measure_loads(self, loads: Sequence[Load]) -> None:
        """Measure rows while there is time; then the gain of batches by model."""
        for load in loads:
            if not self._phase.fits_in_time(SETTLE_S[load.way] + load.seconds + 4):
                self._phase.record(load.name, skipped="out of time")
                continue
            with self._phase.guard_errors(load.name):
                self._measure_load(load)
        for model in dict.fromkeys(model for model, way in self._rates if way == "turns"):
            alone, together = (self._rates.get((model, way)) for way in ("answered", "turns"))
            if alone and together:
                self._phase.record(f"gain {model}", one_by_one=alone, batches=together, gain=together / alone)

    def _measure_load(self, load: Load) -> None:
        remaining_s = self._phase.remaining_s()
        self._load.ask_all(load.robots, {"open": load.model}, remaining_s)
        bound = 1.0
        if load.way == "turns":
            latencies = self._prepare_batches(load.model)
            bound = find_bound(latencies, find_interval(latencies, load.robots, load.share))
        settle_s, begin_s = SETTLE_S[load.way], time.monotonic() + 0.2
        order = {
            "model": load.model, "way": load.way, "begin_s": begin_s, "settle_s": settle_s, "seconds": load.seconds,
            "interval_s": INTERVAL_S, "bound": bound,
        }  # fmt: skip
        requests = [
            (process, self._load.ask(process, {**order, "robots": robots}))
            for process, robots in self._load.share_robots(load.robots)
        ]
        time.sleep(max(0.0, begin_s + settle_s - time.monotonic()))
        use = Watch(self._server).wait_until(begin_s + settle_s + load.seconds)
        facts: Dict[str, Any] = {}
        for process, number in requests:
            facts.update(self._load.read_answer(process, number, 30.0))
        row = summarize_row(facts, load.seconds, use)
        self._phase.record(load.name, bound=bound if load.way == "turns" else None, **row)
        key = (load.model, load.way)
        self._rates[key] = max(self._rates.get(key, 0.0), row["frames_per_s"])

    def _prepare_batches(self, model: str) -> Tuple[float, ...]:
        """Have batches measured; seconds by size, as the server logs them."""
        if model not in self._tables:
            started_at = time.monotonic()
            answer = self._load.prepare_batches(model, self._phase.remaining_s())
            self._tables[model] = read_latencies(self._server.read_tail(1 << 20), answer["batch"])
            ms = [round(1e3 * one, 3) for one in self._tables[model]]
            self._phase.record(f"table {model}", ms=ms, note=answer["note"], seconds=time.monotonic() - started_at)
        return self._tables[model]


def read_latencies(log: str, largest: int) -> Tuple[float, ...]:
    """Seconds of batches up to ``largest``, from the last line of a server's log that names them."""
    lines = re.findall(r"batches of \S+: ([0-9., ]+) ms", log)
    return tuple(float(one) / 1e3 for one in lines[-1].split(","))[:largest]


def find_interval(latencies: Sequence[float], robots: int, share: float) -> float:
    """Frames from result to result at which robots take this share of the device, or :data:`LEAST_INTERVAL`."""
    frames_per_s = max(size / seconds for size, seconds in enumerate(latencies, 1))
    return max(LEAST_INTERVAL, robots / INTERVAL_S / (share * frames_per_s))


def find_bound(latencies: Sequence[float], interval: float) -> float:
    """The bound of accuracy for which a robot is planned a result every ``interval`` frames."""
    from edge_offload.protocol.promises import LEAST_BOUND
    from edge_offload.server.promises.latencies import Latencies
    from edge_offload.server.promises.settings import Wish, choose_settings

    table = Latencies(tuple(latencies))

    def interval_of(bound: float) -> float:
        wish = Wish(bound, SLOPE, INTERVAL_S, up=0.01, down=0.003, batch=len(latencies), usual=0.01)
        return choose_settings(wish, table).interval

    low, high = LEAST_BOUND, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if interval_of(middle) < interval else (low, middle)
    return high
