"""Bandwidth over time: traces from CSV files, and the named links that the emulator offers.

``wifi_93mbps`` and ``wifi_73mbps`` are the mean bandwidths that the papers measured indoors and outdoors (rrto_mec,
II-C2) at the round trip of one RPC (2.6 ms). ``wifi_indoors`` and ``wifi_outdoors`` are *synthetic* traces with those
means: five minutes in steps of 0.5 s (lopinfer, Fig. 4), outdoors with drops to nearly nothing. ``lte`` and
``5g_mmwave`` have the statistics of ARISE's evaluation (dissertation, 3.6.1), a new bandwidth each second.
"""

from __future__ import annotations

import bisect
import csv
import math
import os
import pathlib
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple, Union

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.link.named_links import NAMED_LINKS

BYTES_PER_MBIT = 1e6 / 8
RTT_S = 2.6e-3
TRACE_DIRECTORY = pathlib.Path(__file__).parent / "traces"
MAX_ROWS = 1_000_000
#: Mean and standard deviation up and down, Mbps, and the mean round trip.
MOBILE = {
    "lte": ((44.0, 8.0), (110.0, 17.0), 32e-3),
    "5g_mmwave": ((152.0, 6.0), (1715.0, 57.0), 14e-3),
    "wifi_interfered": ((60.0, 25.0), (60.0, 25.0), 10e-3),
}

# column name -> bytes per second (or seconds) for one unit of it
_RATES = {"MBps": 1e6, "Mbps": BYTES_PER_MBIT, "bytes_per_s": 1.0}
_DELAYS = {"rtt_s": 0.5, "rtt_ms": 0.5e-3, "delay_s": 1.0, "delay_ms": 1e-3}


