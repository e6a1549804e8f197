"""The other nodes as processes: manager, monitors, recorder, follower; how they start, fail and end."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.ros.ros_rig import ROOT, wait_for, wait_for_readers


def test_a_mode_is_put_in_force_by_service_and_a_wrong_one_refused(graph):
    import rospy

    from edge_offload_msgs.msg import Latency, OffloadMode
    from edge_offload_msgs.srv import SetMode

    node = graph.node("offload_manager_node", mode="server")
    rospy.wait_for_service(f"{graph.ns}/offload/set_mode", 60)
    call = rospy.ServiceProxy(f"{graph.ns}/offload/set_mode", SetMode)
    latency = graph.publisher("offload/latency", Latency)
    # who comes late finds the mode in force
    modes = graph.listen("offload/mode", OffloadMode)
    wait_for(lambda: len(modes) == 1, "the latched mode")
    assert (modes.messages[0].mode, modes.messages[0].code, modes.messages[0].policy) == ("server", 2, "fixed")
    answer = call("warp")
    assert not answer.ok
    assert "local, server" in answer.message
    answer = call("local")
    assert answer.ok
    assert "it was server" in answer.message
    wait_for(lambda: len(modes) == 2, "the new mode")
    assert (modes.messages[1].mode, modes.messages[1].code) == ("local", OffloadMode.LOCAL)
    assert "tests" in modes.messages[1].reason
    call("server")
    wait_for_readers(latency)
    latency.publish(Latency(mode="local", fallback_reason="the server is gone"))
    wait_for(lambda: graph.has_status(node, 1, "the server is gone"), "the warning that another mode ran")


def test_a_restarted_manager_continues_with_the_requested_mode(graph):
    import rospy

    from edge_offload_msgs.msg import OffloadMode
    from edge_offload_msgs.srv import SetMode

    node = graph.node("offload_manager_node", mode="server")
    rospy.wait_for_service(f"{graph.ns}/offload/set_mode", 60)
    assert rospy.ServiceProxy(f"{graph.ns}/offload/set_mode", SetMode)("local").ok
    node.signal(signal.SIGKILL)
    node.wait()
    modes = graph.listen("offload/mode", OffloadMode)
    node = graph.node("offload_manager_node", **rospy.get_param(f"/{node.name}"))
    wait_for(lambda: len(modes), "the mode of the manager that was started again")
    newest = modes.messages[-1]
    assert (newest.mode, newest.policy) == ("local", "service")
    assert "tests" in newest.reason
    wait_for(lambda: graph.has_status(node, 0), "a manager that complains about nothing")


def test_a_policy_follows_the_forecasts_and_its_knobs_turn(graph):
    import rospy
    from dynamic_reconfigure.client import Client

    from edge_offload_msgs.msg import Forecast, OffloadMode

    node = graph.node("offload_manager_node", mode="auto")
    modes = graph.listen("offload/mode", OffloadMode)
    forecasts = graph.publisher("offload/forecast", Forecast)
    wait_for(lambda: len(modes) == 1, "the manager")
    wait_for_readers(forecasts)
    assert "auto" not in {message.mode for message in modes.messages}, "auto is a policy, never a mode"

    def publish_forecasts(local, server, obstacle="", doubt=0.0):
        forecasts.publish(
            Forecast(
                mode=["local", "server"],
                latency=[rospy.Duration(0, int(s * 1e9)) for s in (local, server)],
                error=[rospy.Duration(0, 1_000_000)] * 2,
                doubt=[rospy.Duration(), rospy.Duration(0, int(doubt * 1e9))],
                energy=[1.0, 1.0],
                obstacle=["", obstacle],
                server_load=0.42,
            )
        )

    publish_forecasts(0.1, 0.4)
    wait_for(lambda: len(modes) == 2, "the local mode")
    assert (modes.messages[1].mode, modes.messages[1].policy) == ("local", "latency")
    assert "server 400±1 ms" in modes.messages[1].reason
    assert "server 42% busy" in modes.messages[1].reason
    publish_forecasts(0.4, 0.1)
    wait_for(lambda: len(modes) == 3 and modes.messages[2].mode == "server", "the server")
    publish_forecasts(0.09, 0.1, doubt=0.05)
    wait_for(lambda: "local is not better by 3%" in graph.values(node).get("reason", ""), "the doubt")
    publish_forecasts(0.4, 0.1, "no server: the plug was pulled")
    wait_for(lambda: len(modes) == 4, "the fallback")
    assert "plug was pulled" in modes.messages[3].reason
    knobs = Client(node.name, timeout=30)
    # 1 J in 0.1 s is more than 5 W, 1 J in 0.4 s is less
    knobs.update_configuration({"power_budget": 5.0})
    publish_forecasts(0.1, 0.4)
    wait_for(lambda: len(modes) == 5 and modes.messages[4].mode == "server", "the mode that draws less")
    assert "budget 5.0 W" in modes.messages[4].reason
    knobs.update_configuration({"power_budget": 0.0})
    publish_forecasts(0.1, 0.4)
    wait_for(lambda: len(modes) == 6 and modes.messages[5].mode == "local", "the faster mode")
    assert knobs.update_configuration({"margin": 2.0})["margin"] == 2.0
    knobs.update_configuration({"dry_run": True})
    publish_forecasts(0.4, 0.01)
    wait_for(lambda: "dry run: latency would choose server" in graph.values(node).get("reason", ""), "what it would do")
    assert len(modes) == 6


@pytest.mark.parametrize("many", [1, 2])
def test_the_number_of_concurrent_turns_is_that_of_the_managers_parameter(graph, many):
    import rospy

    from edge_offload_msgs.msg import Forecast, Turn

    graph.node("offload_manager_node", mode="server", in_flight=many)
    turns = graph.listen("offload/turn", Turn)
    forecasts, taken = graph.publisher("offload/forecast", Forecast), graph.publisher("offload/turn_taken", Turn)
    wait_for_readers(forecasts, taken)
    seconds = [rospy.Duration(0, 300_000_000), rospy.Duration(0, 200_000_000)]
    forecasts.publish(Forecast(task="people", mode=["local", "server"], latency=seconds, error=seconds, doubt=seconds,
                               energy=[1.0, 1.0], obstacle=["", ""], server_load=0.1))  # fmt: skip
    wait_for(lambda: turns.messages, "a turn")
    first = turns.messages[-1]
    assert first.at_once == many
    taken.publish(Turn(number=first.number, task="people", node=first.node, state=Turn.TAKEN))
    time.sleep(0.3)
    assert (turns.messages[-1].number > first.number) == (many > 1), "the first one is under way still"


def test_a_task_that_stays_on_the_robot_has_a_turn_now_and_then_to_see_how_the_server_is(graph):
    import rospy

    from edge_offload.manager.tuning import FRAMES
    from edge_offload_msgs.msg import Forecast, OffloadMode, Turn

    graph.node("offload_manager_node", mode="auto")
    turns, modes = graph.listen("offload/turn", Turn), graph.listen("offload/mode/people", OffloadMode)
    forecasts, taken = graph.publisher("offload/forecast", Forecast), graph.publisher("offload/turn_taken", Turn)
    wait_for_readers(forecasts, taken)

    def publish_forecasts(count, obstacle=""):
        for _ in range(count):
            forecasts.publish(
                Forecast(
                    task="people", mode=["local", "server"], error=[rospy.Duration(0, 1_000_000)] * 2,
                    latency=[rospy.Duration(0, 100_000_000), rospy.Duration(0, 400_000_000)],
                    doubt=[rospy.Duration()] * 2, energy=[1.0, 1.0], obstacle=["", obstacle], server_load=0.1,
                )
            )  # fmt: skip
            time.sleep(0.005)

    many = FRAMES
    publish_forecasts(many)
    wait_for(lambda: modes.messages and modes.messages[-1].mode == "local", "the local mode")
    time.sleep(0.3)
    assert not turns.messages, "its frames need no turn"
    publish_forecasts(1)
    wait_for(lambda: turns.messages and turns.messages[-1].task == "people", "a turn to look")
    newest = turns.messages[-1]
    for state in (Turn.TAKEN, Turn.ENDED):
        taken.publish(Turn(number=newest.number, task="people", node=newest.node, state=state))
    time.sleep(0.3)
    publish_forecasts(1)
    time.sleep(0.3)
    number = turns.messages[-1].number
    publish_forecasts(many - 1)
    publish_forecasts(1, "no server")
    time.sleep(0.3)
    assert turns.messages[-1].number == number, "one look is enough for so many frames, and none where there is nobody"
    publish_forecasts(1)
    wait_for(lambda: turns.messages[-1].number > number, "another look")


def test_a_mode_that_the_node_cannot_run_is_refused_with_the_argument_that_would_allow_it(graph):
    import rospy

    from edge_offload_msgs.msg import Forecast
    from edge_offload_msgs.srv import SetMode

    graph.node("offload_manager_node", mode="local")
    forecasts = graph.publisher("offload/forecast", Forecast)
    rospy.wait_for_service(f"{graph.ns}/offload/set_mode", 60)
    call = rospy.ServiceProxy(f"{graph.ns}/offload/set_mode", SetMode)
    assert "no node has told yet" in call("server").message
    wait_for_readers(forecasts)
    second = [rospy.Duration(0, 1)]
    fields = {"latency": second * 2, "error": second * 2, "doubt": second * 2, "energy": [1.0, 1.0]}
    forecasts.publish(
        Forecast(mode=["local", "split"], obstacle=["", "it is being traced"], absent=["replay"],
                 remedy=["it lacks a device; start with virtual_device:=true"], **fields)
    )  # fmt: skip
    wait_for(lambda: "no node has told" not in call("server").message, "the forecast's arrival")
    answer = call("replay")
    assert not answer.ok
    assert answer.message == (
        "mode replay cannot run here: it lacks a device; start with virtual_device:=true; server stays in force"
    )
    answer = call("split")
    assert answer.ok
    assert answer.message.endswith("for now frames run locally: it is being traced")


def test_two_managers_are_reported_on_diagnostics(graph):
    first = graph.node("offload_manager_node", mode="local")
    graph.node("offload_manager_node", name="another_manager", mode="server")
    wait_for(lambda: graph.has_status(first, 2, "one manager only"), "the error")


def test_bandwidth_is_what_the_transfers_had(graph):
    import rospy

    from edge_offload_msgs.msg import Bandwidth, Latency

    listener = graph.listen("offload/bandwidth", Bandwidth)
    graph.node("bandwidth_monitor_node", rate=20, window=1.0)
    latency = graph.publisher("offload/latency", Latency)
    wait_for(lambda: len(listener) > 0, "the monitor")
    wait_for_readers(latency)
    assert listener.messages[0].source == Bandwidth.NONE
    cost = Latency(mode="server", bytes_up=1_000_000, bytes_down=100_000, connected=True)
    # with the way through an empty link, which is no matter of bandwidth
    cost.uplink, cost.downlink = rospy.Duration(0, 101_300_000), rospy.Duration(0, 101_300_000)
    cost.link_round_trip = rospy.Duration(0, 2_600_000)
    latency.publish(cost)
    estimate = wait_for(lambda: next((m for m in listener.messages if m.samples), None), "an estimate")
    assert (estimate.source, estimate.connected) == (Bandwidth.PASSIVE, True)
    assert estimate.uplink == pytest.approx(10e6)
    assert estimate.downlink == pytest.approx(1e6)
    assert 0 < estimate.uplink_error < 0.5
    assert estimate.round_trip == rospy.Duration(0, 2_600_000)
    wait_for(lambda: listener.messages[-1].samples == 0, "the end of the window")
    assert listener.messages[-1].uplink == 0


def test_the_monitor_does_not_take_a_frame_of_overlapping_transfers_for_one(graph):
    """While split runs, bytes over the time of the stage are half of the truth: its node knows what each took."""
    import rospy

    from edge_offload_msgs.msg import Bandwidth, Forecast, Latency

    listener = graph.listen("offload/bandwidth", Bandwidth)
    graph.node("bandwidth_monitor_node", rate=20, window=5.0)
    latency, forecast = graph.publisher("offload/latency", Latency), graph.publisher("offload/forecast", Forecast)
    wait_for_readers(latency, forecast)
    cost = Latency(mode="split", bytes_up=1_000_000, bytes_down=100_000, connected=True, round_trips=1)
    cost.uplink = cost.downlink = rospy.Duration(0, 200_000_000)
    before = len(listener)
    latency.publish(cost)
    wait_for(lambda: len(listener) > before + 5, "messages")
    assert listener.messages[-1].source == Bandwidth.NONE
    published_s = time.monotonic()
    forecast.publish(Forecast(mode=["split"], uplink=10e6, downlink=9e6, link_error=0.1, link_age=rospy.Duration(1)))
    estimate = wait_for(lambda: next((m for m in listener.messages if m.samples), None), "the link of the transfers")
    assert (estimate.source, estimate.uplink, estimate.downlink) == (
        Bandwidth.PASSIVE,
        pytest.approx(10e6),
        pytest.approx(9e6),
    )
    assert 1.0 <= estimate.age.to_sec() < 1.01 + time.monotonic() - published_s, "a second when it was published"


def test_power_names_its_source_and_energy_only_grows(graph):
    from edge_offload_msgs.msg import Power

    listener = graph.listen("offload/power", Power)
    jetson = {"inference_watts": 13.35, "communication_watts": 4.25, "standby_watts": 4.04}
    node = graph.node("power_node", source="model", rate=20, **jetson)
    wait_for(lambda: len(listener) >= 10, "ten messages")
    assert {message.source for message in listener.messages} == {Power.MODEL}
    assert listener.messages[-1].watts == pytest.approx(4.04, rel=0.01)
    assert listener.messages[-1].state == Power.STANDBY
    joules = [message.joules for message in listener.messages]
    assert joules == sorted(joules)
    assert joules[-1] > joules[0]
    assert node.stop() == 0


def test_the_power_of_an_unsupported_machine_is_not_invented(graph):
    from edge_offload.power.detect import detect
    from edge_offload_msgs.msg import Power

    if detect().sources:
        pytest.skip("this machine has a sensor")
    listener = graph.listen("offload/power", Power)
    node = graph.node("power_node", rate=20)
    wait_for(lambda: len(listener) >= 5, "five messages")
    assert {message.source for message in listener.messages} == {Power.UNKNOWN}
    assert all(math.isnan(message.watts) and math.isnan(message.joules) for message in listener.messages)
    wait_for(lambda: "no table of watts" in graph.values(node).get("source", ""), "the word on it")
    wrong = graph.node("power_node", name="half", standby_watts=4.0)
    assert wrong.wait(120) == 1
    assert "some watts are told and others not" in wrong.output


def test_a_board_whose_rails_are_parts_of_what_it_draws_is_unknown_with_a_warning(graph, tmp_path, monkeypatch):
    from edge_offload_msgs.msg import Power

    script = tmp_path / "tegrastats"
    script.write_text("#!/bin/sh\nwhile echo 'VDD_GPU 5000mW/5000mW VIN_SYS_5V0 6000mW/6000mW'; do sleep 0.1; done\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    listener = graph.listen("offload/power", Power)
    node = graph.node("power_node", rate=20)
    wait_for(lambda: len(listener) >= 3, "three messages")
    assert {message.source for message in listener.messages} == {Power.UNKNOWN}
    wait_for(lambda: graph.has_status(node, 1, "a Jetson AGX Thor draws VIN, and there is no VIN"), "the warning")


def test_hours_remaining_per_mode_are_reported_with_a_battery(graph):
    import rospy
    from sensor_msgs.msg import BatteryState

    from edge_offload_msgs.msg import Forecast

    node = graph.node("offload_manager_node", mode="auto")
    battery = graph.publisher("battery", BatteryState)
    forecasts = graph.publisher("offload/forecast", Forecast)
    wait_for_readers(battery, forecasts)
    unknown = float("nan")
    seconds = [rospy.Duration(0, 400_000_000), rospy.Duration(0, 100_000_000)]

    def publish_battery(**fields):
        forecasts.publish(Forecast(mode=["local", "replay"], latency=seconds, error=seconds, doubt=seconds,
                                   energy=[5.0, 0.5], obstacle=["", ""], server_load=unknown))  # fmt: skip
        values = {"capacity": unknown, "design_capacity": unknown, "charge": unknown, "percentage": unknown, **fields}
        battery.publish(BatteryState(voltage=10.0, **values))

    def shows(text):
        return lambda: (publish_battery(capacity=5.0, percentage=0.5), graph.values(node).get("battery") == text)[1]

    # 25 Wh at 12.5 W and at 5 W
    wait_for(shows("50%, 25 Wh; local 2.0 h, replay 5.0 h (frame after frame)"), "the hours")


def test_an_absent_requested_power_sensor_ends_the_node(graph):
    node = graph.node("power_node", source="ina3221")
    assert node.wait(120) == 1
    assert "ina3221" in node.output.lower()


def test_the_follower_stands_still_without_news_and_drives_with_them(graph):
    import rospy
    from geometry_msgs.msg import Point, Twist

    from edge_offload_msgs.msg import Person, PersonArray

    commands = graph.listen("cmd_vel", Twist)
    node = graph.node("follower_node", base_frame="base_link", rate=50)
    people = graph.publisher("kapao/people", PersonArray)
    wait_for(lambda: len(commands) > 3, "the follower")
    wait_for_readers(people)
    assert all(command.linear.x == 0 == command.angular.z for command in commands.messages)

    def see(stamp=None):
        person = Person(id=1, observed=True, target=True, position_source=Person.DEPTH, position_frame="base_link")
        person.position = Point(4.0, 1.0, 0.0)
        message = PersonArray(people=[person])
        message.header.stamp = rospy.Time.now() if stamp is None else stamp
        people.publish(message)
        time.sleep(0.05)
        last = commands.messages[-1]
        return last.linear.x > 0.05 and last.angular.z > 0.05

    wait_for(see, "driving forward and to the left")
    wait_for(lambda: commands.messages[-1].linear.x == 0 == commands.messages[-1].angular.z, "the stop")
    for stamp, reason in (
        (rospy.Time(), "stamp 0"),
        (rospy.Time.now() + rospy.Duration(3600), "ahead of the clock"),
        (rospy.Time.now() - rospy.Duration(60), "s old by their stamps"),
    ):
        first = len(commands)
        wait_for(lambda s=stamp, w=reason: see(s) or graph.complains(node, w), "the word why it stands")
        assert graph.complains(node, reason), "it drives by people of unknown age"
        assert all(command.linear.x == 0 == command.angular.z for command in commands.messages[first:])
    assert node.stop() == 0
    assert commands.messages[-1].linear.x == 0


def test_the_recorder_ends_the_run_and_writes_a_summary_that_fits_the_schema(graph, images, tmp_path):
    import rospy
    from sensor_msgs.msg import Image

    from edge_offload import records
    from edge_offload_msgs.msg import Latency, PersonArray

    summary = tmp_path / "run" / "summary.json"
    node = graph.node("run_recorder", frames=3, json=str(summary), link="wifi_93mbps")
    people = graph.publisher("kapao/people", PersonArray)
    latency = graph.publisher("offload/latency", Latency)
    overlay = graph.publisher("kapao/overlay", Image)
    publishers = (images.publisher, people, latency, overlay)
    wait_for_readers(*publishers)
    stamps = [images.send() for _ in range(6)]
    wait_for(lambda: graph.values(node).get("frames") == "6", "the arrival of the images")
    for number, stamp in enumerate(stamps[1::2]):
        result, cost = PersonArray(), Latency(mode="server", model="tiny", bytes_up=1000 * number, emulated_slowdown=4)
        for message in (result, cost):
            message.header.stamp = rospy.Time(*divmod(stamp, 10**9))
        cost.total, cost.energy, cost.energy_source = rospy.Duration(0, 10_000_000 * (number + 1)), 2.0, 2
        overlay.publish(Image(result.header, 48, 64, "bgr8", 0, 192, bytes(48 * 192)))
        time.sleep(0.3)
        people.publish(result)
        latency.publish(cost)
    assert node.wait(120) == 0, node.output
    record = json.loads(summary.read_text(encoding="utf-8"))
    records.validate("run", record)
    assert (record["frames_published"], record["frames_in"], record["frames_superseded"]) == (6, 3, 3)
    assert record["results_out"] == 3
    assert record["latency_s"]["mean"] == pytest.approx(0.02)
    assert record["bytes_up"] == pytest.approx(1000)
    assert (record["energy_j"], record["energy_source"], record["robot_slowdown"]) == (2.0, "model", 4.0)
    assert [os.path.basename(path) for path in record["overlay"]] == ["summary.avi", "summary.png"]
    assert all(os.path.getsize(path) > 0 for path in record["overlay"])
    assert "6 published = 3 taken up + 3 superseded" in node.output
    assert "ACCOUNTING" not in node.output


def test_a_run_without_a_result_has_no_summary_and_a_non_zero_exit_code(graph, tmp_path):
    node = graph.node("run_recorder", json=str(tmp_path / "summary.json"), video=False)
    wait_for(lambda: graph.has_status(node, 0), "the end of its start")
    node.signal(signal.SIGINT)
    assert node.wait(120) == 1
    assert not (tmp_path / "summary.json").exists()


def test_a_node_that_ends_itself_while_it_starts_is_stopped_all_the_same(master, tmp_path):
    program = tmp_path / "hasty.py"
    program.write_text(
        "import sys, time\n"
        "from edge_offload.nodes.common.base import Node, run_node\n"
        "class Hasty(Node):\n"
        "    name = 'hasty'\n"
        "    def start(self):\n"
        "        self.finish('at once', exit_code=3)\n"
        "        time.sleep(1.0)\n"
        "    def stop(self):\n"
        "        print('stopped', flush=True)\n"
        "sys.exit(run_node(Hasty))\n"
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stdout.count("stopped")) == (3, 1), ended.stdout + ended.stderr


def test_a_misspelt_parameter_is_reported(graph):
    node = graph.node("power_node", source="model", raet=3)
    wait_for(lambda: any("~raet" in status.message for status in graph.statuses(node)), "the warning")


@pytest.mark.ros
def test_help_needs_no_master_and_unknown_arguments_are_refused():
    pytest.importorskip("rospy")
    command = [sys.executable, str(ROOT / "scripts" / "offload_manager_node")]
    environment = {**os.environ, "ROS_MASTER_URI": "http://localhost:1"}
    shown = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    for part in ("offload/set_mode", "~mode", "local, server"):
        assert part in shown.stdout
    wrong = subprocess.run([*command, "--hepl"], env=environment, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "roscore" in done.stderr
