"""Mode ``split`` for unmodified programs: steady inferences are divided between robot and server.

The virtual device computes on this machine, and inferences are divided once they are known (:mod:`.learning`). From
then on their reads are answered by robot and server together. The executor does not run such a step; what the step
would have left on the device is deferred (:mod:`.deferred`). Whatever goes wrong, the executor computes the step.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import List, Optional, Sequence

import torch

from edge_offload.errors import EdgeOffloadError, LinkLost, Unsupported
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.manager.lateness import Lateness
from edge_offload.modes.runner import Attempt
from edge_offload.modes.split.robot.runner import SplitRunner
from edge_offload.modes.split.unmodified.cut import put_results, read_results
from edge_offload.modes.split.unmodified.deferred import DeferredSteps, PendingReads
from edge_offload.modes.split.unmodified.inferences import REPEATS, InferenceStore, RecordedInference, SplitCounters
from edge_offload.modes.split.unmodified.learning import Opener, SplitLearner
from edge_offload.modes.split.unmodified.lift import check_equal
from edge_offload.notices import Once
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.flushed import CUT, FlushedSegment
from edge_offload.replay.signatures import SegmentInvocation
from edge_offload.replay.strategy import Strategy

_log = logging.getLogger(__name__)


class SplitStrategy(Strategy):
    """Has steady inferences computed by robot and server together.

    Args:
        dispatcher: runs segments on the device's executor, which is one of this machine.
        opener: makes the split of an inference.
        slowdown: emulate a robot that is so many times slower.
        session: of the executor, where it is in this process: what is cut (:mod:`.cut`) is put into it.

    Attributes:
        splits: what has been done so far.
        lateness: decides for how long the server's half is waited for.
    """

    def __init__(
        self,
        dispatcher: SegmentDispatcher,
        opener: Opener,
        slowdown: float = 1.0,
        session: Optional[DeviceSession] = None,
    ) -> None:
        super().__init__(dispatcher)
        self.splits = SplitCounters()
        self.lateness = Lateness()
        self.once = Once()
        self.inferences = InferenceStore(dispatcher.definitions, self.once)
        self.deferred = DeferredSteps(dispatcher, self.inferences, self.splits)
        self.learner = SplitLearner(dispatcher, self.inferences, opener, self.once)
        self._slowdown, self._session = slowdown, session
        self._unchecked: List[torch.Tensor] = []

    def state(self) -> str:
        """Describe the state of the splits."""
        states = [
            f"{item.name}: {item.problem or (item.runner.state() if item.runner else 'being recorded')}"
            for item in self.inferences.list_inferences()
            if item.problem or item.runner or item.runs >= REPEATS
        ]
        return "; ".join(states) or "no inference has come often enough yet"

    def close(self) -> None:
        """Close all splits."""
        self.learner.stop_trace()
        self.inferences.clear_all()

    def freed_before(self, flushed: FlushedSegment) -> List[int]:
        """Implement :class:`Strategy`."""
        return self.deferred.before_segment(flushed)

    def settle(self) -> None:
        """Implement :class:`Strategy`."""
        self.deferred.materialize_all()

    def reset(self) -> None:
        """Implement :class:`Strategy`."""
        super().reset()
        self.deferred.clear_steps()
        self.close()

    def run(self, invocation: SegmentInvocation, freed: List[int]) -> StepOutcome:
        """Implement :class:`Strategy`."""
        outcome = self.deferred.next_read(invocation)
        if outcome is not None:
            return outcome
        inference = self.inferences.find_or_add(invocation)
        if inference is not None and inference.runner is not None and not inference.problem:
            outcome = self._run_together(inference, inference.runner, invocation)
            if outcome is not None:
                return outcome
        if self.inferences:
            self.inferences.drop_readers(self.inferences.changed_by(invocation.segment, invocation.live))
        started, busy = time.monotonic(), time.perf_counter()
        outcome = super().run(invocation, freed)
        if inference is not None:
            if self._slowdown > 1.0:
                time.sleep((self._slowdown - 1.0) * (time.perf_counter() - busy))
            inference.seconds.append(time.monotonic() - started)
        self.learner.add_computed(inference, invocation, outcome.tensor)
        if self.deferred.pending is not None and outcome.tensor is not None:
            self._check_read(self.deferred.pending, outcome.tensor)
        unchecked, self._unchecked = self._unchecked, []
        if unchecked:
            self._check_cut(invocation, unchecked)
        return outcome

    def _run_together(
        self, inference: RecordedInference, runner: SplitRunner, invocation: SegmentInvocation
    ) -> Optional[StepOutcome]:
        """Return the result of a step by robot and server together; None if the device has to compute it."""
        attempt = self._try_together(inference, runner, invocation)
        if attempt is None:
            return None
        tensors = [copy_tensor(tensor) for tensor in attempt.outputs]
        if invocation.reason == CUT:
            if not inference.checked:  # the first time the device computes it too
                self._unchecked = tensors
                return None
            assert self._session is not None
            self._count_step(runner, invocation, attempt)
            self.deferred.defer_step(inference, put_results(self._session, invocation, inference.uses, tensors), False)
            return StepOutcome()
        if not inference.checked and inference.later:
            self.deferred.expect_reads(PendingReads(inference, invocation.base, tensors, None, place=0))
            return None
        if not inference.checked:
            self._check_once(inference, invocation, tensors[0])
        if inference.problem:
            return None
        self._count_step(runner, invocation, attempt)
        step = self.deferred.defer_step(inference, invocation, bool(inference.later))
        if inference.later:
            self.deferred.expect_reads(PendingReads(inference, invocation.base, tensors, step))
        return StepOutcome(tensors[0])

    def _try_together(
        self, inference: RecordedInference, runner: SplitRunner, invocation: SegmentInvocation
    ) -> Optional[Attempt]:
        """Return the result of robot and server, or None if they did not compute it."""
        payloads = invocation.payloads
        if runner.unavailable_reason(payloads) is not None or runner.stays_local(payloads):
            return None
        local_s = sorted(inference.seconds)[len(inference.seconds) // 2] if inference.seconds else 0.0
        try:
            started = time.monotonic()
            attempt = runner.attempt_inference(payloads, {}, self.lateness.limit_attempt(inference.name, local_s))
            if attempt.round_trips:
                self.lateness.learn_result(inference.name, time.monotonic() - started)
        except Exception as error:  # the link, or an operator on a part of its rows: the device computes all of it
            self.splits.failed += 1
            self._record_failure(inference, error)
            return None
        inference.failures = 0
        return attempt

    def _count_step(self, runner: SplitRunner, invocation: SegmentInvocation, attempt: Attempt) -> None:
        """Count a step whose result is given to the program."""
        planned = runner.planned(invocation.payloads)
        counts = runner.counts
        if planned is not None and counts is not None:
            self.splits.operators_split += planned.plans[counts.plan].plan.splits_an_operator
        self.splits.inferences += 1
        self.splits.bytes_up += attempt.bytes_up
        self.splits.bytes_down += attempt.bytes_down
        self.dispatcher.exchange.counters.round_trips += 1

    def _record_failure(self, inference: RecordedInference, error: Exception) -> None:
        """Record a failure; other than a lost link, a failing operator fails again."""
        if not isinstance(error, EdgeOffloadError):
            _log.exception("a split of %s failed", inference.name)
        if not isinstance(error, LinkLost) and not isinstance(error.__cause__, LinkLost):
            inference.failures += 1
        # in a row, other than of the link
        if inference.failures >= 3:
            inference.problem = f"{type(error).__name__}: {error}"
        self.once.notify(f"{inference.name} is computed here for now: {error}")

    # -- the first results of a split beside the device's, on inputs that it was not recorded with

    def _check_results(
        self, inference: RecordedInference, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
    ) -> None:
        try:
            for split_result, device in zip(results, expected):
                # kernels round otherwise on a part of the rows
                check_equal(split_result, device, "the split", 100.0)
        except Unsupported as error:
            self.inferences.disable(inference, str(error))

    def _check_once(self, inference: RecordedInference, invocation: SegmentInvocation, tensor: torch.Tensor) -> None:
        """Check an inference with one read: the device computes it now, and stores nothing of it."""
        inference.checked = True
        outcome = self.dispatcher.run(
            [replace(invocation, dead=frozenset(inference.made), definition=inference.definition)]
        )
        assert outcome.tensor is not None
        self._check_results(inference, [tensor], [outcome.tensor])

    def _check_read(self, pending: PendingReads, tensor: torch.Tensor) -> None:
        """Check read by read, while the device computes all of an inference with several reads."""
        self._check_results(pending.inference, [pending.take_result()], [tensor])
        if not pending.inference.problem:
            pending.inference.checked = pending.all_read
        if pending.all_read or pending.inference.problem:
            self.deferred.pending = None

    def _check_cut(self, invocation: SegmentInvocation, tensors: Sequence[torch.Tensor]) -> None:
        """Check a cut inference when the device has computed it."""
        inference = self.inferences.find_or_add(invocation)
        if inference is not None and self._session is not None:
            inference.checked = True
            self._check_results(inference, tensors, read_results(self._session, invocation, inference.uses))


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor, so that the program may store and change it."""
    with torch.inference_mode(False):
        return tensor.detach().contiguous().clone()
