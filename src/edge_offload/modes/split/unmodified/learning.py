"""Finds the inferences of a program among its repeated segments, records them, and opens their splits.

Segments that begin with an upload and end in a read are followed. A segment that has run :data:`.REPEATS` times on the
same storages is taken for an inference. The rest happens in the background: its weights are copied from the executor,
it becomes a sequence of operators (:mod:`.lift`), and a split is opened.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from edge_offload import background
from edge_offload.errors import EdgeOffloadError
from edge_offload.ir.trace.segments import Segment
from edge_offload.modes.split.robot.runner import SplitRunner
from edge_offload.modes.split.unmodified.cut import append_reads
from edge_offload.modes.split.unmodified.inferences import (
    REPEATS,
    FollowUpRead,
    InferenceStore,
    RecordedInference,
    record_network,
)
from edge_offload.modes.split.unmodified.join import JoinedSegments, join_segments
from edge_offload.modes.split.unmodified.lift import unavailable_reason
from edge_offload.notices import Once
from edge_offload.protocol.messages import DeviceMessage
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.flushed import READ
from edge_offload.replay.signatures import SegmentInvocation
from edge_offload.split.model.network import TracedNetwork

_log = logging.getLogger(__name__)
#: Opens a split of a recorded network.
Opener = Callable[[TracedNetwork], SplitRunner]


@dataclass
class ReadTrace:
    """The segments of the latest run of an inference: the first one, then those of its follow-up reads.

    Attributes:
        inference: the inference.
        invocations: of the segments, in order.
        tensors: what each of them read at its end; None where that was not stored.
        later: the follow-up reads, one less than invocations.
    """

    inference: RecordedInference
    invocations: List[SegmentInvocation]
    tensors: List[Optional[torch.Tensor]]
    later: List[FollowUpRead] = field(default_factory=list)

    def add_segment(self, invocation: SegmentInvocation, tensor: Optional[torch.Tensor]) -> bool:
        """Add a segment if it is a follow-up read of the inference; return whether it is."""
        follow_up = FollowUpRead.describe_segment(
            invocation.segment, invocation.live, invocation.numbers, self.invocations[0].base
        )
        if (
            invocation.reason != READ
            or invocation.payloads
            or not follow_up.is_follow_up
            or len(self.later) >= 64  # further reads of one inference, after its first
        ):
            return False
        self.invocations.append(invocation)
        self.tensors.append(tensor)
        self.later.append(follow_up)
        return True

    def common_reads(self) -> Tuple[FollowUpRead, ...]:
        """Return the first follow-up reads, up to where this run differs from those before."""
        result: List[FollowUpRead] = []
        for present, earlier in zip(self.later, self.inference.later if self.inference.runs > 1 else self.later):
            if present != earlier:
                break
            result.append(present)
        return tuple(result)


class SplitLearner:
    """Follows the segments that the device computes, and opens splits of inferences.

    Args:
        dispatcher: fetches weights from the executor.
        inferences: of the program, candidates included.
        opener: opens the split of an inference.
        once: notifies the user, of the same text once.
    """

    def __init__(self, dispatcher: SegmentDispatcher, inferences: InferenceStore, opener: Opener, once: Once) -> None:
        self._dispatcher, self._inferences, self._once = dispatcher, inferences, once
        self.opener = opener
        self._trace: Optional[ReadTrace] = None

    def add_computed(
        self, inference: Optional[RecordedInference], invocation: SegmentInvocation, tensor: Optional[torch.Tensor]
    ) -> None:
        """Take in a segment that the device has computed.

        Args:
            inference: that the segment may be; None: it may be a follow-up read of the last one.
            invocation: of the segment.
            tensor: what it read at its end; None: that was not stored.
        """
        if inference is not None:
            self.end_trace()
            inference.runs += 1
            self._trace = ReadTrace(inference, [invocation], [tensor])
        elif self._trace is not None and not self._trace.add_segment(invocation, tensor):
            self.end_trace()

    def stop_trace(self) -> None:
        """Drop the trace, and record nothing from it."""
        self._trace = None

    def end_trace(self) -> None:
        """End the trace, and record the inference if it has run often enough."""
        trace, self._trace = self._trace, None
        if trace is None or trace.inference.definition is not None or trace.inference.problem:
            return
        inference = trace.inference
        inference.later = trace.common_reads()
        invocations = trace.invocations[: len(inference.later) + 1]
        expected = [tensor for tensor in trace.tensors[: len(invocations)] if tensor is not None]
        stored = len(expected) == len(invocations) and all(payload is not None for payload in invocations[0].payloads)
        if inference.runs >= REPEATS and stored:
            self.start_recording(inference, invocations, expected)

    def start_recording(
        self, inference: RecordedInference, invocations: Sequence[SegmentInvocation], expected: Sequence[torch.Tensor]
    ) -> None:
        """Begin to record an inference in the background if it can be divided; otherwise leave it to the device.

        Args:
            inference: to record.
            invocations: of its segments, in order.
            expected: what each of them read.
        """
        signatures = self._dispatcher.definitions.signatures
        definitions = [signatures.definition_of(invocation.segment) for invocation in invocations]
        with_reads = [*definitions[:-1], append_reads(definitions[-1], inference.uses.readable, signatures)]
        joined = join_segments(invocations, with_reads)
        recorded = self._inferences.calls.read_segment(joined.definition)
        reason = unavailable_reason(recorded, joined.live, len(expected))
        if reason is not None and len(invocations) > 1:  # its first segment alone may be divisible
            inference.later = ()
            return self.start_recording(inference, invocations[:1], expected[:1])
        most = 4
        if reason is None and sum(item.runner is not None for item in self._inferences.list_inferences()) >= most:
            reason = f"{most} splits are open already"
        if reason is None and self._inferences.changes.get(invocations[0].segment, 0) > 3:  # recordings
            reason = "its weights are changed again and again"
        if reason is not None:
            return self._inferences.disable(inference, reason)
        inference.definition, inference.examples = definitions[0], list(invocations[0].payloads)
        inference.later = tuple(
            replace(item, definition=follow_up) for item, follow_up in zip(inference.later, definitions[1:])
        )
        inference.reads = frozenset(storage for _, storage in joined.live)
        fetched = self._dispatcher.exchange.submit_message(DeviceMessage(fetch=sorted(inference.reads)))
        work = (inference, recorded, joined, invocations[0], [item.clone() for item in expected], fetched)
        background.start("edge_offload-split-learn", self._open_split, *work)

    def _open_split(
        self,
        inference: RecordedInference,
        recorded: Segment,
        joined: JoinedSegments,
        first: SegmentInvocation,
        expected: List[torch.Tensor],
        fetched: Future[Any],
    ) -> None:
        """Record the network and open its split; runs in a background thread."""
        try:
            network = record_network(inference, recorded, joined, first, expected, fetched)
            total, divisible = len(network.program.sequence), network.located.count_kinds()["local"]
            undivided = ", ".join(f"{count} {name}" for name, count in network.located.count_global().most_common(5))
            summary = f"{inference.name} is recorded: {divisible} of {total} operators can be divided"
            self._once.notify(f"{summary}; in one piece: {undivided}" if undivided else summary)
            runner = self.opener(network)
            runner.unavailable_reason(first.payloads)
            inference.runner = runner
            if inference.problem:  # its weights were changed while it was recorded
                runner.close()
        except EdgeOffloadError as error:
            self._inferences.disable(inference, str(error))
        except Exception as error:
            _log.exception("%s could not be recorded", inference.name)
            inference.problem = f"{type(error).__name__}: {error}"
