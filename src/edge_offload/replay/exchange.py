"""Messages between the program's half of the device and the session that runs its segments: sent, awaited, counted."""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Deque, Iterable, Iterator, List, Optional, Sequence, Set

from edge_offload.errors import DeviceLost, LinkLost, ProtocolError
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import Answer, DeviceMessage
from edge_offload.protocol.remote import Remote, SessionEnded
from edge_offload.replay.definitions import Definitions

#: More than there are: all of an answer.
ALL = 1 << 62


@dataclass
class ExchangeCounters:
    """Costs of the program so far. A round trip: the caller blocked for a message that one of its own caused."""

    round_trips: int = 0
    messages: int = 0
    segments: int = 0
    defined: int = 0
    speculated: int = 0
    accepted: int = 0
    undone: int = 0


class Exchange:
    """Sends messages with what belongs to each: new definitions, freed storages, what was accepted of a speculation.

    Args:
        remote: where segments run.
        definitions: what the session knows.
        timeout_s: longest wait for one answer (seconds).

    Attributes:
        failure: why the connection is lost, and what every later call raises; None while it is not.
        freed: storages that the session is to free with the next message.
        unsettled: how many speculated steps the program has accepted, reported with the next message.
        reset_definitions: whether the session is to forget all definitions with the next message.
        disagreed: operators whose results lie otherwise than was worked out here.
    """

    def __init__(self, remote: Remote, definitions: Definitions, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.counters = ExchangeCounters()
        self._definitions = definitions
        self.disagreed: Set[str] = set()
        self._outstanding: Deque[PendingAnswer] = deque()
        self._arriving: Deque[PendingAnswer] = deque()
        self.restart(remote)

    def restart(self, remote: Remote) -> None:
        """Continues with ``remote``, whose session has no definitions."""
        self.remote = remote
        self.reset_definitions = False
        self.freed: List[int] = []
        self.unsettled: Optional[int] = None
        self.failure: Optional[Exception] = None
        self.drop_outstanding()

    def drop_outstanding(self) -> None:
        """Await none of the answers that were put off."""
        self._outstanding.clear()
        self._arriving.clear()

    @contextlib.contextmanager
    def without_freeing(self, storages: Sequence[int]) -> Iterator[None]:
        """Free none of ``storages`` with the messages that are sent meanwhile: what is run after those uses them."""
        self.freed = [number for number in self.freed if number not in storages]
        yield
        self.freed += storages

    def submit_message(self, message: DeviceMessage, retain: bool = False) -> PendingAnswer:
        """Send a message, and with it what the session has to know by then.

        Raises:
            LinkLost: the connection is lost.
        """
        message.freed, self.freed = self.freed, []
        message.accepted, self.unsettled = self.unsettled, None
        message.reset_tables, self.reset_definitions = self.reset_definitions, False
        self._definitions.add_new_calls(message)
        self.counters.defined = self._definitions.segment_count
        self.counters.messages += 1
        try:
            future = self.remote.submit(message.to_wire(), retain)
        except LinkLost as error:
            self.failure = error
            raise
        self._arriving.append(future)
        return future

    def put_back(self, messages: Iterable[DeviceMessage]) -> None:
        """Have the session carry out messages as they are: they make a new one what the one before was.

        Raises:
            EdgeOffloadError: what stopped one.
        """
        for message in messages:
            answer = self.await_answer(self.remote.submit(message.to_wire(), reusable=True), blocked=False)
            if answer.error is not None:
                raise answer.error

    def await_answer(self, future: PendingAnswer, blocked: bool = True, outcomes: int = ALL, ran: int = 0) -> Answer:
        """Waits for an answer to have so many outcomes and speculated steps; by default for all of it.

        Args:
            future: the answer.
            blocked: whether the wait counts as a round trip.
            outcomes: how many are waited for.
            ran: how many speculated steps are waited for.

        Raises:
            LinkLost, ProtocolError: there will be no answer.
            SessionEnded: the session has refused this message or one before, or its GPU failed.
        """
        if blocked:
            self.counters.round_trips += 1
        try:
            answer = future.wait_until(outcomes, ran, self.timeout_s)
        except FutureTimeout:
            self.failure = LinkLost(f"the server did not answer within {self.timeout_s:g} s")
            raise self.failure from None
        except DeviceLost as error:
            self.failure = SessionEnded(error.cause, error.remedy)
            raise self.failure from None
        except (LinkLost, ProtocolError) as error:
            self.failure = error
            raise
        while self._arriving and self._arriving[0].ended:  # also those that nobody waits for
            ended = self._arriving.popleft().so_far
            self.disagreed.update(ended.disagreed)
            if ended.refused:
                self.failure = _session_end(ended)
                raise self.failure
        return answer

    def await_later(self, future: PendingAnswer) -> None:
        """The answer says nothing but that one step was run; it is awaited when there are too many such."""
        self._outstanding.append(future)
        # messages with no answer awaited; each may carry the uploads of one segment
        while len(self._outstanding) > 3:
            outcome_of(self.await_answer(self._outstanding.popleft()), 1)

    def await_outstanding(self, blocked: bool = True) -> None:
        """Wait for everything that was put off; ``blocked``: as a round trip each."""
        while self._outstanding:
            outcome_of(self.await_answer(self._outstanding.popleft(), blocked), 1)


def _session_end(answer: Answer) -> SessionEnded:
    """Error for a program whose session has refused a message or lost its GPU."""
    if isinstance(answer.error, DeviceLost):
        return SessionEnded(answer.error.cause, answer.error.remedy)
    return SessionEnded(f"the session refused a message: {answer.refused}")


def outcome_of(answer: Answer, step: int) -> StepOutcome:
    """The outcome of the ``step``-th step, counted from 1; raises what stopped it, if something did."""
    if len(answer.outcomes) >= step:
        return answer.outcomes[step - 1]
    raise answer.error if answer.error is not None else ProtocolError("the server answered with too few results")
