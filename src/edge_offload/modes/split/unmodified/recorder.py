"""Mode ``split`` for unmodified programs: steady inferences are divided between robot and server.

The virtual device computes on this machine, and inferences are divided once they are known.

The virtual device computes on this machine, and inferences are divided once they are known.

The recorder watches segments that begin with an upload and end in a read. When the same one has run a few times on the
same storages it is taken for an inference: its weights are copied from the executor, it becomes a sequence
(:mod:`.lift`), and a split is opened, all in the background. From then on its reads are
answered by robot and server together. The executor is not told of such a step; what the step would have left on the
device is owed, and computed there as soon as anything names it. Whatever goes wrong, the executor computes the step.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, LinkLost, Unsupported
from edge_offload.ir.trace.segments import Outcome
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt
from edge_offload.modes.split.unmodified.cut import with_reads
from edge_offload.modes.split.unmodified.deferred import DeferringRecorder, copied
from edge_offload.modes.split.unmodified.inferences import Inference, record
from edge_offload.modes.split.unmodified.join import Joined, join
from edge_offload.modes.split.unmodified.lift import Calls, Recorded, compare, unavailable_reason
from edge_offload.modes.split.unmodified.reads import PendingReads, ReadTrace
from edge_offload.modes.split.unmodified.recorded import RecordedSplit
from edge_offload.protocol.messages import Message
from edge_offload.protocol.remote import Remote
from edge_offload.replay.flushed import CUT, READ
from edge_offload.replay.signatures import CompletedStep, SegmentInvocation
from edge_offload.split.model.network import Network

REPEATS = 3
"""Runs after which a segment is taken for an inference."""
MAX_KNOWN = 32
"""Segments with their storages that are watched."""
MAX_OPEN = 4
MAX_VARIANTS = 6
"""Sets of storages and host numbers of one segment, after which it is no inference that comes again."""
MAX_CHANGES = 3
"""Times that an inference is learnt anew because its weights were changed."""
MAX_FAILURES = 3
"""In a row, other than of the link."""
ROUNDING = 100.0
"""Kernels round otherwise on a part of the rows: so much farther from the device's result than the whole may be."""

_log = logging.getLogger(__name__)
Key = Tuple[int, Tuple[Tuple[int, int], ...], bytes]
Opener = Callable[[Network], RecordedSplit]


