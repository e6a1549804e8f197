"""Terminal view of a run: its last seconds in a few lines, in milliseconds, megabytes and joules."""

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


class TerminalView:
    """View of ``edge-offload top``.

    Args:
        window_s: seconds of frames that the figures cover.
        clock: current time of the records' clock (s since 1970).
    """

    def __init__(self, window_s: float = 30.0, clock: Callable[[], float] = time.time) -> None:
        self._window_s, self._clock = window_s, clock
        self._frames: Deque[Record] = deque()
        self._latest: Dict[str, Record] = {}
        self._powers: Dict[str, Record] = {}
        self._events: Deque[Event] = deque(maxlen=5)
        self._digest = Digest()

    def put(self, record: Record) -> None:
        """Add a record."""
        if record["kind"] == "latency":
            self._frames.append(record)
        elif record["kind"] == "power":
            self._powers[record["host"]] = record
        else:
            self._latest[record["kind"]] = record
        self._events.extend(self._digest.digest_record(record))

    def render_lines(self, width: int = 100, waiting: str = "") -> List[str]:
        """Render lines of at most ``width`` characters; ``waiting``: why no frame arrived, appended where none did."""
        now = self._clock()
        while self._frames and self._frames[0]["t_s"] < now - self._window_s:
            self._frames.popleft()
        frames = list(self._frames)
        lines = [
            *self._mode_lines(),
            *(self._frame_lines(frames) if frames else [f"frames    none in the last {self._window_s:g} s{waiting}"]),
            *self._link_lines(frames),
            *self._energy_lines(frames),
            *self._server_lines(),
            *self._event_lines(now),
        ]
        return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]

    def _mode_lines(self) -> List[str]:
        mode = self._latest.get("mode")
        if mode is None:
            return []
        policy = f" ({mode['policy']})" if mode["policy"] and mode["policy"] != mode["mode"] else ""
        return [f"mode      {mode['mode']}{policy}: {mode['reason']}"]

    def _frame_lines(self, frames: Sequence[Record]) -> List[str]:
        span_s = max(frames[-1]["t_s"] - frames[0]["t_s"], 1e-3)
        rate = f"{(len(frames) - 1) / span_s:.1f} a second" if len(frames) > 1 else "1"
        modes = Counter(frame["mode"] for frame in frames)
        shares = ", ".join(f"{mode} {100 * count / len(frames):.0f} %" for mode, count in modes.most_common())
        fallbacks = sum(bool(frame["fallback_reason"]) for frame in frames)
        late = sum(not frame["deadline_met"] for frame in frames if frame["deadline_s"])
        engines = sorted({frame.get("engine", "") for frame in frames} - {"", "eager"})
        people = self._latest.get("people")
        people_note = f"; {people['people']} people" if people else ""
        totals = [frame["total_s"] for frame in frames]
        lines = [
            f"frames    {rate}; {shares}; {fallbacks} fell back, {late} late{people_note}",
            *([f"engine    {', '.join(engines)}"] if engines else []),
            *self._overlap_lines(frames),
            f"latency   mean {_format_ms(statistics.fmean(totals))}, median {_format_ms(statistics.median(totals))}, "
            f"p99 {_format_ms(_percentile_99(totals))}, most {_format_ms(max(totals))}",
        ]
        stages = {stage: [frame["stages_s"].get(stage, 0.0) for frame in frames] for stage in STAGES}
        means = {stage: statistics.fmean(values) for stage, values in stages.items()}
        sum_s = max(sum(means.values()), 1e-9)
        lines += [
            f"  {stage:<16}{_format_ms(mean):>10}  p99 {_format_ms(_percentile_99(stages[stage])):>10}  "
            f"{'█' * round(24 * mean / sum_s)}"
            for stage, mean in means.items()
            if mean > 0.0
        ]
        return lines

    @staticmethod
    def _overlap_lines(frames: Sequence[Record]) -> List[str]:
        split_frames = [frame for frame in frames if frame.get("overlap_ratio") is not None]
        if not split_frames:
            return []
        overlap, robot_idle, server_idle = (statistics.fmean(frame[name] for frame in split_frames) for name in SHARES)
        idle = f"robot idle {100 * robot_idle:.0f} %, server idle {100 * server_idle:.0f} %"
        return [f"split     both sides compute {100 * overlap:.0f} % of the time; {idle}"]

    def _link_lines(self, frames: Sequence[Record]) -> List[str]:
        lines = []
        link = self._latest.get("bandwidth")
        if link is not None:
            lines.append(
                f"link      {'' if link['connected'] else 'NOT CONNECTED; '}"
                f"up {_format_rate(link['uplink_bytes_per_s'])}, down {_format_rate(link['downlink_bytes_per_s'])}, "
                f"round trip {_format_ms(link['round_trip_s'])} ({link['source']}, {link['age_s']:.1f} s ago)"
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

    def _energy_lines(self, frames: Sequence[Record]) -> List[str]:
        measured = [frame for frame in frames if frame["energy_j"] is not None]
        parts = []
        if measured:
            joules = statistics.fmean(frame["energy_j"] for frame in measured)
            parts.append(f"{joules:.2f} J a frame ({measured[-1]['energy_source']})")
        parts += [f"{host} {power['watts']:.1f} W ({power['source']})" for host, power in self._powers.items()]
        return [f"energy    {', '.join(parts)}"] if parts else []

    def _server_lines(self) -> List[str]:
        server = self._latest.get("server")
        if server is None:
            return []
        return [
            f"server    {server['address']} on {server['device']}: {server['state']}, {server['robots']} robots, "
            f"{server['queue_length']} waiting, load {100 * server['load']:.0f} %, {server['inferences']} inferences, "
            f"{server['refused']} refused, {server['failed']} failed"
        ]

    def _event_lines(self, now: float) -> List[str]:
        return [
            f"{'' if number else 'events':<10}{max(now - item['t_s'], 0.0):4.0f} s ago  {item['what']}: {item['text']}"
            for number, item in enumerate(reversed(self._events))
        ]


def _percentile_99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _format_ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms"


def _format_rate(bytes_per_s: Optional[float]) -> str:
    return "?" if not bytes_per_s else f"{bytes_per_s / 1e6:.1f} MB/s"


def terminal_width() -> int:
    """Return the terminal's width in characters; 200 where the output is no terminal."""
    return shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else 200


def summary_line(lines: Sequence[str]) -> str:
    """Join mode, frames and latency to one line, for a log."""
    chosen: List[Any] = [line for line in lines if line.startswith(("mode", "frames", "latency"))]
    return " | ".join(" ".join(line.split()[1:]) for line in chosen)