@dataclass(frozen=True)
class Trace:
    """Bandwidth, and optionally one-way delay, as steps that repeat for ever.

    Attributes:
        starts_s: [n], when each step begins; the first is 0, ascending.
        bytes_per_s: [n], bandwidth during the step (0 is an outage).
        delays_s: [n] one-way delay during the step, or empty.
        period_s: length of all steps together.
    """

    starts_s: Tuple[float, ...]
    bytes_per_s: Tuple[float, ...]
    period_s: float
    delays_s: Tuple[float, ...] = ()
    _bytes_before: Tuple[float, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        starts, rates = self.starts_s, self.bytes_per_s
        if not starts or len(starts) != len(rates) or (self.delays_s and len(self.delays_s) != len(starts)):
            raise BadInput("a trace needs as many times as bandwidths, and at least one")
        edges = np.array([*starts, self.period_s])
        values = np.array([*rates, *self.delays_s])
        if starts[0] != 0.0 or not np.all(np.isfinite(edges)) or np.any(np.diff(edges) <= 0):
            raise BadInput("the times of a trace must ascend")
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            raise BadInput("bandwidths and delays of a trace must be finite and not negative")
        before = np.concatenate([[0.0], np.cumsum(np.diff(edges) * np.array(rates))])
        object.__setattr__(self, "_bytes_before", tuple(before.tolist()))

    @staticmethod
    def constant_trace(bytes_per_s: float) -> Trace:
        """The same bandwidth for ever."""
        return Trace((0.0,), (float(bytes_per_s),), 3600.0)

    def rate_at(self, t_s: float) -> float:
        """Bytes per second at ``t_s``."""
        return self.bytes_per_s[self._step_at(t_s % self.period_s)]

    def delay_at(self, t_s: float) -> Optional[float]:
        """One-way delay at ``t_s``, None if the trace has none."""
        return self.delays_s[self._step_at(t_s % self.period_s)] if self.delays_s else None

    def bytes_until(self, t_s: float) -> float:
        """Bytes that fit through from time 0 to ``t_s``."""
        rounds, rest_s = divmod(t_s, self.period_s)
        step = self._step_at(rest_s)
        return (
            rounds * self._bytes_before[-1]
            + self._bytes_before[step]
            + (rest_s - self.starts_s[step]) * self.bytes_per_s[step]
        )

    def finish_time(self, start_s: float, size: float) -> float:
        """Return when ``size`` bytes that start at ``start_s`` are through; inf if never."""
        if self._bytes_before[-1] <= 0.0:
            return float("inf")
        # the common case, without the subtraction of large numbers: it ends within the step in which it begins
        rest_s = start_s % self.period_s
        step = self._step_at(rest_s)
        rate = self.bytes_per_s[step]
        end_s = self.starts_s[step + 1] if step + 1 < len(self.starts_s) else self.period_s
        if rate > 0.0 and rest_s + size / rate <= end_s:
            return start_s + size / rate
        target = self.bytes_until(start_s) + size
        rounds, rest = divmod(target, self._bytes_before[-1])
        step = max(0, bisect.bisect_left(self._bytes_before, rest) - 1)
        while self.bytes_per_s[step] <= 0.0:
            step += 1
        within_s = self.starts_s[step] + max(0.0, rest - self._bytes_before[step]) / self.bytes_per_s[step]
        return max(start_s, rounds * self.period_s + within_s)

    def mean_rate(self) -> float:
        """Mean bytes per second over the period."""
        return self._bytes_before[-1] / self.period_s

    def _step_at(self, rest_s: float) -> int:
        return bisect.bisect_right(self.starts_s, rest_s) - 1


@dataclass(frozen=True)
class Link:
    """Effect of the emulator on traffic: bandwidth (each way has it to itself) and one-way delays, seconds."""

    name: str
    up: Trace
    down: Trace
    up_delay_s: float
    down_delay_s: float

    @staticmethod
    def of(name: str, trace: Trace, rtt_s: float = RTT_S) -> Link:
        """The same both ways."""
        return Link(name, trace, trace, rtt_s / 2, rtt_s / 2)


def constant_trace(mbps: Optional[float], rtt_s: Optional[float], direction: str) -> Optional[Trace]:
    """Return the trace of a constant bandwidth that a running link is set to; None: its own stays.

    Args:
        mbps: in Mbit/s, 0: nothing is served; None: unchanged.
        rtt_s: round trip time that is set beside it, in seconds; None: unchanged.
        direction: ``up``, ``down`` or ``both``.

    Raises:
        BadInput: one of them cannot be set.
    """
    if direction not in ("up", "down", "both"):
        raise BadInput(f"no direction {direction!r}", remedy="directions: up, down, both")
    for value, what in ((mbps, "mbps"), (rtt_s, "rtt_s")):
        if value is not None and not (0 <= value < math.inf):
            raise BadInput(f"{what} must be a number of at least 0, not {value!r}")
    return None if mbps is None else Trace.constant_trace(mbps * BYTES_PER_MBIT)


def load_trace(path: Union[str, os.PathLike[str]]) -> Trace:
    """Read a CSV of bandwidths with a header.

    ``t_s``, one of MBps | Mbps | bytes_per_s, optionally one of rtt_s | rtt_ms | delay_s | delay_ms. A row holds until
    the next one; the last lasts as long as the one before it. Other columns are ignored.

    Raises:
        BadInput: it is not such a file; the message names the line.
    """
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            rows = csv.DictReader(stream)
            columns = rows.fieldnames or []
            rate = next((name for name in _RATES if name in columns), None)
            delay = next((name for name in _DELAYS if name in columns), None)
            if "t_s" not in columns or rate is None:
                raise BadInput(f"{path} is not a trace", remedy="it needs columns t_s and MBps, Mbps or bytes_per_s")
            times: List[float] = []
            rates: List[float] = []
            delays: List[float] = []
            for row in rows:
                try:
                    times.append(float(row["t_s"]))
                    rates.append(float(row[rate]) * _RATES[rate])
                    if delay:
                        delays.append(float(row[delay]) * _DELAYS[delay])
                except (TypeError, ValueError):
                    raise BadInput(f"{path}, line {rows.line_num}: not a number") from None
                if len(times) > MAX_ROWS:
                    raise BadInput(f"{path} has more than {MAX_ROWS} rows")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"cannot read the trace {path}: {error}") from error
    if not times:
        raise BadInput(f"{path} holds no rows")
    starts = [t - times[0] for t in times]
    step = starts[-1] - starts[-2] if len(starts) > 1 else 1.0
    try:
        return Trace(tuple(starts), tuple(rates), starts[-1] + step, tuple(delays))
    except BadInput as error:
        raise BadInput(f"{path}: {error.cause}") from error


