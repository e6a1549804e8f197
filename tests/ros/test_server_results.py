"""People as a server sees them, out of what robots report."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edge_offload.models.people import People


@pytest.mark.parametrize("stamp", [lambda _: 0, lambda number: 10**18 + (number - 2 * (number % 5 == 4)) * 10**8])
def test_who_stands_still_has_one_id_at_the_server_whatever_the_stamps_of_the_robot(monkeypatch, stamp):
    pytest.importorskip("rospy", reason="no ROS here")
    from edge_offload.nodes.server import server_results
    from edge_offload.nodes.server.server_results import FrameFacts, ResultInterpreter

    clock = iter(range(1000))
    monkeypatch.setattr(server_results.time, "monotonic", lambda: 0.1 * next(clock))
    result = People(np.array([[10, 10, 40, 80]], np.float32), np.ones(1), np.zeros((1, 17, 3), np.float32))
    empty = People.empty()
    estimator = SimpleNamespace(trained=True, interpret=lambda outputs, _: outputs)
    interpreter = ResultInterpreter()
    monkeypatch.setattr(interpreter, "_find_estimator", lambda *_: estimator)
    monkeypatch.setattr(interpreter, "_image_placement", lambda *_: None)

    def see(number, people, camera=""):
        facts = FrameFacts({"stamp_ns": stamp(number), "seq": number, "image": [128, 96], "camera": camera})
        return interpreter.interpret_people(SimpleNamespace(peer="robot", model="tiny", outputs=people), facts)

    assert [[person.id for person in see(number, result)] for number in range(40)] == [[1]] * 40
    counts = [len(see(number, empty)) for number in range(40, 100)]
    assert counts[0] == 1
    assert counts[-1] == 0, "who is gone is forgotten"
    for number in range(100, 110):
        seen_by_camera = [
            len(see(number, result if camera == "front" else empty, camera)) for camera in ("front", "rear")
        ]
        assert seen_by_camera == [1, 0], "each camera of a robot is followed by itself"
