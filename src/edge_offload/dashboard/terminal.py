"""A run on a terminal: the records of its last seconds, as a few lines in milliseconds, megabytes and joules."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections import Counter, deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence

from edge_offload.dashboard.digest import Digest, Event
from edge_offload.dashboard.stream import Record
from edge_offload.timing import SHARES, STAGES

EVENTS = 5
BAR = 24


class TerminalView:
    """What ``edge-offload top`` shows.

    Args:
        window_s: as many seconds of frames are shown.
        clock: the time that is now on the records' clock (s since 1970).
    """

    def __init__(self, window_s: float = 30.0, clock: Callable[[], float] = time.time) -> None:
        self._window_s, self._clock = window_s, clock
        self._frames: Deque[Record] = deque()
        self._latest: Dict[str, Record] = {}
        self._powers: Dict[str, Record] = {}
        self._events: Deque[Event] = deque(maxlen=EVENTS)
        self._digest = Digest()

    def put(self, record: Record) -> None:
        """Take in one record."""
        if record["kind"] == "latency":
            self._frames.append(record)
        elif record["kind"] == "power":
            self._powers[record["host"]] = record
        else:
            self._latest[record["kind"]] = record
        self._events.extend(self._digest.events(record))

    def lines(self, width: int = 100, waiting: str = "") -> List[str]:
        """What there is to see, in lines of at most ``width`` characters; ``waiting`` is said while no frame came."""
        now = self._clock()
        while self._frames and self._frames[0]["t_s"] < now - self._window_s:
            self._frames.popleft()
        frames = list(self._frames)
        found = [
            *self._mode(),
            *(self._results(frames) if frames else [f"frames    none in the last {self._window_s:g} s{waiting}"]),
            *self._link(frames),
            *self._energy(frames),
            *self._server(),
            *self._told(now),
        ]
        return [line if len(line) <= width else line[: width - 1] + "…" for line in found]

    def _mode(self) -> List[str]:
        mode = self._latest.get("mode")
        if mode is None:
            return []
        policy = f" ({mode['policy']})" if mode["policy"] and mode["policy"] != mode["mode"] else ""
        return [f"mode      {mode['mode']}{policy}: {mode['reason']}"]

    def _results(self, frames: Sequence[Record]) -> List[str]:
        spent_s = max(frames[-1]["t_s"] - frames[0]["t_s"], 1e-3)
        rate = f"{(len(frames) - 1) / spent_s:.1f} a second" if len(frames) > 1 else "1"
        modes = Counter(frame["mode"] for frame in frames)
        shares = ", ".join(f"{mode} {100 * count / len(frames):.0f} %" for mode, count in modes.most_common())
        fell_back = sum(bool(frame["fallback_reason"]) for frame in frames)
        late = sum(not frame["deadline_met"] for frame in frames if frame["deadline_s"])
        engines = sorted({frame.get("engine", "") for frame in frames} - {"", "eager"})
        people = self._latest.get("people")
        seen = f"; {people['people']} people" if people else ""
        total = [frame["total_s"] for frame in frames]
        lines = [
            f"frames    {rate}; {shares}; {fell_back} fell back, {late} late{seen}",
            *([f"engine    {', '.join(engines)}"] if engines else []),
            *self._both(frames),
            f"latency   mean {_ms(statistics.fmean(total))}, median {_ms(statistics.median(total))}, "
            f"p99 {_ms(_p99(total))}, most {_ms(max(total))}",
        ]
        stages = {stage: [frame["stages_s"].get(stage, 0.0) for frame in frames] for stage in STAGES}
        means = {stage: statistics.fmean(values) for stage, values in stages.items()}
        whole = max(sum(means.values()), 1e-9)
        lines += [
            f"  {stage:<16}{_ms(mean):>10}  p99 {_ms(_p99(stages[stage])):>10}  {'█' * round(BAR * mean / whole)}"
            for stage, mean in means.items()
            if mean > 0.0
        ]
        return lines

    @staticmethod
    def _both(frames: Sequence[Record]) -> List[str]:
        told = [frame for frame in frames if frame.get("overlap_ratio") is not None]
        if not told:
            return []
        both, robot, server = (statistics.fmean(frame[name] for frame in told) for name in SHARES)
        idle = f"robot idle {100 * robot:.0f} %, server idle {100 * server:.0f} %"
        return [f"split     both sides compute {100 * both:.0f} % of the time; {idle}"]

    def _link(self, frames: Sequence[Record]) -> List[str]:
        lines = []
        link = self._latest.get("bandwidth")
        if link is not None:
            lines.append(
                f"link      {'' if link['connected'] else 'NOT CONNECTED; '}"
                f"up {_rate(link['uplink_bytes_per_s'])}, down {_rate(link['downlink_bytes_per_s'])}, "
                f"round trip {_ms(link['round_trip_s'])} ({link['source']}, {link['age_s']:.1f} s ago)"
            )
        remote = [frame for frame in frames if frame["round_trips"]]
        if remote:
            mean: Dict[str, float] = {
                key: statistics.fmean(frame[key] for frame in remote)
                for key in ("bytes_up", "bytes_down", "round_trips")
            }
            lines.append(
                f"a frame   {mean['bytes_up'] / 1e3:.1f} kB up, {mean['bytes_down'] / 1e3:.1f} kB down, "
                f"{mean['round_trips']:.2f} round trips"
            )
        return lines

    def _energy(self, frames: Sequence[Record]) -> List[str]:
        told = [frame for frame in frames if frame["energy_j"] is not None]
        parts = []
        if told:
            joules = statistics.fmean(frame["energy_j"] for frame in told)
            parts.append(f"{joules:.2f} J a frame ({told[-1]['energy_source']})")
        parts += [f"{host} {power['watts']:.1f} W ({power['source']})" for host, power in self._powers.items()]
        return [f"energy    {', '.join(parts)}"] if parts else []

    def _server(self) -> List[str]:
        server = self._latest.get("server")
        if server is None:
            return []
        return [
            f"server    {server['address']} on {server['device']}: {server['state']}, {server['robots']} robots, "
            f"{server['queue_length']} waiting, load {100 * server['load']:.0f} %, {server['inferences']} inferences, "
            f"{server['refused']} refused, {server['failed']} failed"
        ]

    def _told(self, now: float) -> List[str]:
        return [
            f"{'' if number else 'events':<10}{max(now - item['t_s'], 0.0):4.0f} s ago  {item['what']}: {item['text']}"
            for number, item in enumerate(reversed(self._events))
        ]


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms"


def _rate(bytes_per_s: Optional[float]) -> str:
    return "?" if not bytes_per_s else f"{bytes_per_s / 1e6:.1f} MB/s"


def columns() -> int:
    """Of the terminal; 200 where the output is none."""
    return shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else 200


def summary_line(lines: Sequence[str]) -> str:
    """Mode, frames and latency in one line, for a log."""
    wanted: List[Any] = [line for line in lines if line.startswith(("mode", "frames", "latency"))]
    return " | ".join(" ".join(line.split()[1:]) for line in wanted)
