"""Mode ``split`` for unmodified programs: the virtual device computes on this machine, and its steady inferences are
divided between robot and server once they are known.

The recorder watches segments that begin with an upload and end in a read. When the same one has run a few times on the
same storages it is taken for an inference: its weights are copied from the executor, it becomes a sequence
(:mod:`edge_offload.capture.sequences`), and a split is opened, all in the background. From then on its reads are
answered by robot and server together. The executor is not told of such a step; what the step would have left on the
device is owed, and computed there as soon as anything names it. Whatever goes wrong, the executor computes the step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.capture.connect import say
from edge_offload.capture.forms import Done, Piece
from edge_offload.capture.handed import READ, Handed
from edge_offload.capture.messages import Message
from edge_offload.capture.recorder import Recorder
from edge_offload.capture.remote import Remote
from edge_offload.capture.segments import Outcome
from edge_offload.capture.sequences import Calls, Recorded, compare, obstacle
from edge_offload.errors import EdgeOffloadError, LinkLost, Unsupported
from edge_offload.manager.recorded_split import RecordedSplit
from edge_offload.manager.split_inferences import Inference, Owed, SplitCounters, record
from edge_offload.modes import Mode
from edge_offload.split.networks import Network

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
MAX_OWED = 4
LEARN_S = 10.0
MAX_TOUCHED = 3
"""Steps in a row that had to be computed after all, because the program used what they left."""
ROUNDING = 100.0
"""Kernels round otherwise on a part of the rows: so much farther from the device's result than the whole may be."""

_log = logging.getLogger(__name__)
Key = Tuple[int, Tuple[Tuple[int, int], ...], bytes]
Opener = Callable[[Network], RecordedSplit]


