"""The client's half: what becomes of the segments that the device records, in each execution mode.

======== ==============================================================================================================
per_op   every call is a round trip, and so is every query (Cricket)
cached   every call is a round trip, queries are answered here (semi-RRTO)
lazy     calls wait for a host read and travel as one segment
replay   as lazy, and the server runs ahead: when the inputs of a known inference have been copied, it is asked to run
         the segments that will follow, so that every host read of the inference comes back in one answer
======== ==============================================================================================================

Nothing is ever taken from a speculation that is not exactly what the program then did: the same segment on the same
storages with the same host numbers. Otherwise the server undoes it and runs what was really issued.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Deque, List, Optional, Sequence, Set

import torch

from edge_offload.capture.entries import Buffer, schema_checksum
from edge_offload.capture.executor import Outcome, Step
from edge_offload.capture.messages import Answer, Message, tensor_bytes
from edge_offload.capture.predict import Done, Predictor
from edge_offload.capture.remote import Remote
from edge_offload.errors import LinkLost, ProtocolError
from edge_offload.modes import Mode

#: Why a segment ended (native/device.cpp, Reason).
READ, INFER, DYNAMIC, ASYNC, CALL, BARRIER = range(6)
#: Messages with no answer awaited; each may carry the uploads of one segment.
MAX_OUTSTANDING = 3


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


@dataclass
class _Speculation:
    """Steps that the server has been asked to run ahead, and how many of them the program has done so far."""

    steps: List[Done]
    future: Future
    first: int
    taken: int = 0
    waited: bool = field(default=False)


class Recorder:
    """Handler of the native device: gets segments, returns what the host reads.

    Args:
        native: the extension module (its entries and segments are read when they are first used).
        remote: where segments run.
        mode: one of per_op, cached, lazy, replay.
        timeout_s: longest wait for one answer.
    """

    def __init__(self, native: Any, remote: Remote, mode: Mode, timeout_s: float = 120.0) -> None:
        self.native = native
        self.remote = remote
        self.mode = mode
        self.timeout_s = timeout_s
        self.counters = Counters()
        self._entries_sent = 0
        self._generation = 0
        self._forget = False
        self._freed: List[int] = []
        self._unsettled: Optional[int] = None
        self._speculation: Optional[_Speculation] = None
        self._outstanding: Deque[Future] = deque()
        self._predictor = Predictor() if mode is Mode.REPLAY else None
        self._failed: Optional[Exception] = None
        self._has_read = False
        self._defined: Set[int] = set()
        self._oldest = self._next = 0

    @property
    def failed(self) -> bool:
        """Whether the connection is lost; every later call raises why."""
        return self._failed is not None

    def switch(self, mode: Mode) -> None:
        """Go on in another mode, with nothing learnt about what comes next. Nothing must be pending on the device."""
        if self._speculation is not None:
            self._settle(self._speculation.taken)
        self.mode = mode
        self._predictor = Predictor() if mode is Mode.REPLAY else None

    def reconnect(self, remote: Remote) -> None:
        """Go on with another session, which knows nothing. Nothing must be pending on the device.

        Using a tensor from before raises LinkLost: what it held is gone.
        """
        self.remote = remote
        self._entries_sent, self._defined, self._oldest = 0, set(), self._next
        self._freed, self._forget, self._unsettled, self._speculation = [], False, None, None
        self._outstanding.clear()
        self._failed, self._has_read = None, False
        self.switch(self.mode)

    # -- called by the device, under its lock

    def flush(
        self,
        reason: int,
        generation: int,
        segment: int,
        fresh: bool,
        base: int,
        live: List[int],
        dead: List[int],
        freed: List[int],
        numbers: bytes,
        payloads: List[torch.Tensor],
        calls: int,
    ) -> Any:
        """A segment ended for ``reason``: have it run, and return the tensor read or the results asked for."""
        self._freed += freed
        self._next = base
        if self._failed is not None:
            raise self._failed
        if not calls:
            return self._barrier() if reason == BARRIER else None
        self._renew(generation)
        self.counters.segments += 1
        done = Done(segment, base, tuple(zip(live[::2], live[1::2])), frozenset(dead), numbers, len(payloads), reason)
        outcome = self._taken(done)
        if outcome is None:
            self._check_age(live)
            outcome = self._run(done, payloads)
        if self._predictor is not None:
            self._predictor.add(done)
            if self._speculation is None:
                self._expect()
        if reason == READ:
            return outcome.tensor
        return outcome.results

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """The uploads of the expected segment are complete: the server starts before the program gets to the read."""
        if self._predictor is None or self._speculation is not None or self._failed is not None:
            return
        chain = self._predictor.chain(base)
        if not chain or chain[0].segment != segment:
            return
        prefix = dict(zip(live[::2], live[1::2]))
        known = dict(chain[0].live)
        if any(known.get(canonical) != number for canonical, number in prefix.items()):
            return
        self._speculate(chain, [tensor_bytes(payload) for payload in payloads], Message())

    # -- running

    def _check_age(self, live: Sequence[int]) -> None:
        if self._oldest and any(number < self._oldest for number in live[1::2]):
            raise LinkLost(
                "a tensor was on the device when the connection broke, and is gone", remedy="put it there again"
            )

    def _run(self, done: Done, payloads: List[torch.Tensor]) -> Outcome:
        message = Message()
        fresh = done.segment not in self._defined
        if fresh:
            self._define(done.segment, message)
        describe = done.reason in (INFER, DYNAMIC)
        step = _step(done, [tensor_bytes(payload) for payload in payloads], describe)
        chain: List[Done] = []
        if self._predictor is not None and done.reason in (READ, DYNAMIC):
            chain = self._predictor.following(done)
        if chain:
            future = self._speculate(chain, [], message, first=step)
        else:
            message.steps, message.speculative_from = [step], 1
            # a program that starts uploads its weights: before it reads anything, or so much that it cannot wait
            future = self._submit(message, keep=fresh or done.reason == ASYNC or not self._has_read)
        self._has_read = self._has_read or done.reason == READ
        if done.reason == ASYNC:
            self._outstanding.append(future)
            while len(self._outstanding) > MAX_OUTSTANDING:
                self._check(self._wait(self._outstanding.popleft()), 1)
            return Outcome()
        while self._outstanding:
            self._check(self._wait(self._outstanding.popleft(), blocked=False), 1)
        answer = self._wait(future)
        if self._speculation is not None:
            self._speculation.waited = True
        return self._check(answer, 1)

    def _speculate(
        self, chain: List[Done], payloads: List[Buffer], message: Message, first: Optional[Step] = None
    ) -> Future:
        steps = [_step(done, payloads if i == 0 else [], done.reason == DYNAMIC) for i, done in enumerate(chain)]
        message.steps = [first, *steps] if first is not None else steps
        message.speculative_from = 0 if first is None else 1
        future = self._submit(message)
        self.counters.speculated += len(chain)
        self._speculation = _Speculation(chain, future, message.speculative_from)
        return future

    def _taken(self, done: Done) -> Optional[Outcome]:
        """The outcome of ``done`` if the server has run exactly that ahead; otherwise the speculation is over."""
        ahead = self._speculation
        if ahead is None:
            return None
        if ahead.taken < len(ahead.steps) and ahead.steps[ahead.taken].same_as(done):
            answer = self._wait(ahead.future, blocked=not ahead.waited)
            ahead.waited = True
            position = ahead.first + ahead.taken
            if position < len(answer.outcomes):
                predicted = ahead.steps[ahead.taken]
                ahead.taken += 1
                self.counters.accepted += 1
                self._freed += done.storages_of(done.dead - predicted.dead)
                if ahead.taken == len(ahead.steps):
                    self._settle(ahead.taken)
                return answer.outcomes[position]
        self.counters.undone += len(ahead.steps) - ahead.taken
        self._settle(ahead.taken)
        return None

    def _settle(self, accepted: int) -> None:
        self._unsettled = accepted
        self._speculation = None

    def _expect(self) -> None:
        """Tell the device which segment's uploads to announce."""
        assert self._predictor is not None
        following = self._predictor.next()
        self.native.expect(following if following is not None else -1)

    def _renew(self, generation: int) -> None:
        """The device has forgotten its calls and segments (there were too many): so must everyone."""
        if generation == self._generation:
            return
        self._generation = generation
        self._entries_sent = 0
        self._defined.clear()
        self._forget = True
        if self._speculation is not None:
            self._settle(self._speculation.taken)
        if self._predictor is not None:
            self._predictor = Predictor()

    # -- messages

    def _define(self, segment: int, message: Message) -> None:
        total = self.native.counters()["entries"]
        message.first_entry = self._entries_sent
        for index in range(self._entries_sent, total):
            name, key, claimed = self.native.entry(index)
            message.entries.append((name, key, claimed, schema_checksum(name)))
        self._entries_sent = total
        self._defined.add(segment)
        message.segments = [(segment, self.native.words(segment))]
        self.counters.defined += 1

    def _submit(self, message: Message, keep: bool = False) -> Future:
        message.freed, self._freed = self._freed, []
        message.accepted, self._unsettled = self._unsettled, None
        message.forget, self._forget = self._forget, False
        self.counters.messages += 1
        try:
            return self.remote.submit(message.to_wire(), keep)
        except LinkLost as error:
            self._failed = error
            raise

    def _wait(self, future: Future, blocked: bool = True) -> Answer:
        if blocked:
            self.counters.round_trips += 1
        try:
            answer: Answer = future.result(self.timeout_s)
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

    def _barrier(self) -> None:
        while self._outstanding:
            self._check(self._wait(self._outstanding.popleft()), 1)

    def query(self) -> None:
        """A device query of the program, which costs a round trip where every call does."""
        if self.mode is Mode.PER_OP and self._failed is None:
            self._wait(self._submit(Message()))


def _step(done: Done, payloads: Sequence[Buffer], describe: bool) -> Step:
    return Step(done.segment, done.base, done.live, sorted(done.dead), done.numbers, list(payloads), describe)