def named_links() -> Dict[str, str]:
    """Name and one line of description of every link that :func:`named_link` knows."""
    return dict(NAMED_LINKS)


def named_link(name: str) -> Link:
    """The link of that name.

    Raises:
        BadInput: there is none.
    """
    if name not in named_links():
        raise BadInput(f"no link {name!r}", remedy=f"links: {', '.join(named_links())}; or give a trace file")
    if name.endswith("mbps"):
        return Link.of(name, Trace.constant_trace(float(name[len("wifi_") : -len("mbps")]) * BYTES_PER_MBIT))
    if name in MOBILE:
        up, down, rtt_s = MOBILE[name]
        return Link(name, _make_gaussian(*up, seed=1), _make_gaussian(*down, seed=2), rtt_s / 2, rtt_s / 2)
    return Link.of(name, load_trace(TRACE_DIRECTORY / f"{name}.csv"))


def _make_gaussian(mean: float, deviation: float, seed: int, steps: int = 300) -> Trace:
    """Independent bandwidths of one second each with exactly that mean and deviation, Mbps, at least a tenth of it."""
    values = np.random.RandomState(seed).normal(0.0, 1.0, steps)
    values = np.maximum(mean + deviation * (values - values.mean()) / values.std(), mean / 10)
    return Trace(tuple(map(float, range(steps))), tuple((values * BYTES_PER_MBIT).tolist()), float(steps))


def synthesise_rows(name: str) -> List[Tuple[float, float]]:
    """Rows (t_s, Mbps) of ``wifi_indoors`` or ``wifi_outdoors``: always the same.

    A slow wander (first-order autoregression in the logarithm, as distance and obstacles change) times fast fading;
    outdoors, one episode in twenty seconds drops to below 2 Mbps (nothing reflects the signal past a tree).
    """
    mean, spread, outages, seed = {"wifi_indoors": (93.0, 0.25, 0, 93), "wifi_outdoors": (73.0, 0.45, 15, 73)}[name]
    random = np.random.RandomState(seed)  # its stream is frozen by NumPy's policy; Generator's is not
    steps = 600
    wander = np.zeros(steps)
    for i in range(1, steps):
        wander[i] = 0.95 * wander[i - 1] + random.normal(0.0, spread * (1 - 0.95**2) ** 0.5)
    rates = np.exp(wander) * np.clip(random.normal(1.0, 0.08, steps), 0.6, 1.4)
    dropped = np.zeros(steps, bool)
    for begin in np.sort(random.choice(steps - 8, outages, replace=False)):
        dropped[begin : begin + random.randint(1, 5)] = True
    low = random.uniform(0.05, 2.0, steps)
    # scale what is not dropped so that the mean over everything is the papers'
    scale = (mean * steps - low[dropped].sum()) / rates[~dropped].sum()
    values = np.where(dropped, low, np.maximum(rates * scale, 2.0))
    return [(round(i * 0.5, 1), round(float(value), 2)) for i, value in enumerate(values)]


def write_traces(directory: Union[str, os.PathLike[str]]) -> List[pathlib.Path]:
    """Write the synthetic traces as CSV into ``directory``; returns the files."""
    target = pathlib.Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name in ("wifi_indoors", "wifi_outdoors"):
        path = target / f"{name}.csv"
        lines = ["t_s,Mbps", *(f"{t},{mbps}" for t, mbps in synthesise_rows(name))]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        written.append(path)
    return written
