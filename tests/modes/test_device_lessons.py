"""Mode ``replay`` learns a model on what frames bring, until it needs one round trip for an inference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List, Sequence

import pytest
import torch

from edge_offload.execute.tensors import specs_of
from edge_offload.manager.lateness import Budget
from edge_offload.mode import Mode
from edge_offload.modes import device
from edge_offload.modes.device import IN_A_ROW, LESSONS, DeviceModule
from edge_offload.modes.runner import Attempt
from edge_offload.protocol.remote import END


class Learner(DeviceModule):
    """Notes its lessons; ``trips``: the round trips that each takes, the last one for ever; ``news``: told of each."""

    def __init__(self, trips: Sequence[int]) -> None:
        recorder = SimpleNamespace(failed=False, limit_waits=lambda seconds: None)
        remote = SimpleNamespace(close=lambda: None)
        device: Any = SimpleNamespace(recorder=recorder, remote=remote)
        client: Any = SimpleNamespace(counters={"connections": 1}, cause="")
        super().__init__(device, SimpleNamespace(to=lambda where: None), client)  # type: ignore[arg-type]
        self.trips, self.lessons, self.news = list(trips), [], lambda: None
        self._copy, self._connection = torch.nn.Identity(), 1

    def _infer(self, module: torch.nn.Module, mode: Mode, inputs: Sequence[torch.Tensor]) -> Attempt:
        trips = self.trips.pop(0) if len(self.trips) > 1 else self.trips[0]
        self.lessons.append((float(inputs[0].flatten()[0]), trips))
        self.news()
        return Attempt((), {}, 0, 0, trips)

    def learn(self, mode: Mode = Mode.REPLAY) -> List[Any]:
        specs = specs_of([torch.zeros(2, 3)])
        assert self._make_ready(mode, specs, lambda doing: None)
        return self.lessons


@pytest.fixture(autouse=True)
def nothing_is_opened(monkeypatch):
    monkeypatch.setattr(device.Handles, "unavailable_reason", lambda *_: "it is being opened")


def test_before_the_first_frame_it_learns_on_zeros_until_one_round_trip_suffices():
    assert [trips for _, trips in Learner([8, 7, 1]).learn()] == [8, 7, *[1] * IN_A_ROW]
    assert {value for value, _ in Learner([8, 7, 1]).learn()} == {0.0}


def test_what_is_seen_is_what_it_learns_on_and_a_surprise_makes_it_go_on():
    learner = Learner([8, 1, 1, 6, 1])
    frames = iter(range(1, 100))

    def frame():
        learner.unavailable_reason(Mode.REPLAY, [torch.full((2, 3), float(next(frames)))])

    learner.news = frame
    frame()
    assert learner.learn() == [(1.0, 8), (2.0, 1), (3.0, 1), (4.0, 6), (5.0, 1), (6.0, 1), (7.0, 1)]


def test_frames_of_other_shapes_are_no_example():
    learner = Learner([1])
    learner.unavailable_reason(Mode.REPLAY, [torch.ones(5)])
    assert {value for value, _ in learner.learn()} == {0.0}


def test_a_program_with_several_round_trips_ends_its_lessons():
    assert len(Learner([3]).learn()) == LESSONS
    assert len(Learner([3]).learn(Mode.LAZY)) == 2


def test_the_session_of_before_is_ended_over_the_new_connection(monkeypatch):
    requests, sessions = [], iter([b"first", b"second"])
    monkeypatch.setattr("edge_offload.device.connect.other_operators", lambda client: ())
    monkeypatch.setattr(
        "edge_offload.device.remotes.link.LinkRemote", lambda *_, **__: SimpleNamespace(session=next(sessions))
    )
    device: Any = SimpleNamespace(
        remote=SimpleNamespace(session=b"somebody else's"), reconnect=lambda remote: setattr(device, "remote", remote)
    )
    client: Any = SimpleNamespace(
        request=lambda kind, body, timeout_s: requests.append((device.remote.session, kind, body["session"]))
    )
    module = DeviceModule(device, torch.nn.Identity(), client)
    module._connect()
    assert (device.remote.session, requests) == (b"first", []), "there was none before"
    module._connect()
    assert requests == [(b"second", END, b"first")]


def test_a_late_answer_ends_no_session_before_the_attempt_is_given_up():
    learner, waits_s = Learner([1]), []
    learner._device.recorder.limit_waits = waits_s.append
    learner._device.remote.bytes_up = 0
    learner.run(Mode.REPLAY, [torch.ones(2, 3)], Budget(0.3, 10.0))
    assert waits_s == [10.0]


def test_a_session_whose_bits_may_differ_is_not_used_for_exact_results(monkeypatch):
    monkeypatch.setattr(device.Handles, "unavailable_reason", lambda *_: None)
    device_stub: Any = SimpleNamespace()
    client: Any = SimpleNamespace(welcome={"fingerprint": {"threads": 2, "engine": "eager+graph"}})
    given = [torch.ones(2)]

    def reason(**own: Any) -> str:
        return (
            DeviceModule(device_stub, torch.nn.Identity(), client, "auto", own).unavailable_reason(Mode.REPLAY, given)
            or ""
        )

    assert reason(threads=2) == "", "an engine of the server computes no sessions"
    assert "(threads: 1 here, 2 there); make both equal" in reason(threads=1)
    client.welcome = {}
    assert "its fingerprint is not known" in reason(threads=2)
