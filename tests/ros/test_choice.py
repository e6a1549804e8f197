"""What a node says it can choose among, where it was started without what some modes need."""

import pytest

from edge_offload.mode import Mode

network = pytest.importorskip("edge_offload.nodes.inference.network", reason="needs ROS")
#: Those of the launch files.
CANDIDATES = (Mode.LOCAL, Mode.REPLAY, Mode.SPLIT)


def test_with_everything_present_the_bridge_and_the_choice_are_distinguished():
    assert network._describe_choice(CANDIDATES, {}) == (
        "local, replay, split; server until replay is ready, and while it is slower"
    )


def test_off_the_virtual_device_replay_is_named_with_its_reason_and_server_stands_in_for_good():
    text = network._describe_choice(CANDIDATES, {Mode.REPLAY: "virtual_device is false"})
    assert text == "local, split; server for replay; not replay: virtual_device is false"


def test_without_a_server_only_the_robot_remains():
    absent = {mode: "there is no server" for mode in Mode if mode is not Mode.LOCAL}
    text = network._describe_choice(CANDIDATES, absent)
    assert text.startswith("local;")
    assert "not split: there is no server" in text
    assert "server for" not in text


@pytest.mark.parametrize(("every_frame", "count"), [(False, 1), (True, 0)])
def test_arrivals_count_unless_the_queue_sets_their_pace(every_frame, count):
    import types

    from edge_offload.nodes.inference.offloaded import OffloadedNode

    arrivals = []
    module = types.SimpleNamespace(frames=types.SimpleNamespace(record_frame_arrival=arrivals.append))
    node = types.SimpleNamespace(
        _sharing=None, _network=types.SimpleNamespace(module=module), params={"every_frame": every_frame}
    )
    assert OffloadedNode.admit_frame(node, types.SimpleNamespace(received_s=1.0))
    assert len(arrivals) == count


def test_an_unavailable_mode_is_not_reported_as_active():
    """The manager begins with ``server``, before a node has said that it has none."""
    import types

    from edge_offload.nodes.inference.offloaded import OffloadedNode

    missing = types.SimpleNamespace(absent={Mode.SERVER: "it needs a server"}, aim_plans=lambda *_: None)
    node = types.SimpleNamespace(_network=missing, _mode=Mode.LOCAL, params={"deadline": 0.0})
    for mode, in_force in (("server", Mode.LOCAL), ("split", Mode.SPLIT)):
        message = types.SimpleNamespace(mode=mode, reason="nothing is known yet", policy="auto")
        OffloadedNode._on_mode(node, message)
        assert node._mode is in_force


@pytest.mark.parametrize("server", ["", "tcp://127.0.0.1:5700"])
def test_turns_without_a_giver_are_reported_if_a_server_is_configured(monkeypatch, server):
    import types

    from edge_offload.nodes.common.health import OK, WARN, Health
    from edge_offload.nodes.inference import turns

    silent = types.SimpleNamespace(get_num_connections=lambda: 0)
    for name in ("Publisher", "Subscriber"):
        monkeypatch.setattr(turns.rospy, name, lambda *_, **__: silent)
    node = types.SimpleNamespace(health=Health(), params={"server": server}, callback=lambda call: call)
    taking = turns.Turns(node, "people", wake=lambda: None, request_turn=lambda: None)
    taking._taker.lose_manager("no manager has given a turn for 2 s")
    taking.refresh()
    assert node.health.make_report().level == (WARN if server else OK)
