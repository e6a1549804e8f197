"""What nodes are made of, without ROS: parameters, health, and the count of a run."""

from __future__ import annotations

import math
import pathlib
import re
from types import SimpleNamespace

import pytest

from edge_offload import records
from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.nodes.common import params as parameters
from edge_offload.nodes.common.health import ERROR, OK, WARN, Awaited, Health, Losses
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.link_watch import LinkWatch
from edge_offload.nodes.monitor.tally import Tallies, Tally, render_summary
from edge_offload.timing import InferenceReport

DECLARED = (
    Param("rate", 10.0, "Hz", low=0.1),
    Param("name", "x", "a name"),
    Param("mode", "local", "where", choices=("local", "server")),
    Param("loop", True, "again"),
    Param("options", {}, "more"),
)


def test_defaults_hold_where_nothing_is_set():
    assert parameters.read(DECLARED, {}) == {
        "rate": 10.0, "name": "x", "mode": "local", "loop": True, "options": {},
    }  # fmt: skip


def test_what_roslaunch_makes_of_a_text_is_turned_back():
    read = parameters.read(DECLARED, {"rate": 5, "name": 0})
    assert read["rate"] == 5.0
    assert read["name"] == "0"


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"rate": "fast"}, "~rate"),
        ({"rate": 0.0}, "at least 0.1"),
        ({"rate": float("nan")}, "finite"),
        ({"mode": "auto"}, "local, server"),
        ({"loop": "yes"}, "~loop"),
        ({"options": [1]}, "~options"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(raw, error):
    with pytest.raises(BadInput, match=error):
        parameters.read(DECLARED, raw)


def test_misspelt_parameters_are_reported():
    assert parameters.undeclared_names(DECLARED, {"rate": 1, "frams": 2}) == ["frams"]


def test_parameters_written_by_nodes_are_not_misspelt_for_restarted_ones():
    """A respawned node reads the parameters that the one before it wrote."""
    pytest.importorskip("rospy")
    from edge_offload.nodes.detector.detector_node import DetectorNode
    from edge_offload.nodes.manager.offload_manager_node import OffloadManagerNode
    from edge_offload.nodes.monitor.dashboard_node import DashboardNode
    from edge_offload.nodes.people.kapao_node import KapaoNode
    from edge_offload.nodes.scene.agrnav_node import AgrnavNode

    nodes = (DetectorNode, OffloadManagerNode, DashboardNode, KapaoNode, AgrnavNode)
    allowed = {name for node in nodes for name in (*node.written, *(param.name for param in node.declared))}
    folder = pathlib.Path(parameters.__file__).parents[1]
    written = set()
    for file in folder.rglob("*.py"):
        written |= set(re.findall(r"""(?:set_param|resolve_name)\("~(\w+)""", file.read_text(encoding="utf-8")))
    assert written >= {"weights_sha256", "labels", "url", "mode"}
    assert written <= allowed


def test_an_absent_server_is_amber_for_a_policy_and_red_for_a_requested_mode():
    def judge(watch, now, by_name, ready=False):
        return watch.judge_link(now, ready, "tcp://edge:5599", "connection refused", by_name)

    for retained, lasting in ((False, WARN), (True, ERROR)):
        watch = LinkWatch()
        assert judge(watch, 0.0, retained, ready=True) is None
        level, message = judge(watch, 5.0, retained)
        assert level == WARN, "an interruption"
        assert "tcp://edge:5599: connection refused" in message
        level, message = judge(watch, 15.5, retained)
        assert level == lasting
        assert "for more than 10 s: connection refused" in message
        assert "every frame is computed on the robot" in message
        assert "check that 'edge-offload serve' runs there" in message
        assert judge(watch, 16.0, retained) == judge(watch, 17.0, retained), "told once, not every second"
        assert "a minute" in judge(watch, 70.0, retained)[1]
        assert judge(watch, 71.0, retained, ready=True) is None
        assert judge(watch, 72.0, retained)[0] == WARN, "it had been back"


def test_a_condition_of_one_part_has_its_name_and_ends_by_itself():
    health, late = Health(), [""]
    front, rear = health.make_part("front"), health.make_part("rear")
    for part in (front, rear):
        part.warn("images", "no image yet")
        part.count("bad frames")
        part.value("results", 3)
    front.watch("depth", lambda: late[0])
    assert not front.warn("images", "no image yet"), "no news"
    assert health.make_report().message == "front: no image yet; rear: no image yet"
    assert health.make_report().values["rear: results"] == "3"
    assert (front.read_count("bad frames"), health.read_count("bad frames")) == (1, 0)
    assert front.clear("images")
    late[0] = "late"
    assert (health.make_report().level, health.make_report().message) == (WARN, "rear: no image yet; front: late")
    rear.clear("images")
    late[0] = ""
    assert health.make_report().level == OK


def test_health_reports_the_worst_condition_first_and_drops_ended_ones():
    health = Health()
    assert health.make_report().level == OK
    health.warn("link", "no server")
    assert health.error("camera", "unplugged") is True
    assert health.error("camera", "unplugged") is False
    report = health.make_report()
    assert report.level == ERROR
    assert report.message == "unplugged; no server"
    health.clear("camera")
    assert health.make_report().level == WARN
    health.clear("link")
    assert health.make_report().level == OK


def tally_of(published, results, latencies, mode=Mode.SERVER) -> Tally:
    tally = Tally()
    for stamp in published:
        tally.add_frame(stamp)
    for stamp in results:
        tally.add_result(stamp)
    for stamp in latencies:
        tally.add_latency(stamp, InferenceReport(mode, "movenet", 0.1, bytes_up=100, round_trips=1), 0.5, False)
    return tally


def test_missing_fields_of_results_are_reported_as_a_share_of_recent_ones():
    clock = SimpleNamespace(now=0.0)
    health, losses = Health(), Losses("results without a place", lambda: clock.now)
    health.watch("place", losses.describe_losses)
    for number in range(20):
        clock.now = 0.5 * number
        losses.note_loss(f"cause {number}; remedy" if number % 5 == 0 else "")
    report = health.make_report()
    assert (report.level, report.message) == (WARN, "4 of the last 20 results without a place: cause 15; remedy")
    clock.now = 17.7
    losses.note_loss()
    assert health.make_report().level == OK, "10 s after the last that lacked something"
    losses.note_loss(lambda: "asked when it is told")
    clock.now += 30.0
    assert "1 of the last 1" in health.make_report().message, "results are rare: the newest counts for longer"
    assert "asked when it is told" in health.make_report().message
    clock.now += 31.0
    assert health.make_report().level == OK
    losses.note_loss("no more of this")
    losses.clear()
    assert health.make_report().level == OK


def test_awaited_messages_are_reported_when_absent():
    clock = SimpleNamespace(now=100.0)
    awaited = Awaited("cloud on /points", lambda: "check the driver", 3.0, lambda: clock.now)
    clock.now = 102.0
    assert awaited.explain_silence() == ""
    clock.now = 104.0
    assert awaited.explain_silence() == "no cloud on /points yet; check the driver"
    awaited.note_arrival()
    clock.now = 106.5
    assert awaited.explain_silence() == ""
    clock.now = 109.0
    assert awaited.explain_silence() == "no cloud on /points for 5 s; check the driver"


def test_a_sound_run_has_no_faults_and_its_summary_fits_the_schema():
    tally = tally_of([1, 2, 3, 4, 5], [1, 3, 4], [1, 3, 4])
    assert tally.list_faults() == []
    record = tally.summarise_run("wifi_93mbps", ["a.avi"])
    records.validate("run", record)
    assert record["frames_published"] == 4, "frame 5 came after the last result: it may be under way"
    assert record["frames_in"] == record["results_out"] == 3
    assert record["frames_superseded"] == 1
    assert record["mode"] == "server"
    assert "1 superseded" in render_summary(record)
    assert "  net.onnx, " in render_summary({**record, "model": "/home/robot/nets/net.onnx"})


def test_a_bag_in_a_loop_is_counted_every_time():
    tally = Tally()
    report = InferenceReport(Mode.SERVER, "movenet", 0.1)
    for loop in range(4):
        for stamp in range(1, 9):
            tally.add_frame(stamp)
            if stamp == 4 or (loop == 3 and stamp > 5):
                continue  # superseded; the run ends before the last answers
            tally.add_result(stamp)
            tally.add_latency(stamp, report, 0.5, False)
    assert tally.list_faults() == []
    assert tally.complete == 25
    record = tally.summarise_run()
    assert record["frames_in"] == record["results_out"] == 25
    assert (record["frames_published"], record["frames_superseded"]) == (29, 4)
    tally.add_frame(6)
    tally.add_result(6)
    tally.close()
    assert tally.list_faults() == [], "half an answer is known though its stamp was there before"


def test_frames_that_fell_back_are_distinguished_in_the_summary():
    tally = tally_of([1, 2, 3], [1, 2], [1, 2])
    tally.add_result(3)
    tally.add_latency(3, InferenceReport(Mode.LOCAL, "movenet", 0.7), 0.5, False)
    record = tally.summarise_run()
    records.validate("run", record)
    assert record["frames_by_mode"] == {"server": 2, "local": 1}
    assert record["latency_s"]["mean"] == pytest.approx(0.3)
    costs = record["by_mode"]
    assert costs["server"]["latency_s"]["mean"] == pytest.approx(0.1)
    assert costs["local"]["latency_s"]["mean"] == pytest.approx(0.7)
    assert [(cost["bytes_up"], cost["round_trips"]) for cost in costs.values()] == [(100, 1), (0, 0)]


@pytest.mark.parametrize(
    ("results", "latencies", "message"),
    [
        ([1, 2, 99], [1, 2, 99], "belong to no frame"),
        ([1, 2, 2], [1, 2], "several results"),
        ([1, 2], [1, 2, 2], "several latencies"),
        ([1, 2], [1, 2, 3], "but not both"),
    ],
)
def test_a_restamped_doubled_or_missing_answer_is_a_fault(results, latencies, message):
    faults = tally_of([1, 2, 3], results, latencies).list_faults()
    assert any(message in fault for fault in faults), faults


def test_a_count_that_ends_while_frames_are_under_way_is_even():
    for results, latencies in (
        ([1, 2, 3], [1, 2]),
        ([1, 2], [1, 2, 3]),
        ([1, 2, 3, 4], [1, 2]),
        ([1, 2], [1, 2, 3, 4]),
        ([1, 2, 9], [1, 2]),  # its frame is not here yet
    ):
        tally = tally_of([1, 2, 3, 4], results, latencies)
        tally.close()
        assert tally.list_faults() == [], (results, latencies)
        record = tally.summarise_run()
        assert (record["frames_published"], record["frames_in"], record["results_out"]) == (2, 2, 2)
        assert record["frames_superseded"] == 0
        assert record["frames_by_mode"] == {"server": 2}


def test_after_the_count_only_what_its_frames_lack_is_taken():
    """Frames come after their answers where images are large; nothing else may add to the count."""
    report = InferenceReport(Mode.SERVER, "movenet", 0.1)
    tally = tally_of([1, 2], [1, 3, 4], [1, 2, 3, 4])
    tally.close()
    assert any("belong to no frame" in fault for fault in tally.list_faults())
    assert any("but not both" in fault for fault in tally.list_faults()), "an older half is waited for"
    for stamp in (3, 4, 5, 3):
        tally.add_frame(stamp)
    for stamp in (2, 4, 5):
        tally.add_result(stamp)
        tally.add_latency(stamp, report, 0.5, False)
    assert tally.list_faults() == []
    record = tally.summarise_run()
    assert (record["frames_published"], record["frames_in"], record["results_out"]) == (4, 4, 4)
    carried = tally_of([1, 2], [], [1, 2, 3])
    for stamp, origin in ((1, "carried"), (2, "fresh")):
        carried.add_result(stamp, origin)
    carried.close()
    assert carried.list_faults() == [], "an inference whose frame has no result yet"
    assert carried.summarise_run()["inferences"] == 2


def test_answers_to_frames_of_before_we_listened_are_answers_to_published_frames():
    record = tally_of([2, 3, 4], [1, 2, 4], [1, 2, 4]).summarise_run()
    assert (record["frames_published"], record["frames_in"], record["frames_superseded"]) == (4, 3, 1)


@pytest.mark.parametrize("late", ["results", "latencies"])
def test_a_count_started_after_the_network_is_even(late):
    """Its subscriptions connect one after the other: the first answers may be here by half, or not at all."""
    report = InferenceReport(Mode.SERVER, "movenet", 0.1)
    tally = Tally(late=True)
    for stamp in range(1, 8):
        tally.add_frame(stamp)
        if stamp > (3 if late == "results" else 2):
            tally.add_result(stamp)
        if stamp > (3 if late == "latencies" else 2):
            tally.add_latency(stamp, report, 0.5, False)
    tally.add_frame(8)
    tally.close()
    assert tally.list_faults() == []
    record = tally.summarise_run()
    assert record["frames_in"] == record["results_out"] == sum(record["frames_by_mode"].values()) == 4
    assert (record["frames_published"], record["frames_superseded"]) == (4, 0)


def test_a_first_half_answer_of_a_network_is_a_fault():
    torn = tally_of([1, 2, 3], [2, 3], [1, 2, 3])
    torn.close()
    assert any("but not both" in fault for fault in torn.list_faults())


def test_a_half_in_the_midst_of_a_count_is_a_fault():
    torn = tally_of([1, 2, 3], [1, 3], [1, 2, 3])
    torn.close()
    assert torn.list_faults(), "only frames behind the last whole one may lack a half"


def test_no_result_at_all_is_an_error_and_not_an_empty_summary():
    with pytest.raises(BadInput, match="no frame got a result"):
        tally_of([1, 2], [], []).summarise_run()


def test_the_summary_gives_the_remedy_for_two_versions_of_torch():
    tally = Tally()
    tally.add_frame(1)
    tally.add_result(1)
    tally.add_latency(1, InferenceReport(Mode.SERVER, "movenet", 0.1), 1.0, True)
    assert "TORCH" not in render_summary(tally.summarise_run())
    tally.two_torches = "torch 2.13.0 on the robot, 2.15.0 on the server: pip install torch==2.13.0 on the server"
    record = tally.summarise_run()
    records.validate("run", record)
    assert "pip install torch==2.13.0 on the server" in render_summary(record)


def test_two_versions_of_torch_are_reported_on_diagnostics_and_reach_the_summary():
    pytest.importorskip("rospy")
    from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

    from edge_offload.nodes.inference.link_watch import NetworkHealth
    from edge_offload.nodes.monitor.run_recorder import RunRecorder

    message = "pip install torch==2.13.0 on the server"
    module, health = (
        SimpleNamespace(state=dict, torches=lambda: message, engine_state=lambda: ("eager", False)),
        Health(),
    )
    network = NetworkHealth(module, None, health)
    network.refresh(needed=False)
    report = health.make_report()
    assert (report.level, report.message) == (WARN, message)
    recorder = RunRecorder.__new__(RunRecorder)
    recorder._tally = Tally()
    values = [KeyValue(key, value) for key, value in report.values.items()]
    recorder._on_diagnostics(DiagnosticArray(status=[DiagnosticStatus(values=values)]))
    assert recorder._tally.two_torches == message
    module.torches = str
    network.refresh(needed=False)
    assert health.make_report().level == OK


def test_a_mode_that_changes_since_everything_is_ended_is_no_news(monkeypatch):
    """At the end of a launch the server goes as well, and the manager says so."""
    rospy = pytest.importorskip("rospy")
    from edge_offload.nodes.inference.offloaded import OffloadedNode
    from edge_offload_msgs.msg import OffloadMode

    lines = []
    monkeypatch.setattr(rospy, "loginfo", lines.append)
    node = OffloadedNode({"deadline": 0.0}, Health())
    node._mode, node._network = Mode.SERVER, SimpleNamespace(aim_plans=lambda *_: None, absent={})
    monkeypatch.setattr(rospy.core, "is_shutdown_requested", lambda: True)
    node._on_mode(OffloadMode(mode="local", policy="auto", reason="server: connection refused"))
    assert (node._mode, lines) == (Mode.LOCAL, [])
    monkeypatch.setattr(rospy.core, "is_shutdown_requested", lambda: False)
    node._on_mode(OffloadMode(mode="server", policy="auto", reason="faster"))
    assert lines == ["mode server from now on: faster"]


def test_carried_results_are_counted_separately_from_inferences():
    tally = tally_of([1, 2, 3, 4, 5], [], [2, 4])
    for stamp, origin in ((1, "none"), (2, "none"), (3, "carried"), (4, "local"), (5, "carried")):
        tally.add_result(stamp, origin, 0.02)
    assert tally.list_faults() == []
    assert tally.complete == 5
    record = tally.summarise_run()
    records.validate("run", record)
    assert (record["frames_in"], record["results_out"], record["frames_superseded"]) == (5, 5, 0)
    assert (record["inferences"], record["results_by_origin"]) == (2, {"none": 2, "carried": 2, "local": 1})
    assert record["delay_s"]["p99"] == pytest.approx(0.02)
    assert "from 2 inferences" in render_summary(record)
    tally.add_latency(6, InferenceReport(Mode.SERVER, "movenet", 0.1), 0.5, False)
    tally.add_result(5, "carried")
    assert [fault.split(" ", 1)[1] for fault in tally.list_faults()] == [
        "stamps of results belong to no frame seen (first: 6 ns)",
        "frames have several results (first: 5 ns)",
        "frames have a latency, but no result (first: 6 ns)",
    ]


def test_cameras_of_one_network_are_counted_each_by_itself():
    """Both are triggered at once: their frames have the same stamps."""
    tallies = Tallies(["front", "rear"])
    for stamp in (1, 2, 3, 4):
        for camera, answered in (("front", (1, 3)), ("rear", (2, 3, 4))):
            tally = tallies.of[camera]
            tally.add_frame(stamp)
            if stamp in answered:
                tally.add_result(stamp)
                seconds = 0.1 if camera == "front" else 0.3
                tally.add_latency(stamp, InferenceReport(Mode.SERVER, "movenet", seconds), 1.0, True)
    assert (tallies.sum_counts("frames"), tallies.sum_counts("complete"), tallies.results) == (8, 5, 5)
    assert tallies.list_faults() == []
    record = tallies.summarise_run()
    records.validate("run", record)
    assert (record["frames_in"], record["results_out"], record["frames_superseded"]) == (5, 5, 2)
    front, rear = record["cameras"]["front"], record["cameras"]["rear"]
    assert (front["frames_published"], front["frames_in"], front["frames_superseded"]) == (3, 2, 1)
    assert (rear["frames_published"], rear["frames_in"], rear["frames_superseded"]) == (4, 3, 1)
    assert (front["latency_s"]["p50"], rear["latency_s"]["p50"]) == (pytest.approx(0.1), pytest.approx(0.3))
    assert "front        2 results of 3 frames, p50 100 ms" in render_summary(record)
    tallies.of["rear"].add_result(4)
    assert tallies.list_faults() == ["rear: 1 frames have several results (first: 4 ns)",
                                "rear: 1 frames have a result or a latency, but not both (first: 4 ns)"]  # fmt: skip


def test_a_camera_without_a_result_is_in_the_summary():
    tallies = Tallies(["front", "rear"])
    for tally in tallies.of.values():
        tally.add_frame(1)
    tallies.of["front"].add_result(1)
    tallies.of["front"].add_latency(1, InferenceReport(Mode.LOCAL, "movenet", 0.1), math.nan, False)
    record = tallies.summarise_run()
    records.validate("run", record)
    assert record["cameras"]["rear"] == {
        "frames_in": 0, "frames_published": 1, "frames_superseded": 0, "results_out": 0
    }  # fmt: skip
    assert "rear         0 results of 1 frames" in render_summary(record)