class SplitRecorder(DeferringRecorder):
    """A recorder whose steady inferences are split.

    Args:
        native, remote: see :class:`~edge_offload.replay.recorder.Recorder`; the executor is one of this machine.
        opener: makes the split of an inference.
        slowdown: emulate a robot that is so many times slower.
    """

    MODE = Mode.SPLIT

    def __init__(self, native: Any, remote: Remote, opener: Opener, slowdown: float = 1.0) -> None:
        super().__init__(native, remote)
        self.opener, self._slowdown = opener, slowdown
        self._inferences: OrderedDict[Key, Inference] = OrderedDict()
        self._variants: Dict[int, int] = {}
        self._changes: Dict[int, int] = {}
        self._series: Optional[ReadTrace] = None

    def state(self) -> str:
        """How the splits stand, in words."""
        told = [
            f"{item.name}: {item.problem or (item.runner.state() if item.runner else 'being recorded')}"
            for item in list(self._inferences.values())
            if item.problem or item.runner or item.runs >= REPEATS
        ]
        return "; ".join(told) or "no inference has come often enough yet"

    def reconnect(self, remote: Remote) -> None:
        """See :meth:`Recorder.reconnect`."""
        self._held = None
        self._steps_owed.clear()
        self._forget_inferences()
        super().reconnect(remote)

    def close(self) -> None:
        """Give all splits up."""
        self._forget_inferences()

    # -- running

    def _run(self, pieces: Sequence[SegmentInvocation], done: Optional[CompletedStep]) -> Outcome:
        if self.mode is not Mode.SPLIT or self._on_device:
            return super()._run(pieces, done)
        piece = pieces[-1]
        if self._held is not None and self._held.owed is not None:
            return self._take(self._held, self._held.owed, piece)
        inference = self._known(piece)
        if inference is not None and inference.runner is not None and not inference.problem:
            outcome = self._together(inference, inference.runner, piece)
            if outcome is not None:
                return outcome
        self._note_writes(piece)
        began, busy = time.monotonic(), time.perf_counter()
        outcome = super()._run(pieces, done)
        if inference is not None:
            if self._slowdown > 1.0:
                time.sleep((self._slowdown - 1.0) * (time.perf_counter() - busy))
            inference.seconds.append(time.monotonic() - began)
            self._learn(inference, piece, outcome.tensor)
        else:
            self._follow(piece, outcome.tensor)
        if self._held is not None and outcome.tensor is not None:
            self._compare(self._held, outcome.tensor)
        return outcome

    def _known(self, piece: SegmentInvocation) -> Optional[Inference]:
        """The inference that a step may be."""
        if piece.reason not in (READ, CUT) or not piece.payloads:
            return None
        key = (piece.segment, piece.live, piece.numbers)
        found = self._inferences.get(key)
        if found is None:
            variants = self._variants[piece.segment] = self._variants.get(piece.segment, 0) + 1
            if variants > MAX_VARIANTS:
                if variants == MAX_VARIANTS + 1:
                    self._tell("an inference uses other tensors or host numbers each time: it is computed here")
                return None
            found = Inference(f"inference {piece.segment}", frozenset(number for _, number in piece.live))
            self._inferences[key] = found
            for old in [key for key, item in self._inferences.items() if item.runner is None]:
                if len(self._inferences) <= MAX_KNOWN or old == (piece.segment, piece.live, piece.numbers):
                    break
                del self._inferences[old]
        return found

    def _together(self, inference: Inference, runner: RecordedSplit, piece: SegmentInvocation) -> Optional[Outcome]:
        """The result of a step by robot and server together; None if the device is to compute it."""
        attempt = self._attempt(inference, runner, piece)
        if attempt is None:
            return None
        tensors = [copied(tensor) for tensor in attempt.outputs]
        if not inference.checked and inference.later:
            self._hold(PendingReads(inference, piece.base, tensors, None, place=0))
            return None
        if not inference.checked:
            self._check_once(inference, piece, tensors[0])
        if inference.problem:
            return None
        self._count(runner, piece, attempt)
        owed = self._defer(inference, piece, bool(inference.later))
        if inference.later:
            self._hold(PendingReads(inference, piece.base, tensors, owed))
        return Outcome(tensors[0])

    def _attempt(self, inference: Inference, runner: RecordedSplit, piece: SegmentInvocation) -> Optional[Attempt]:
        """What robot and server computed together, if they did."""
        if runner.unavailable_reason(piece.payloads) is not None or runner.stays_local(piece.payloads):
            return None
        local_s = sorted(inference.seconds)[len(inference.seconds) // 2] if inference.seconds else 0.0
        try:
            attempt = runner.run(piece.payloads, None, local_s, {})
        except Exception as error:  # the link, or an operator on a part of its rows: the device computes all of it
            self.splits.failed += 1
            self._failed_at(inference, error)
            return None
        inference.failures = 0
        return attempt

    def _count(self, runner: RecordedSplit, piece: SegmentInvocation, attempt: Attempt) -> None:
        """A step whose result is given to the program."""
        planned = runner.planned(piece.payloads)
        counted = runner.counted
        if planned is not None and counted is not None:
            self.splits.operators_split += planned.plans[counted.plan].plan.splits_an_operator
        self.splits.inferences += 1
        self.splits.bytes_up += attempt.bytes_up
        self.splits.bytes_down += attempt.bytes_down
        self.counters.round_trips += 1

    def _failed_at(self, inference: Inference, error: Exception) -> None:
        """A link comes back; an operator that fails on a part of its rows will fail again."""
        if not isinstance(error, EdgeOffloadError):
            _log.exception("a split of %s failed", inference.name)
        if not isinstance(error, LinkLost) and not isinstance(error.__cause__, LinkLost):
            inference.failures += 1
        if inference.failures >= MAX_FAILURES:
            inference.problem = f"{type(error).__name__}: {error}"
        self._tell(f"{inference.name} is computed here for now: {error}")

    def _check_once(self, inference: Inference, piece: SegmentInvocation, tensor: torch.Tensor) -> None:
        """The first result of a split beside the device's, on inputs that it was not recorded with."""
        inference.checked = True
        definition = inference.definition
        assert definition is not None
        ghost = SegmentInvocation(
            piece.segment,
            piece.base,
            piece.live,
            frozenset(inference.made),
            piece.numbers,
            piece.payloads,
            piece.reason,
            definition,
        )
        outcome = self._on_executor(ghost)
        try:
            assert outcome.tensor is not None
            compare(tensor, outcome.tensor, "the split", ROUNDING)
        except Unsupported as error:
            inference.problem = str(error)
            self._tell(f"{inference.name} is computed here: {error}")

    def _compare(self, held: PendingReads, tensor: torch.Tensor) -> None:
        """The same read by read, while the device computes all of an inference that is read several times."""
        try:
            compare(held.take(), tensor, "the split", ROUNDING)
            held.inference.checked = held.over
        except Unsupported as error:
            held.inference.problem = str(error)
            self._tell(f"{held.inference.name} is computed here: {error}")
        if held.over or held.inference.problem:
            self._held = None

    def _renew(self, generation: int) -> None:
        before = self._generation
        super()._renew(generation)
        if self._generation != before:  # segments have other numbers now
            self._forget_inferences()

    # -- learning

    def _note_writes(self, piece: SegmentInvocation) -> None:
        """An inference whose weights are changed has to be learnt anew."""
        if not self._inferences:
            return
        changed = self._changed(piece.segment, piece.live)
        if changed:
            for key in [key for key, item in self._inferences.items() if item.reads & changed]:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        inference = self._inferences.pop(key)
        inference.problem = inference.problem or "its weights were changed"
        if inference.runner is not None:
            self._changes[key[0]] = self._changes.get(key[0], 0) + 1
            inference.runner.close()

    def _dropped_by_program(self, gone: Set[int]) -> None:
        """See :class:`DeferringRecorder`: an inference without its weights does not come again."""
        for key in [key for key, item in self._inferences.items() if item.reads & gone]:
            self._drop(key)

    def _forget_inferences(self) -> None:
        for key in list(self._inferences):
            self._drop(key)
        self._held = self._series = None
        self._variants.clear()
        self._changes.clear()
        self._written.clear()
        self._calls = Calls()

    def _learn(self, inference: Inference, piece: SegmentInvocation, tensor: Optional[torch.Tensor]) -> None:
        """An inference has been computed here, up to its first read, which gave ``tensor``."""
        self._conclude()
        inference.runs += 1
        self._series = ReadTrace(inference, [piece], [tensor])

    def _follow(self, piece: SegmentInvocation, tensor: Optional[torch.Tensor]) -> None:
        """So has what came behind it."""
        if self._series is not None and not self._series.goes_on(piece, tensor):
            self._conclude()

    def _conclude(self) -> None:
        """The inference that was followed is over: have it recorded if it has come often enough."""
        series, self._series = self._series, None
        if series is None or series.inference.definition is not None or series.inference.problem:
            return
        inference = series.inference
        inference.later = series.common()
        whole = [*series.pieces[: len(inference.later) + 1]]
        expected = [tensor for tensor in series.tensors[: len(whole)] if tensor is not None]
        kept = len(expected) == len(whole) and all(payload is not None for payload in whole[0].payloads)
        if inference.runs >= REPEATS and kept:
            self._begin(inference, whole, expected)

    def _begin(
        self, inference: Inference, pieces: Sequence[SegmentInvocation], expected: Sequence[torch.Tensor]
    ) -> None:
        """An inference has come often enough, and its reads gave ``expected``: have it recorded if it can be."""
        definitions = [self._definitions.signatures.definition(piece.segment) for piece in pieces]
        told = [*definitions[:-1], with_reads(definitions[-1], inference.uses.read, self._definitions.signatures)]
        joined = join(pieces, told)
        recorded = self._calls.read(joined.definition)
        why = unavailable_reason(recorded, joined.live, len(expected))
        if why is not None and len(pieces) > 1:  # then perhaps up to its first read
            inference.later = ()
            return self._begin(inference, pieces[:1], expected[:1])
        if why is None and sum(item.runner is not None for item in self._inferences.values()) >= MAX_OPEN:
            why = f"{MAX_OPEN} splits are open already"
        if why is None and self._changes.get(pieces[0].segment, 0) > MAX_CHANGES:
            why = "its weights are changed again and again"
        if why is not None:
            inference.problem = why
            self._tell(f"{inference.name} is computed here: {why}")
            return
        inference.definition, inference.examples = definitions[0], list(pieces[0].payloads)
        inference.later = tuple(replace(item, definition=made) for item, made in zip(inference.later, definitions[1:]))
        inference.reads = frozenset(storage for _, storage in joined.live)
        fetched = self._submit(Message(fetch=sorted(inference.reads)))
        work = (inference, recorded, joined, pieces[0], [item.clone() for item in expected], fetched)
        background.start("edge_offload-split-learn", self._open, *work)

    def _open(
        self,
        inference: Inference,
        recorded: Recorded,
        joined: Joined,
        piece: SegmentInvocation,
        expected: List[torch.Tensor],
        fetched: Future[Any],
    ) -> None:
        """In a thread of its own: from a segment to a split that is being opened."""
        try:
            made = record(inference, recorded, joined, piece, expected, fetched)
            count, local = len(made.program.sequence), made.located.counts()["local"]
            self._tell(f"{inference.name} is recorded: {local} of {count} operators can be divided")
            runner = self.opener(made)
            runner.unavailable_reason(piece.payloads)
            inference.runner = runner
            if inference.problem:  # its weights have been changed meanwhile
                runner.close()
        except EdgeOffloadError as error:
            inference.problem = str(error)
            self._tell(f"{inference.name} is computed here: {error}")
        except Exception as error:
            _log.exception("%s could not be recorded", inference.name)
            inference.problem = f"{type(error).__name__}: {error}"
