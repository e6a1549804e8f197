"""Energy over an exact interval, from the best sources, or from a state model where these have a gap."""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, NamedTuple, Optional, Sequence

from edge_offload.errors import BadInput
from edge_offload.power.source import MEASURED, MODEL, UNKNOWN, PowerSource
from edge_offload.power.states import StateModel
from edge_offload.power.trace import make_trace


class Energy(NamedTuple):
    """Joules over an interval, and whether they were ``measured`` or come from a ``model``; nan where ``unknown``."""

    joules: float
    source: str


class Power(NamedTuple):
    """Watts now, whether ``measured`` or from a ``model``, and the name of what was read; nan where ``unknown``."""

    watts: float
    source: str
    name: str


class EnergyMeter:
    """Joules over exact intervals: the sum over measured sources, or the state model where they do not cover one.

    Args:
        sources: measured sources whose powers add up to the robot's (see :func:`edge_offload.power.detect.detect`).
        model: answers for intervals that the sources do not cover (none present, one failed, sampling fell behind);
            None: those are unknown.
        period_s: time between samples of the background thread.
        max_gap_s: samples further apart than this do not count as measured.
        history_s: how far back intervals may reach.
        clock: monotonic seconds; intervals are on the same clock.

    Attributes:
        problem: reason why the sources cannot be read; empty while they can.
    """

    def __init__(
        self,
        sources: Sequence[PowerSource],
        model: Optional[StateModel],
        period_s: float = 0.02,
        max_gap_s: float = 0.5,
        history_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not period_s > 0:
            raise BadInput(f"sampling period is {period_s} s", remedy="give a positive number")
        self._traces = [make_trace(source, history_s) for source in sources]
        self._model = model
        self._period_s = period_s
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self.problem = ""

    @property
    def name(self) -> str:
        """Name of the sources or the model, for reports."""
        model = "" if self._model is None else self._model.name
        return " + ".join(trace.source.name for trace in self._traces) or model

    def start(self) -> EnergyMeter:
        """Take a first sample and continue in a thread; without measured sources, do nothing."""
        if self._traces and self._thread is None:
            self.sample()
            self._thread = threading.Thread(target=self._sample_periodically, name="energy-meter", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop sampling and release the sources."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for trace in self._traces:
            trace.source.close()
        self._traces = []

    def __enter__(self) -> EnergyMeter:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sample_periodically(self) -> None:
        while not self._stop.wait(self._period_s):
            self.sample()

    def sample(self) -> bool:
        """Read every source once; return whether all could be read (:attr:`problem` says why not)."""
        with self._lock:
            problems = []
            for trace in self._traces:
                try:
                    trace.sample(self._clock())
                except OSError as error:
                    problems.append(f"{trace.source.name}: {error}")
            self.problem = "; ".join(problems)
        return not problems

    def energy_between(self, t0: float, t1: float) -> Energy:
        """Return the joules over [t0, t1], with a new sample first if the newest is older than ``t1``.

        Raises:
            BadInput: the interval is reversed, or starts before the history.
        """
        if not (math.isfinite(t0) and math.isfinite(t1) and t0 <= t1):
            raise BadInput(f"energy over [{t0}, {t1}]: not an interval")
        if any(trace.end < t1 for trace in self._traces):
            self.sample()
        with self._lock:
            if self._traces and all(trace.covers_interval(t0, t1, self._max_gap_s) for trace in self._traces):
                return Energy(sum(trace.energy(t0, t1) for trace in self._traces), MEASURED)
        return Energy(math.nan, UNKNOWN) if self._model is None else Energy(self._model.energy(t0, t1), MODEL)

    def read_power(self) -> Power:
        """Return the current power: of the newest samples while they are fresh, else of the model."""
        if self._traces and all(self._clock() - trace.end > self._period_s for trace in self._traces):
            self.sample()
        with self._lock:
            watts = [trace.latest_watts for trace in self._traces]
            fresh = all(self._clock() - trace.end <= self._max_gap_s for trace in self._traces)
        measured = [value for value in watts if value is not None]
        if measured and fresh and len(measured) == len(watts):
            return Power(sum(measured), MEASURED, self.name)
        if self._model is None:
            return Power(math.nan, UNKNOWN, "")
        return Power(self._model.watts(), MODEL, self._model.name)
