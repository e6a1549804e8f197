"""A session that refuses a message is not what the program takes it to be: nothing it says counts any more."""

from __future__ import annotations

from typing import Any, List, Sequence

import msgpack
import pytest
import torch

from edge_offload.execute.session.serve import serve_message
from edge_offload.execute.session.session import DeviceSession, SessionLimits
from edge_offload.ir.trace.segments import SegmentStep
from edge_offload.ir.trace.trace_graph import TraceStep
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import DeviceMessage, parse_answer
from edge_offload.protocol.remote import Remote, SessionLost
from edge_offload.replay.exchange import Exchange


class OneSession(Remote):
    """A session in this process, which answers at once; damages what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.session = DeviceSession(torch.device("cpu"), SessionLimits())
        self.damage: List[str] = []

    def submit(self, buffers: Sequence[Any], reusable: bool = False) -> PendingAnswer:
        facts = msgpack.unpackb(bytes(buffers[0]), strict_map_key=False)
        for field in self.damage:
            facts[field] = "damaged"
        answer = PendingAnswer()
        answer.complete_answer(parse_answer(serve_message(self.session, [msgpack.packb(facts), *buffers[1:]])))
        return answer


class NothingNew:
    """Definitions of a program that makes none."""

    segment_count = 0

    def add_new_calls(self, message: DeviceMessage) -> None:
        pass


STEP = TraceStep(0, (), (), (), (), b"", (), False)


@pytest.mark.parametrize("damaged", ["nodes", "course", "freed", "accepted"])
def test_a_refused_message_without_a_reply_ends_the_session(damaged: str) -> None:
    remote = OneSession()
    exchange = Exchange(remote, NothingNew(), 5.0)  # type: ignore[arg-type]
    exchange.await_answer(exchange.submit_message(DeviceMessage()))
    remote.damage = [damaged]
    exchange.submit_message(DeviceMessage(nodes=[(0, STEP)]))
    remote.damage = []
    with pytest.raises(SessionLost, match="malformed"):
        exchange.await_answer(exchange.submit_message(DeviceMessage()))
    assert isinstance(exchange.failure, SessionLost)


def test_a_step_that_fails_does_not_end_the_session() -> None:
    exchange = Exchange(OneSession(), NothingNew(), 5.0)  # type: ignore[arg-type]
    answer = exchange.await_answer(
        exchange.submit_message(DeviceMessage(steps=[SegmentStep(7, 0, (), (), b"", [], False)], speculative_from=1))
    )
    assert answer.error is not None
    exchange.await_answer(exchange.submit_message(DeviceMessage()))
    assert exchange.failure is None
