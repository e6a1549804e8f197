"""Runs segments in the session; sends their definitions, uploads and freed storages with them."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from edge_offload.ir.trace.segments import SegmentStep, StepOutcome
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import DeviceMessage, tensor_bytes
from edge_offload.protocol.remote import Remote
from edge_offload.replay.definitions import Definitions
from edge_offload.replay.exchange import Exchange, outcome_of
from edge_offload.replay.flushed import ASYNC, DYNAMIC, INFER, READ
from edge_offload.replay.recovery.session import SessionRecovery
from edge_offload.replay.signatures import SegmentInvocation

#: Adds a speculation to a message and sends it; None: it did not send, and the message is to be sent as it is.
Sender = Callable[[DeviceMessage], Optional[PendingAnswer]]


class SegmentDispatcher:
    """Runs segments in the session, in the order in which the program issued them.

    Args:
        native: the extension module, from which entries and segments are read on first use.
        remote: session in which segments run.
        timeout_s: longest wait for one answer (seconds).

    Attributes:
        generation: number of times that the device has emptied its caches of calls and segments.
        next_storage: number of the first storage that the device has not used yet.
    """

    def __init__(self, native: Any, remote: Remote, timeout_s: float) -> None:
        self.native = native
        self.definitions = Definitions(native)
        self.exchange = Exchange(remote, self.definitions, timeout_s)
        self.recovery = SessionRecovery(enabled=remote.renewable)
        self.has_read = False
        self.generation = 0
        self.next_storage = 0

    def restart(self, remote: Remote) -> None:
        """Continue with a new, empty session; using an earlier tensor raises LinkLost."""
        self.exchange.restart(remote)
        self.definitions.reset()
        self.has_read = False
        self.recovery = SessionRecovery(self.next_storage, enabled=remote.renewable)

    def run(self, invocations: Sequence[SegmentInvocation], send: Optional[Sender] = None) -> StepOutcome:
        """Run segments, and return the outcome of the last one.

        Args:
            invocations: segments that have not been run, in order.
            send: sends the message; by default the exchange does.

        Raises:
            LinkLost: the connection is lost, or a storage that is used was lost with an earlier one.
            EdgeOffloadError: a segment failed.
        """
        message, fresh = DeviceMessage(), False
        for invocation in invocations:
            self.recovery.check_storages(invocation.live)
        for invocation in invocations:
            fresh = self.definitions.define_segment(invocation.segment, message, invocation.definition) or fresh
            describe = invocation.reason in (INFER, DYNAMIC) and invocation is invocations[-1]
            message.steps.append(_make_step(invocation, describe))
        message.speculative_from = len(invocations)
        reason = invocations[-1].reason
        future = send(message) if send is not None else None
        if future is None:
            # at its start a program uploads weights: before its first read, or in messages that do not wait
            future = self.exchange.submit_message(message, retain=fresh or reason == ASYNC or not self.has_read)
        self.has_read = self.has_read or reason == READ
        if reason == ASYNC:
            self.exchange.await_later(future)
            return StepOutcome()
        self.exchange.await_outstanding(blocked=False)
        return outcome_of(self.exchange.await_answer(future, outcomes=len(invocations)), len(invocations))


def _make_step(invocation: SegmentInvocation, describe: bool) -> SegmentStep:
    payloads = [tensor_bytes(payload) for payload in invocation.payloads]
    return SegmentStep(
        invocation.segment,
        invocation.base,
        invocation.live,
        sorted(invocation.dead),
        invocation.numbers,
        payloads,
        describe,
    )
