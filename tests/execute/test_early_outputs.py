"""What the host reads first is on its way while the server still computes the rest of the same answer."""

from __future__ import annotations

import contextlib
import gc
import struct
import threading
import time
import weakref
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Callable, Dict, List

import pytest
import torch

from edge_offload.errors import LinkLost, ProtocolError
from edge_offload.execute.session import pacer, speculative
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.serve import serve_message
from edge_offload.execute.session.session import DeviceSession, SegmentStep
from edge_offload.ir.trace.trace_graph import TraceGraph, TraceStep
from edge_offload.protocol import messages
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import Answer, DeviceMessage, parse_answer

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def python_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are noted by the runner in Python alone; another test may have loaded that in C++."""
    monkeypatch.setattr(library, "module", None)


SENT = "left"
#: A network with two heads: the second hangs on what the first has read, and on more.
FIRST, SECOND = "aten::mul.Tensor", "aten::add.Tensor"


def integer(value: int) -> bytes:
    return b"I" + struct.pack("<q", value)


def tensor(storage: int) -> bytes:
    return b"T" + struct.pack("<BBBqqqqB", 6, 0, 1, 3, 1, 0, 12, storage)


ENTRIES: List[Any] = [
    ("edge::alloc", integer(12), None, 0),
    ("edge::upload", tensor(0) + b"P" + struct.pack("<BBq", 6, 1, 3), None, 0),
    (FIRST, tensor(0) + tensor(1), None, 0),
    (SECOND, tensor(0) + tensor(1) + integer(1), None, 0),
    ("edge::download", tensor(0), None, 0),
]


def code(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


class Watched(DeviceSession):
    """Notes what is computed, and takes its time over the second head."""

    def __init__(self) -> None:
        super().__init__()
        self.events: List[str] = []

    def note_call(self, entry: Any) -> None:
        self.events.append(entry.name)
        if entry.name == SECOND:
            time.sleep(0.01)


class Device:
    """A session that has the network as two nodes, the input in storage 1."""

    def __init__(self, sizes: bool = False) -> None:
        """``sizes``: of its first head the host wants to know what the result looks like, and does not read it."""
        self.session = Watched()
        self.answer = PendingAnswer()
        self.base = 10
        put = SegmentStep(0, 1, [], [], b"", [struct.pack("<3f", 1, 2, 3)])
        first = TraceStep(1, (), (), ((0, 0, 1),), (), b"", (), sizes)
        second = TraceStep(2, (), (), ((0, 0, 1),), (), b"", (), False)
        head = code(2, 0, 0) if sizes else code(2, 0, 0, 4, 1)
        segments = [(0, code(0, 1, 0)), (1, head), (2, code(3, 0, 0, 4, 1))]
        self.send(DeviceMessage(ENTRIES, 0, segments, steps=[put], speculative_from=1, nodes=[(0, first), (1, second)]))

    def send(self, message: DeviceMessage) -> List[Answer]:
        """The parts of its answer; all of it is put together in ``answer``."""
        self.session.events.clear()
        self.answer = PendingAnswer()
        parts: List[Answer] = []

        def note_sent(buffers: Any) -> None:
            self.session.events.append(SENT)
            parts.append(parse_answer(buffers))
            self.answer.add_part(parts[-1])

        self.answer.complete_answer(parse_answer(serve_message(self.session, message.to_wire(), note_sent)))
        return parts

    def infer(self) -> List[Answer]:
        self.base += 10
        graph = TraceGraph([(0, [(None, 1)]), (1, [])], [((), 0)], self.base, self.base)
        return self.send(DeviceMessage(accepted=0, graph=graph))


def test_the_first_output_leaves_before_the_second_is_computed() -> None:
    device = Device()
    for _ in range(4):  # not known yet, run call by call, compiled
        (part,) = device.infer()
        assert device.session.events == [FIRST, "edge::download", SENT, SECOND, "edge::download"]
        assert [outcome.tensor.tolist() for _, _, outcome in part.ran] == [[1, 4, 9]]
        answer = device.answer.result(0)
        assert [index for index, _, _ in answer.ran] == [0, 1]
        assert [outcome.tensor.tolist() for _, _, outcome in answer.ran] == [[1, 4, 9], [2, 4, 6]]


def test_parts_are_bounded_in_bytes_and_the_rest_comes_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_offload.execute.session.serve.MAX_FLUSHED_BYTES", 11)  # the first head's output has 12
    device = Device()
    assert device.infer() == []
    assert [outcome.tensor.tolist() for _, _, outcome in device.answer.result(0).ran] == [[1, 4, 9], [2, 4, 6]]


def test_outputs_that_cost_no_time_are_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "LEAST_PAUSE_S", 1e6)
    device = Device()
    device.infer()
    assert device.infer() == []
    assert SENT not in device.session.events
    assert [outcome.tensor.tolist() for _, _, outcome in device.answer.result(0).ran] == [[1, 4, 9], [2, 4, 6]]


@pytest.mark.parametrize("every_s", [0.0, 1e6])
def test_sizes_that_the_host_waits_for_leave_now_and_then(monkeypatch: pytest.MonkeyPatch, every_s: float) -> None:
    for name in ("SIZES_EVERY_S", "LEAST_S", "MOST_S"):
        monkeypatch.setattr(pacer, name, every_s)
    device = Device(sizes=True)
    for _ in range(4):
        parts = device.infer()
        events = [FIRST, SENT, SECOND, "edge::download"]
        assert device.session.events == [event for event in events if event != SENT or not every_s]
        assert [len(part.ran) for part in parts] == ([] if every_s else [1])
        first, second = (outcome for _, _, outcome in device.answer.result(0).ran)
        assert first.results is not None
        assert second.tensor is not None


def test_sizes_leave_more_often_the_nearer_the_end_is() -> None:
    spans: Dict[int, float] = {}

    def leave(steps: int) -> List[int]:
        """The steps, one a millisecond, after which something leaves."""
        run, flushed = pacer.FlushPacer(spans, 3, 0.0), []
        for step in range(1, steps + 1):
            if run.is_due(step / 1e3):
                run.note_flush(step / 1e3)
                flushed.append(step)
        run.note_end(steps / 1e3)
        return flushed

    def gaps(remaining: List[int]) -> List[int]:
        return [after - before for before, after in zip(remaining, remaining[1:])]

    unknown = leave(100)
    assert all(20 <= gap <= 21 for gap in gaps(unknown))
    flushed_at = leave(100)
    assert flushed_at[0] in (75, 76)
    assert gaps(flushed_at) == sorted(gaps(flushed_at), reverse=True)
    assert flushed_at[-1] >= 96
    assert len(flushed_at) < 5
    longer = leave(150)  # than the last time
    assert longer[: len(flushed_at)] == flushed_at
    assert all(19 <= gap <= 21 for gap in gaps(longer)[len(flushed_at) :])
    assert all(gap <= 201 for gap in gaps(leave(2000) + leave(2000)) if gap > 0)


def test_early_outputs_are_usable_though_the_rest_never_arrives() -> None:
    device = Device()
    answer = PendingAnswer()
    answer.add_part(device.infer()[0])
    answer.set_exception(LinkLost("cut"))
    assert torch.equal(answer.wait_until(0, 1, 0.0).ran[0][2].tensor, torch.tensor([1.0, 4.0, 9.0]))
    with pytest.raises(LinkLost):
        answer.wait_until(0, 2, 0.0)


ENDS = pytest.mark.parametrize(
    "end", [lambda answer: answer.complete_answer(Answer([])), lambda answer: answer.set_exception(LinkLost("cut"))]
)


@ENDS
def test_an_answer_that_ends_is_freed_without_the_collector(end: Callable[[PendingAnswer], None]) -> None:
    gc.disable()
    try:
        answer = PendingAnswer()
        end(answer)
        reference = weakref.ref(answer)
        del answer
        assert reference() is None
    finally:
        gc.enable()


@ENDS
def test_an_answer_that_ends_wakes_who_waits_for_it(end: Callable[[PendingAnswer], None]) -> None:
    answer = PendingAnswer()

    def wait() -> None:
        with contextlib.suppress(LinkLost):
            answer.wait_until(1, 0, 600.0)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    end(answer)
    waiting.join(60.0)
    assert not waiting.is_alive()


def test_a_wait_ends_when_its_time_is_over() -> None:
    answer = PendingAnswer()
    with pytest.raises(FutureTimeout):
        answer.wait_until(1, 0, 0.01)


def test_a_graph_like_the_one_before_travels_without_its_nodes_and_what_it_was_given() -> None:
    session = DeviceSession()
    first = TraceGraph([(4, [(None, 0)])], [((), 0)], 9, 9, payloads=[b"input", bytes(8), b"constant"])
    second = TraceGraph(None, [((), 0)], 30, 30, payloads=[b"other", None, None])
    for graph, given in ((first, [b"input", bytes(8), b"constant"]), (second, [b"other", bytes(8), b"constant"])):
        read = messages.parse_message(messages.DeviceMessage(graph=graph).to_wire()).graph
        assert read is not None
        session.ahead.take_graph(read)
        assert session.ahead._ways == [(4, {None: 0})]
        assert [bytes(item) for item in session.ahead._first_payloads or ()] == given


@pytest.mark.parametrize(
    "graph",
    [
        TraceGraph(None, [((), 0)], 9, 9),
        TraceGraph([(4, [])], [((), 0)], 9, 9, payloads=[None]),
        TraceGraph([(4, [])], [((), 0)], 9, 9, payloads=[b"a", None]),
    ],
)
def test_a_graph_that_refers_to_what_was_never_sent_is_refused(graph: TraceGraph) -> None:
    session = DeviceSession()
    with pytest.raises(ProtocolError, match="before"):
        session.ahead.take_graph(graph)
    session.ahead.take_graph(TraceGraph([(1, []), (2, [])], [((), 1)], 9, 9))
    with pytest.raises(ProtocolError, match="before"):
        session.ahead.take_graph(TraceGraph(None, [((), 2)], 9, 9))


def test_a_run_brings_back_no_more_reads_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a part of the answer, and a message of the link has so many at most."""
    monkeypatch.setattr(speculative, "MAX_READS", 1)
    device = Device()
    device.infer()
    assert [outcome.tensor.tolist() for _, _, outcome in device.answer.result(0).ran] == [[1, 4, 9]]
