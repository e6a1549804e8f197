"""Courses that were tampered with (bench fuzz): each is answered, and in C++ as in Python."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import pytest
import torch

from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.serve import serve_message
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.trace_graph import TraceStep
from edge_offload.protocol.messages import DeviceMessage, parse_answer
from edge_offload_benchmarks.fuzzing.trace_graphs import ROUNDS, TraceGraphSender
from tests.execute.native_runner import native_runner


class Reply:
    def __init__(self, buffers: Sequence[Any]) -> None:
        self.buffers = buffers


class Both:
    """A client whose server is two sessions in this process, of which one runs nodes in C++."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._sessions: Dict[bytes, Tuple[DeviceSession, DeviceSession]] = {}
        self.native = 0

    def request(
        self, service: str, body: Dict[str, Any], buffers: Sequence[Any] = (), timeout_s: Optional[float] = None
    ) -> Future:
        done: Future = Future()
        if service == "device.end":
            self._sessions.pop(body["session"], None)
            done.set_result(None)
            return done
        sessions = self._sessions.setdefault(body["session"], (DeviceSession(), DeviceSession()))
        answers = []
        for session, module in zip(sessions, (None, self._module)):
            library.module = module
            answers.append([bytes(part) for part in serve_message(session, [bytes(buffer) for buffer in buffers])])
        assert answers[0] == answers[1], parse_answer(answers[0])
        assert state_of(sessions[0]) == state_of(sessions[1])
        self.native += sum(program is not None and program._native is not None
                           for program in sessions[1].ahead._programs.values())  # fmt: skip
        done.set_result(Reply(answers[0]))
        return done


def state_of(session: DeviceSession) -> Tuple[List[int], int, int]:
    return sorted(session.buffers), session.allocated, len(session._journal)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory whose contents are undefined holds 255 in both: that is what torch fills it with on request."""
    storage = torch.UntypedStorage

    def filled(size: int, **device: Any) -> torch.UntypedStorage:
        return storage(size, **device).fill_(255)

    monkeypatch.setattr(library, "module", None)
    monkeypatch.setattr(torch, "UntypedStorage", filled)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("seed", range(3))
def test_any_course_is_answered_in_cpp_as_in_python(seed: int) -> None:
    both = Both(native_runner())
    sender = TraceGraphSender(both, random.Random(seed))
    for _ in range(20 * ROUNDS):
        sender.send()
    sender.drain()
    assert sender.outcomes["ran"] > 500
    assert sender.outcomes["RemoteError"] > 200
    assert sender.ran > 2000
    assert both.native > 500


def test_a_node_without_calls_ends_the_run_not_the_session() -> None:
    session = DeviceSession()
    sender = TraceGraphSender(None, random.Random(0))
    message = sender._send_definitions()
    message.nodes = [(number, TraceStep(None, (), (), (), (), b"", (), False)) for number, _ in message.nodes]
    assert parse_answer(serve_message(session, message.to_wire())).error is None
    along = sender._send_run()
    along.accepted = 0
    answer = parse_answer(serve_message(session, along.to_wire()))
    assert answer.error is None
    assert answer.ran == []
    assert parse_answer(serve_message(session, DeviceMessage().to_wire())).error is None