class SplitRecorder(Recorder):
    """A recorder whose steady inferences are split.

    Args:
        native, remote: see :class:`~edge_offload.capture.recorder.Recorder`; the executor is one of this machine.
        opener: makes the split of an inference.
        slowdown: emulate a robot that is so many times slower.
    """

    MODE = Mode.SPLIT

    def __init__(self, native: Any, remote: Remote, opener: Opener, slowdown: float = 1.0) -> None:
        super().__init__(native, remote, self.MODE)
        self.splits = SplitCounters()
        self.opener, self._slowdown = opener, slowdown
        self._inferences: OrderedDict[Key, Inference] = OrderedDict()
        self._variants: Dict[int, int] = {}
        self._changes: Dict[int, int] = {}
        self._written: Dict[int, FrozenSet[int]] = {}
        self._steps_owed: List[Owed] = []
        self._on_device = False
        self._calls = Calls()
        self._said: Set[str] = set()
        self._learners: List[threading.Thread] = []

    def state(self) -> str:
        """How the splits stand, in words."""
        told = [
            f"{item.name}: {item.problem or (item.runner.state() if item.runner else 'being recorded')}"
            for item in list(self._inferences.values())
            if item.problem or item.runner or item.runs >= REPEATS
        ]
        return "; ".join(told) or "no inference has come often enough yet"

    # -- called by the device, under its lock

    def _ended(self, handed: Handed) -> Any:
        """As in :class:`Recorder`. What a step leaves is computed before this segment uses or changes it."""
        if self.mode is Mode.SPLIT and self._failed is None:
            if handed.calls:
                self._pay(handed.segment, handed.generation, handed.live)
            handed = handed._replace(freed=self._hold_back(handed.freed))
        return super()._ended(handed)

    def reconnect(self, remote: Remote) -> None:
        """See :meth:`Recorder.reconnect`."""
        self._steps_owed.clear()
        self._forget_inferences()
        super().reconnect(remote)

    def close(self) -> None:
        """Give all splits up, and wait a moment for one that is being recorded.

        A thread that computes while the interpreter ends would take the whole process with it.
        """
        self._forget_inferences()
        for thread in self._learners:
            thread.join(LEARN_S)

    # -- running

    def _run(self, pieces: Sequence[Piece], done: Optional[Done]) -> Outcome:
        if self.mode is not Mode.SPLIT or self._on_device:
            return super()._run(pieces, done)
        piece = pieces[-1]
        self._check_age(piece.live)
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
            self._learn(inference, piece, outcome)
        return outcome

    def _known(self, piece: Piece) -> Optional[Inference]:
        """The inference that a step may be."""
        if piece.reason != READ or not piece.payloads:
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

    def _together(self, inference: Inference, runner: RecordedSplit, piece: Piece) -> Optional[Outcome]:
        """The result of a step by robot and server together; None if the device is to compute it."""
        if runner.obstacle(piece.payloads) is not None or runner.stays_local(piece.payloads):
            return None
        local_s = sorted(inference.seconds)[len(inference.seconds) // 2] if inference.seconds else 0.0
        try:
            attempt = runner.run(piece.payloads, None, local_s, {})
        except Exception as error:  # the link, or an operator on a part of its rows: the device computes all of it
            self.splits.failed += 1
            self._failed_at(inference, error)
            return None
        inference.failures = 0
        with torch.inference_mode(False):
            tensor = attempt.outputs[0].detach().contiguous().clone()
        if not inference.checked:
            self._check_once(inference, piece, tensor)
        if inference.problem:
            return None
        planned = runner.planned(piece.payloads)
        counted = runner.counted
        if planned is not None and counted is not None:
            self.splits.operators_split += planned.plans[counted.plan].plan.splits_an_operator
        self.splits.inferences += 1
        self.splits.bytes_up += attempt.bytes_up
        self.splits.bytes_down += attempt.bytes_down
        self.counters.round_trips += 1
        self._owe(inference, piece)
        return Outcome(tensor)

    def _failed_at(self, inference: Inference, error: Exception) -> None:
        """A link comes back; an operator that fails on a part of its rows will fail again."""
        if not isinstance(error, EdgeOffloadError):
            _log.exception("a split of %s failed", inference.name)
        if not isinstance(error, LinkLost) and not isinstance(error.__cause__, LinkLost):
            inference.failures += 1
        if inference.failures >= MAX_FAILURES:
            inference.problem = f"{type(error).__name__}: {error}"
        self._tell(f"{inference.name} is computed here for now: {error}")

    def _check_once(self, inference: Inference, piece: Piece, tensor: torch.Tensor) -> None:
        """The first result of a split beside the device's, on inputs that it was not recorded with."""
        inference.checked = True
        definition = inference.definition
        assert definition is not None
        ghost = Piece(piece.segment, piece.base, piece.live, frozenset(inference.made), piece.numbers, piece.payloads,
                      piece.reason, definition)  # fmt: skip
        outcome = self._on_executor(ghost)
        try:
            assert outcome.tensor is not None
            compare(tensor, outcome.tensor, "the split", ROUNDING)
        except Unsupported as error:
            inference.problem = str(error)
            self._tell(f"{inference.name} is computed here: {error}")

    # -- what the executor has not run

    def _owe(self, inference: Inference, piece: Piece) -> None:
        alive = {piece.base + place for place, number in enumerate(inference.made) if number not in piece.dead}
        piece.definition = inference.definition
        if alive:
            self._steps_owed.append(Owed(piece, inference, alive))
        else:
            inference.touched = 0
        if len(self._steps_owed) > MAX_OWED:
            self._compute(self._steps_owed[0])

    def _pay(self, segment: int, generation: int, live: Sequence[int]) -> None:
        """Have computed what this segment names, or what reads what it changes."""
        if not self._steps_owed:
            return
        used = set(live[1::2])
        for owed in list(self._steps_owed):
            if used & owed.alive:
                self._compute(owed)
        if self._steps_owed and generation == self._generation:
            changed = self._changed(segment, tuple(zip(live[::2], live[1::2])))
            for owed in [item for item in self._steps_owed if item.inference.reads & changed]:
                self._compute(owed)

    def _compute(self, owed: Owed) -> None:
        """Run an owed step after all; its result has been delivered already."""
        self._steps_owed.remove(owed)
        self.splits.owed += 1
        owed.inference.touched += 1
        if owed.inference.touched >= MAX_TOUCHED and not owed.inference.problem:
            owed.inference.problem = "the program uses what the inference leaves on the device"
            self._tell(f"{owed.inference.name} is computed here: {owed.inference.problem}")
        self._on_executor(owed.piece)
        self._freed += owed.gone
        self._release(owed)

    def _on_executor(self, piece: Piece) -> Outcome:
        self._on_device = True
        try:
            return super()._run([piece], None)
        finally:
            self._on_device = False

    def _release(self, owed: Owed) -> None:
        """What only an owed step kept alive may go, unless another one needs it."""
        for number in owed.withheld:
            holder = next((other for other in self._steps_owed if number in other.inference.reads), None)
            (self._freed if holder is None else holder.withheld).append(number)

    def _hold_back(self, freed: List[int]) -> List[int]:
        """Of the storages that the program dropped, those that the executor is to free now."""
        if not freed:
            return freed
        gone = set(freed)
        for key in [key for key, item in self._inferences.items() if item.reads & gone]:
            self._drop(key)
        if not self._steps_owed:
            return freed
        told: List[int] = []
        for number in freed:
            owner = next((owed for owed in self._steps_owed if number in owed.alive), None)
            reader = next((owed for owed in self._steps_owed if number in owed.inference.reads), None)
            if owner is not None:
                owner.alive.discard(number)
                owner.gone.append(number)
            elif reader is not None:
                reader.withheld.append(number)
            else:
                told.append(number)
        for owed in [item for item in self._steps_owed if not item.alive]:
            self._steps_owed.remove(owed)
            owed.inference.touched = 0
            self._release(owed)
        return told

    def _catch_up(self) -> None:
        for owed in list(self._steps_owed):
            self._compute(owed)
        super()._catch_up()

    def _renew(self, generation: int) -> None:
        before = self._generation
        super()._renew(generation)
        if self._generation != before:  # segments have other numbers now
            self._forget_inferences()

    # -- learning

    def _changed(self, segment: int, live: Sequence[Tuple[int, int]]) -> Set[int]:
        """Storages that lived before and that a segment writes to."""
        written = self._written.get(segment)
        if written is None:
            written = self._calls.read(self._definitions.forms.definition(segment)).written
            self._written[segment] = written
        return {storage for number, storage in live if number in written}

    def _note_writes(self, piece: Piece) -> None:
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

    def _forget_inferences(self) -> None:
        for key in list(self._inferences):
            self._drop(key)
        self._variants.clear()
        self._changes.clear()
        self._written.clear()
        self._calls = Calls()

    def _learn(self, inference: Inference, piece: Piece, outcome: Outcome) -> None:
        inference.runs += 1
        if inference.runs == REPEATS and outcome.tensor is not None:
            self._begin(inference, piece, outcome.tensor)

    def _begin(self, inference: Inference, piece: Piece, expected: torch.Tensor) -> None:
        """An inference has come often enough, and gave ``expected`` just now: have it recorded if it can be."""
        definition = self._definitions.forms.definition(piece.segment)
        recorded = self._calls.read(definition)
        why = obstacle(recorded, piece.live)
        if why is None and sum(item.runner is not None for item in self._inferences.values()) >= MAX_OPEN:
            why = f"{MAX_OPEN} splits are open already"
        if why is None and self._changes.get(piece.segment, 0) > MAX_CHANGES:
            why = "its weights are changed again and again"
        if why is not None:
            inference.problem = why
            self._tell(f"{inference.name} is computed here: {why}")
            return
        inference.definition, inference.examples = definition, list(piece.payloads)
        fetched = self._submit(Message(fetch=sorted(inference.reads)))
        work = (inference, recorded, piece, expected.clone(), fetched)
        thread = threading.Thread(target=self._open, args=work, name="edge_offload-split-learn", daemon=True)
        self._learners = [item for item in self._learners if item.is_alive()] + [thread]
        thread.start()

    def _open(
        self, inference: Inference, recorded: Recorded, piece: Piece, expected: torch.Tensor, fetched: Future
    ) -> None:
        """In a thread of its own: from a segment to a split that is being opened."""
        try:
            made = record(inference, recorded, piece, expected, fetched)
            count, local = len(made.program.sequence), made.located.counts()["local"]
            self._tell(f"{inference.name} is recorded: {local} of {count} operators can be divided")
            runner = self.opener(made)
            runner.obstacle(piece.payloads)
            inference.runner = runner
            if inference.problem:  # its weights have been changed meanwhile
                runner.close()
        except EdgeOffloadError as error:
            inference.problem = str(error)
            self._tell(f"{inference.name} is computed here: {error}")
        except Exception as error:
            _log.exception("%s could not be recorded", inference.name)
            inference.problem = f"{type(error).__name__}: {error}"

    def _tell(self, text: str) -> None:
        if text not in self._said and len(self._said) < 64:
            self._said.add(text)
            say(text)
