"""What a node says it can choose among, where it was started without what some modes need."""

import pytest

from edge_offload.mode import Mode

network = pytest.importorskip("edge_offload.nodes.inference.network", reason="needs ROS")
#: Those of the launch files.
CANDIDATES = (Mode.LOCAL, Mode.REPLAY, Mode.SPLIT)


def test_with_everything_there_the_bridge_is_told_apart_from_the_choice():
    assert network._describe_choice(CANDIDATES, {}) == (
        "local, replay, split; server until replay is ready, and while it is slower"
    )


def test_off_the_virtual_device_replay_is_named_with_its_reason_and_server_stands_in_for_good():
    words = network._describe_choice(CANDIDATES, {Mode.REPLAY: "virtual_device is false"})
    assert words == "local, split; server for replay; not replay: virtual_device is false"


def test_without_a_server_the_robot_is_all_that_is_left():
    absent = {mode: "there is no server" for mode in Mode if mode is not Mode.LOCAL}
    words = network._describe_choice(CANDIDATES, absent)
    assert words.startswith("local;")
    assert "not split: there is no server" in words
    assert "server for" not in words


def test_a_mode_that_cannot_run_here_is_not_said_to_be_in_force():
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
def test_turns_that_nobody_gives_are_told_where_there_is_a_server_to_take_them_at(monkeypatch, server):
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
