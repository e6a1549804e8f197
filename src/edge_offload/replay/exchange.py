"""Messages between the program's half of the device and the session on the server: sent, awaited, counted."""

from __future__ import annotations

from collections import deque
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Deque, List, Optional

from edge_offload.errors import LinkLost, ProtocolError
from edge_offload.ir.trace.segments import Outcome
from edge_offload.protocol.arriving import Arriving
from edge_offload.protocol.messages import Answer, Message
from edge_offload.protocol.remote import Remote
from edge_offload.replay.definitions import Definitions

#: Messages with no answer awaited; each may carry the uploads of one segment.
MAX_OUTSTANDING = 3
#: More than there are: all of an answer.
ALL = 1 << 62


@dataclass
class Counters:
    """What the program has cost so far. A round trip: the caller blocked for a message that one of its own caused."""

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
        definitions: what the server knows.
        timeout_s: longest wait for one answer.
    """

    def __init__(self, remote: Remote, definitions: Definitions, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.counters = Counters()
        self._definitions = definitions
        self._outstanding: Deque[Arriving] = deque()
        self._start_with(remote)

    def _start_with(self, remote: Remote) -> None:
        """What is sent from now on goes to a session that knows nothing."""
        self.remote = remote
        self._forget = False
        self._freed: List[int] = []
        self._unsettled: Optional[int] = None
        self._failed: Optional[Exception] = None
        self._outstanding.clear()

    @property
    def failed(self) -> bool:
        """Whether the connection is lost; every later call raises why."""
        return self._failed is not None

    def _submit(self, message: Message, keep: bool = False) -> Arriving:
        """Send a message, and with it what the server has to know by then."""
        message.freed, self._freed = self._freed, []
        message.accepted, self._unsettled = self._unsettled, None
        message.forget, self._forget = self._forget, False
        self._definitions.complete(message)
        self.counters.defined = self._definitions.count
        self.counters.messages += 1
        try:
            return self.remote.submit(message.to_wire(), keep)
        except LinkLost as error:
            self._failed = error
            raise

    def _wait(self, future: Arriving, blocked: bool = True, outcomes: int = ALL, ran: int = 0) -> Answer:
        """What there is of an answer once it has so many outcomes and speculated steps; all of it by default."""
        if blocked:
            self.counters.round_trips += 1
        try:
            answer = future.until(outcomes, ran, self.timeout_s)
        except FutureTimeout:
            self._failed = LinkLost(f"the server did not answer within {self.timeout_s:g} s")
            raise self._failed from None
        except (LinkLost, ProtocolError) as error:
            self._failed = error
            raise
        return answer

    def _check(self, answer: Answer, needed: int) -> Outcome:
        """The outcome of the last of the ``needed`` steps; raises what stopped it, if something did."""
        if len(answer.outcomes) >= needed:
            return answer.outcomes[needed - 1]
        raise answer.error if answer.error is not None else ProtocolError("the server answered with too few results")

    def _await_later(self, future: Arriving) -> None:
        """The answer says nothing but that one step was run; it is awaited when there are too many such."""
        self._outstanding.append(future)
        while len(self._outstanding) > MAX_OUTSTANDING:
            self._check(self._wait(self._outstanding.popleft()), 1)

    def _barrier(self, blocked: bool = True) -> None:
        """Wait for everything that was put off; ``blocked``: as a round trip each."""
        while self._outstanding:
            self._check(self._wait(self._outstanding.popleft(), blocked), 1)
