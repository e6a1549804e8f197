"""What the recorder says to the session when segments end."""

from __future__ import annotations

from typing import Any, List, Sequence

import pytest

from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.mode import Mode
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import Answer, DeviceMessage, parse_message
from edge_offload.protocol.remote import Remote
from edge_offload.replay.flushed import READ
from edge_offload.replay.recorder import Recorder
from edge_offload.replay.signatures import SegmentInvocation
from edge_offload.replay.strategy import Strategy


class Listening(Remote):
    """Notes the messages that it gets; answers that all is well."""

    def __init__(self) -> None:
        super().__init__()
        self.got: List[DeviceMessage] = []

    def submit(self, buffers: Sequence[Any], reusable: bool = False) -> PendingAnswer:
        self.got.append(parse_message(buffers))
        answer = PendingAnswer()
        answer.complete_answer(Answer([]))
        return answer


class PutsOff(Strategy):
    """Has something to run before the device forgets its calls."""

    def run(self, invocation: SegmentInvocation, freed: List[int]) -> StepOutcome:
        self.dispatcher.exchange.submit_message(DeviceMessage())
        return StepOutcome()

    def settle(self) -> None:
        self.dispatcher.exchange.submit_message(DeviceMessage())


@pytest.mark.parametrize("generation", [0, 1])
def test_a_segments_freed_storages_are_freed_after_it_despite_evicted_calls(generation: int) -> None:
    remote = Listening()
    recorder = Recorder(None, remote, Mode.REPLAY, lambda _mode, dispatcher: PutsOff(dispatcher))
    recorder.flush(READ, generation, 0, True, 9, [0, 7], [], [7], b"", [], 1)
    assert [message.freed for message in remote.got] == [[]] * generation + [[7]]
