"""What a server says of itself: load, queue, latency per model, sessions, bytes."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Callable, Deque, Dict, List, Mapping, Tuple

from edge_offload.errors import ProtocolError

WINDOW_S = 10.0


@dataclass(frozen=True)
class ModelLatency:
    """Compute time of one model on the server, seconds, over its latest :data:`SAMPLES` inferences."""

    count: int
    mean_s: float
    p99_s: float


@dataclass(frozen=True)
class PromiseStatus:
    """Service of a robot with a promise, over its latest slots.

    Attributes:
        robot, model: names of the robot, and of the model that computes for it.
        bound: accuracy that sharing the server may cost it over having the server alone.
        drop: accuracy that it has cost, by the ages of its results and the declared loss with age; NaN: no result.
        interval: frames from one result to the next; NaN: there were fewer than two.
        batch: frames that were computed together, on average; NaN: none was.
        late: share of its slots whose frame came too late for its batch, 0 to 1.
        turns: number of slots that it has had.
        note: explanation of a declaration that was limited; empty: none.
    """

    robot: str
    model: str
    bound: float
    drop: float = math.nan
    interval: float = math.nan
    batch: float = math.nan
    late: float = 0.0
    turns: int = 0
    note: str = ""


@dataclass(frozen=True)
class ServerStatus:
    """State of a server at one moment.

    Attributes:
        load: share of the last :data:`WINDOW_S` seconds in which the device computed, 0 to 1.
        queue_length: requests that wait.
        sessions: robots connected now.
        models: compute latency by model.
        inferences, refused, failed: since the start.
        bytes_in, bytes_out: payload bytes of requests and replies since the start.
        uptime_s: seconds since the start.
        device: where it computes, in words.
        batches: of frames of robots that have promises, since the start.
        idle: share of the last :data:`WINDOW_S` seconds in which the device did nothing, 0 to 1.
        promises: robots that have one.
    """

    load: float = 0.0
    queue_length: int = 0
    sessions: int = 0
    models: Dict[str, ModelLatency] = field(default_factory=dict)
    inferences: int = 0
    refused: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    uptime_s: float = 0.0
    device: str = ""
    batches: int = 0
    idle: float = 1.0
    promises: List[PromiseStatus] = field(default_factory=list)

    def to_dict(self) -> Dict[str, Any]:
        """Return plain values, for a message or JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ServerStatus:
        """The status in what :meth:`to_dict` made.

        Raises:
            ProtocolError: it is something else.
        """
        try:
            values = {item.name: raw[item.name] for item in fields(cls)}
            values["models"] = {str(name): ModelLatency(**facts) for name, facts in raw["models"].items()}
            values["promises"] = [PromiseStatus(**facts) for facts in raw["promises"]]
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"this is no server status: {error}") from error


class StatusBook:
    """Counts what a server does. Thread-safe; the clock is injected."""

    def __init__(self, device: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._device = device
        self._started = clock()
        self._lock = threading.Lock()
        self._busy: Deque[Tuple[float, float]] = deque()
        self._latency: Dict[str, Deque[float]] = {}
        self._counts: Dict[str, int] = {}
        self._totals = {"inferences": 0, "refused": 0, "failed": 0, "bytes_in": 0, "bytes_out": 0}

    def add_totals(self, **amounts: int) -> None:
        """Add to the totals: ``refused=1``, ``bytes_in=…``."""
        with self._lock:
            for name, amount in amounts.items():
                self._totals[name] += amount

    def record_inference(self, model: str, compute_s: float) -> None:
        """Record one inference that ended now."""
        with self._lock:
            now = self._clock()
            self._totals["inferences"] += 1
            self._counts[model] = self._counts.get(model, 0) + 1
            self._latency.setdefault(model, deque(maxlen=512)).append(compute_s)
            self._busy.append((now - compute_s, now))
            self._remove_old(now)

    def expected_inference_s(self, model: str) -> float:
        """Mean compute time of ``model`` so far, 0 if it has not run (seconds)."""
        with self._lock:
            samples = self._latency.get(model)
            return sum(samples) / len(samples) if samples else 0.0

    def make_status(self, queue_length: int, sessions: int) -> ServerStatus:
        """Return the status now."""
        with self._lock:
            now = self._clock()
            self._remove_old(now)
            window = max(min(WINDOW_S, now - self._started), 1e-9)
            busy = sum(end - max(begin, now - window) for begin, end in self._busy)
            load = min(1.0, max(0.0, busy / window))
            return ServerStatus(
                load=load,
                idle=1.0 - load,
                queue_length=queue_length,
                sessions=sessions,
                models={name: self._summarise_latency(name) for name in self._latency},
                uptime_s=now - self._started,
                device=self._device,
                inferences=self._totals["inferences"],
                refused=self._totals["refused"],
                failed=self._totals["failed"],
                bytes_in=self._totals["bytes_in"],
                bytes_out=self._totals["bytes_out"],
            )

    def _summarise_latency(self, model: str) -> ModelLatency:
        ordered = sorted(self._latency[model])
        return ModelLatency(
            count=self._counts[model],
            mean_s=sum(ordered) / len(ordered),
            p99_s=ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        )

    def _remove_old(self, now: float) -> None:
        while self._busy and self._busy[0][1] < now - WINDOW_S:
            self._busy.popleft()
