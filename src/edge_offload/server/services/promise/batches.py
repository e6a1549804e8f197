"""What batches of a model take on this device, measured and kept on disk, and which of them are exact enough."""

from __future__ import annotations

import hashlib
import json
import logging
import pathlib
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from edge_offload.cache import cache_dir, write_atomic
from edge_offload.errors import BadInput
from edge_offload.execute.batches import BatchExecutor
from edge_offload.execute.module import Execution
from edge_offload.execute.tensors import TensorSpec
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.services.replica.replicas import Replica

_log = logging.getLogger(__name__)
FrameInputs = Sequence[Sequence[torch.Tensor]]


@dataclass(frozen=True)
class BatchTable:
    """Latencies of a model's batches for one shape on one device; the fields are those of the cached file.

    Attributes:
        median_s, p95_s: of a batch of 1, 2, …; seconds. They do not fall.
        equal: the largest batch up to which all have the bits of single frames.
        reason: why there are no larger ones; empty: none was tried.
    """

    median_s: Tuple[float, ...]
    p95_s: Tuple[float, ...]
    equal: int
    reason: str = ""

    @property
    def latencies(self) -> Latencies:
        """Median latencies, for plans."""
        return Latencies(self.median_s)


class BatchRunner:
    """Runs batches of one replica for inputs of one shape. On the thread that owns the device."""

    def __init__(self, replica: Replica, specs: Tuple[TensorSpec, ...]) -> None:
        self.replica, self.specs = replica, specs
        executor = replica.executor
        self.run: Callable[[FrameInputs], List[Execution]]
        self._judge = self._prepare = None
        self.emulated = bool(executor.latencies_s)
        if self.emulated:
            self.run = executor.run_batch
        else:
            batched = BatchExecutor(executor)
            self.run, self._judge, self._prepare = batched.run, batched.compare_batch, batched.prepare_batch

    def load_or_measure(self, give_way: Callable[[], None], folder: Optional[pathlib.Path] = None) -> BatchTable:
        """Load the table from ``folder`` (by default of the user's cache), or measure and save it, which takes seconds.

        ``give_way`` is called between runs and does the work that others wait for.
        """
        executor = self.replica.executor
        if self.emulated:
            seconds = executor.latencies_s
            return BatchTable(seconds, seconds, len(seconds))
        path = (folder or cache_dir() / "batches") / f"{self._cache_key()}.json"
        table = _load_table(path)
        if table is None:
            table = self._measure_batches(give_way)
            _save_table(path, table)
        elif executor.graphs is not None:
            for size in range(1, len(table.median_s) + 1):
                give_way()
                self._prepare_frames(self._make_frames(size))
        medians = ", ".join(f"{1e3 * median_s:.2f}" for median_s in table.median_s)
        _log.info("batches of %s: %s ms", self.replica.name, medians)
        return table

    def _make_frames(self, size: int) -> FrameInputs:
        return [[_random_input(spec, 100 * size + place) for spec in self.specs] for place in range(size)]

    def _prepare_frames(self, frames: FrameInputs) -> None:
        assert self._prepare is not None
        self._prepare(frames)

    def _measure_batches(self, give_way: Callable[[], None]) -> BatchTable:
        assert self._judge is not None
        medians: List[float] = []
        tails: List[float] = []
        equal, reason = 1, ""
        for size in range(1, 9):
            frames = self._make_frames(size)
            if size > 1:
                verdict = self._judge(frames)
                if verdict.reason:
                    reason = f"batch {size}: {verdict.reason}"
                    break
                equal = size if verdict.equal and equal == size - 1 else equal
            self._prepare_frames(frames)
            durations: List[float] = []
            until_s = time.monotonic() + 3.0  # of one size (seconds)
            while len(durations) < 9 and (len(durations) < 3 or time.monotonic() < until_s):
                give_way()
                started = time.monotonic()
                self.run(frames)
                durations.append(time.monotonic() - started)
            durations.sort()
            # a larger batch that seems to take less was measured on a device with other work
            medians.append(max([statistics.median(durations), *medians[-1:]]))
            tails.append(max([durations[int(0.95 * (len(durations) - 1) + 0.5)], medians[-1], *tails[-1:]]))
        return BatchTable(tuple(medians), tuple(tails), equal, reason)

    def _cache_key(self) -> str:
        replica = self.replica
        facts: Dict[str, Any] = {
            "fingerprint": replica.executor.fingerprint(),
            "model": replica.state_hash,
            "name": replica.name,
            "options": replica.options,
            "inputs": [spec.to_dict() for spec in self.specs],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:40]


def _random_input(spec: TensorSpec, seed: int) -> torch.Tensor:
    """Return a random input of this shape."""
    zeros = spec.zeros()
    generator = torch.Generator().manual_seed(seed)
    if zeros.dtype.is_floating_point:
        return torch.rand(zeros.shape, generator=generator).to(zeros.dtype)
    if zeros.dtype.is_complex or zeros.dtype is torch.bool:
        return zeros
    return torch.randint(0, 128, tuple(zeros.shape), generator=generator).to(zeros.dtype)


def _load_table(path: pathlib.Path) -> Optional[BatchTable]:
    try:
        raw = json.loads(path.read_text("utf-8"))
        median, p95 = (Latencies.parse(raw[key]).seconds for key in ("median_s", "p95_s"))
        equal, reason = raw["equal"], raw["reason"]
        if len(p95) != len(median) or type(equal) is not int or not 1 <= equal <= len(median):
            raise BadInput("not as it was written")
        return BatchTable(median, p95, equal, str(reason))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, BadInput) as error:
        _log.warning("%s cannot be used, batches are measured anew: %s", path, error)
        return None


def _save_table(path: pathlib.Path, table: BatchTable) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, json.dumps(asdict(table)).encode())
    except OSError as error:
        _log.warning("batch latencies cannot be kept in %s: %s", path.parent, error)
