"""The people node as a process: what it answers is counted outside of it."""

from __future__ import annotations

import signal
import statistics
import time

import pytest

from tests.ros.ros_rig import free_port, wait_for, wait_for_readers


def start(graph, images, **params):
    """The people node on the tiny model, ready for images; what it answers."""
    from edge_offload_msgs.msg import Latency, PersonArray

    people, latency = graph.listen("kapao/people", PersonArray), graph.listen("offload/latency", Latency)
    options = {
        "model": "tiny_people:make",
        "threads": 1,
        "keys": str(graph.keys),
        "world_frame": "camera_link",
        **params,
    }
    node = graph.node("kapao_node", **options)
    wait_for(lambda: people.connected and latency.connected, "the start of the node", 90)
    images.wait()
    return node, people, latency


def check_answers(images, people, latency):
    """Exactly one list of people and one latency for every frame taken up, with its stamp to the nanosecond."""
    results, costs = people.by_stamp(), latency.by_stamp()
    assert set(results) == set(costs)
    assert set(results) <= set(images.stamps)
    assert {len(messages) for messages in [*results.values(), *costs.values()]} == {1}
    return results, costs


def test_frames_published_are_taken_or_superseded_and_every_one_taken_has_a_result(graph, images):
    """Five times as many images as the network can take: the count holds, and no queue builds up."""
    seconds = 0.06
    node, people, latency = start(graph, images, model_options={"seconds": seconds})
    for _ in range(100):
        images.send()
        time.sleep(seconds / 5)
    # as roslaunch ends it: what waits is still worked on
    wait_for(lambda: graph.values(node).get("frames offered") == "100", "the arrival of all images")
    node.signal(signal.SIGINT)
    assert node.wait() == 0, node.output
    wait_for(lambda: len(people) == len(latency) > 0, "an even number of answers")
    results, costs = check_answers(images, people, latency)
    figures = graph.values(node)
    taken, superseded = int(figures["frames taken"]), int(figures["frames superseded"])
    assert len(images.stamps) == taken + superseded
    assert len(results) == taken == int(figures["results"])
    assert superseded > 0, "the network was meant to be too slow"
    assert figures["frames waiting"] == "0"
    assert images.stamps[-1] in results, "the newest frame is never the one that gives way"
    # an image waits for one inference at most, whatever came before it: a queue would make it tens
    queued = [messages[0].queue.to_sec() for messages in costs.values()]
    worked = [result[0].total.to_sec() - result[0].queue.to_sec() for result in costs.values()]
    assert statistics.median(queued) <= 3 * statistics.median(worked)


def test_every_frame_mode_loses_nothing_and_keeps_the_order(graph, images):
    _, people, latency = start(graph, images, every_frame=True, model_options={"seconds": 0.01})
    for _ in range(40):
        images.send()
    wait_for(lambda: len(people) == len(latency) == 40, "the last answer")
    check_answers(images, people, latency)
    assert [message.header.stamp.to_nsec() for message in people.messages] == images.stamps


def test_a_node_that_waits_for_its_server_ends_on_request(graph):
    from sensor_msgs.msg import CameraInfo

    infos = graph.publisher("camera/camera_info", CameraInfo, latch=True)
    infos.publish(CameraInfo(width=128, height=96))
    nowhere = f"tcp://127.0.0.1:{free_port()}"
    options = {"model": "tiny_people:make", "threads": 1, "keys": str(graph.keys), "server": nowhere}
    node = graph.node("kapao_node", mode="auto", server_wait=300.0, **options)
    wait_for(lambda: graph.has_status(node, 1, "waiting for mode server"), "the wait for the server", 90)
    node.signal(signal.SIGINT)
    assert node.wait(120) == 0, node.output


def test_people_have_their_results_and_the_cost_names_the_mode(graph, images):
    from edge_offload_msgs.msg import OffloadMode, Power

    jetson = {"inference_watts": 13.35, "communication_watts": 4.25, "standby_watts": 4.04}
    _, people, latency = start(graph, images, slowdown=2.0, deadline=30.0, power=jetson)
    images.send(x=60, y=40)
    wait_for(lambda: len(latency) == 1 and len(people) == 1, "the answer")
    message, cost = people.messages[0], latency.messages[0]
    assert (message.image_width, message.image_height, message.header.frame_id) == (128, 96, "camera_optical_frame")
    (person,) = message.people
    assert person.observed
    assert person.x_min < 60 < person.x_max
    assert person.y_min < 40 < person.y_max
    assert (cost.mode, cost.mode_code, cost.fallback_reason, cost.error) == ("local", OffloadMode.LOCAL, "", "")
    assert cost.emulated_slowdown == 2.0
    assert cost.deadline.to_sec() == 30.0
    assert cost.deadline_met
    assert 0 < cost.compute_robot.to_sec() <= cost.total.to_sec()
    assert (cost.bytes_up, cost.bytes_down, cost.round_trips) == (0, 0, 0)
    assert cost.energy > 0
    assert cost.energy_source in (Power.MEASURED, Power.MODEL)


def test_a_faulty_frame_gives_one_empty_result_with_the_reason_and_the_next_one_is_fine(graph, images):
    node, people, latency = start(graph, images, every_frame=True)
    faults = [{"encoding": "martian8"}, {"data": b"\0" * 100}, {"width": 0, "height": 0, "step": 0}, {"step": 1}]
    for fault in faults:
        images.send(**fault)
    images.send()
    wait_for(lambda: len(people) == len(latency) == 5, "the answers")
    results, costs = check_answers(images, people, latency)
    assert [len(results[stamp][0].people) for stamp in images.stamps] == [0, 0, 0, 0, 1]
    errors = [costs[stamp][0].error for stamp in images.stamps]
    for cause, error in zip(("martian8", "truncated", "empty", "step", ""), errors):
        assert cause in error
        assert bool(cause) == bool(error)
    wait_for(lambda: graph.values(node).get("bad frames") == "4", "the count on /diagnostics")


def test_depth_gives_a_position_and_depth_without_a_value_gives_none(graph, images):
    import numpy as np
    import rospy
    from sensor_msgs.msg import CameraInfo, Image
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import Person

    node, people, _ = start(graph, images, every_frame=True, depth=True)
    info = graph.publisher("camera/camera_info", CameraInfo, latch=True)
    depth = graph.publisher("camera/depth/image_raw", Image)
    info.publish(CameraInfo(width=128, height=96, K=[100, 0, 64, 0, 100, 48, 0, 0, 1], distortion_model="plumb_bob"))
    wait_for_readers(depth, info)

    def step(values, **changes):
        # the depth image is sent first, with the stamp that the image will have
        stamp = rospy.Time(1_700_000_000, 123_456_789 + 5_000_003 * len(images.stamps))
        pixels = np.broadcast_to(np.float32(values), (96, 128)).astype("<f4")
        message = Image(Header(stamp=stamp), 96, 128, "32FC1", 0, 128 * 4, pixels.tobytes())
        for field, value in changes.items():
            setattr(message, field, value)
        depth.publish(message)
        time.sleep(0.3)
        count = len(people)
        images.send()
        return wait_for(lambda: len(people) > count and people.messages[-1], "the answer").people[0]

    def in_time():
        """On a busy machine a depth image may come after its image."""

        def placed():
            person = step(3.0)
            return person if person.position_source == Person.DEPTH else None

        return wait_for(placed, "a position from a depth image")

    located = in_time()
    assert located.position_frame == "camera_optical_frame"
    assert located.position.z == pytest.approx(3.0, abs=0.05)
    assert step(np.nan).position_source == Person.UNKNOWN
    assert step(3.0, data=b"short").position_source == Person.UNKNOWN
    in_time()
    assert int(wait_for(lambda: graph.values(node).get("bad depth images"), "the count on /diagnostics")) == 1


def test_absent_images_are_reported_with_the_topics_that_have_some(graph, monkeypatch):
    """A misspelt image_topic: nothing arrives, and within seconds the log and /diagnostics say where images are."""
    import rospy
    from sensor_msgs.msg import Image

    from edge_offload.nodes.common.health import Health
    from edge_offload.nodes.inference import intake
    from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue

    class Listener:
        health, params = Health(), {}

        def callback(self, function):
            return function

    warnings = []
    monkeypatch.setattr(rospy, "logwarn", warnings.append)
    monkeypatch.setattr(intake, "SILENCE_S", 0.0)
    graph.publisher("front/image_raw", Image)
    images = intake.ImageIntake(Listener(), f"{graph.ns}/frnt", "auto", LatestFrameQueue().offer_frame, queue_all=False)
    for _ in range(2):
        images.refresh()
    images.close()
    (line,) = warnings
    assert f"no image on {graph.ns}/frnt" in line
    assert f"{graph.ns}/front/image_raw" in line
    assert line.split(" yet")[0] in Listener.health.make_report().message


def test_compressed_images_are_detected_automatically(graph):
    import cv2
    import numpy as np
    import rospy
    from sensor_msgs.msg import CompressedImage
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import PersonArray

    people = graph.listen("kapao/people", PersonArray)
    graph.node("kapao_node", model="tiny_people:make", threads=1)
    publisher = graph.publisher("camera/image_raw/compressed", CompressedImage)
    wait_for_readers(publisher)
    pixels = np.zeros((96, 128, 3), dtype=np.uint8)
    pixels[30:50, 50:70] = 255
    _, coded = cv2.imencode(".jpg", pixels)
    publisher.publish(CompressedImage(Header(stamp=rospy.Time(7, 8)), "jpeg", coded.tobytes()))
    wait_for(lambda: len(people) == 1, "the answer")
    assert people.messages[0].header.stamp == rospy.Time(7, 8)
    assert len(people.messages[0].people) == 1


@pytest.mark.slow
def test_the_server_is_killed_in_mid_run_and_results_go_on(graph, images):
    """Also: absent at the start, and back later."""
    from edge_offload_msgs.msg import Latency, OffloadMode, PersonArray, ServerStatus

    address = f"tcp://127.0.0.1:{free_port()}"
    reported = graph.listen("server/kapao/people", PersonArray)
    reported_cost = graph.listen("server/offload/latency", Latency)
    status = graph.listen("server/status", ServerStatus)
    node, people, latency = start(graph, images, mode="server", server=address, world_frame="none")

    def run_until(condition, what):
        def step():
            images.send()
            wait_for(lambda: len(latency) == len(people) == len(images.stamps), "an answer")
            time.sleep(0.02)
            return condition(latency.messages[-1])

        return wait_for(step, what, 60)

    def start_server():
        return graph.node(
            "offload_server_node", bind=address, allow=["tiny_people:make"], threads=1, keys=str(graph.keys)
        )

    run_until(lambda cost: cost.mode == "local" and "no server" in cost.fallback_reason, "a local answer")
    wait_for(lambda: graph.complains(node, "no server"), "the word that there is no server")

    server = start_server()
    remote = run_until(lambda cost: cost.mode == "server", "the first answer of the server")
    cost = latency.messages[-1]
    assert remote
    assert (cost.mode_code, cost.fallback_reason, cost.round_trips, cost.connected) == (OffloadMode.SERVER, "", 1, True)
    assert cost.bytes_up > 100, "a mostly black image may be compressed"
    assert cost.bytes_down > 0
    assert cost.compute_server.to_sec() > 0
    # the first of them may be there before whoever listens on the server's side is connected
    run_until(lambda _: not set(images.stamps).isdisjoint(reported.by_stamp()), "a result on the server's side")
    wait_for(lambda: status.messages and status.messages[-1].inferences > 0, "the server's status")
    assert status.messages[-1].robots == 1
    run_until(lambda _: graph.has_status(node, 0), "a green light")

    server.signal(signal.SIGKILL)
    run_until(lambda cost: cost.mode == "local" and cost.fallback_reason, "a local answer after the kill")
    wait_for(lambda: graph.complains(node, "no server"), "the word of it after the kill")

    start_server()
    run_until(lambda cost: cost.mode == "server", "the server's return")

    mode = graph.publisher("offload/mode", OffloadMode, latch=True)
    mode.publish(OffloadMode(mode="local", code=OffloadMode.LOCAL, reason="test"))
    run_until(lambda cost: cost.mode == "local" and not cost.fallback_reason, "obedience to offload/mode")
    # a result that the robot computed is reported to the server's operator
    wait_for(lambda: images.stamps[-1] in reported_cost.by_stamp(), "the report of a local result")
    assert reported_cost.messages[-1].mode == "local"
    check_answers(images, people, latency)


@pytest.mark.slow
@pytest.mark.parametrize("carry", [False, True])
def test_with_frames_in_flight_none_is_lost_or_overtaken_by_modes_an_outage_and_the_end(graph, images, carry):
    """Images come all the time, twice as many as can be taken; the end comes while some are under way."""
    from edge_offload_msgs.msg import OffloadMode

    options = {"model_options": {"seconds": 0.08}, "carry": carry}
    address = f"tcp://127.0.0.1:{free_port()}"
    server = graph.node(
        "offload_server_node", bind=address, allow=["tiny_people:make"], threads=1, keys=str(graph.keys)
    )
    node, people, latency = start(graph, images, mode="server", server=address, server_wait=60.0, **options)

    def run_until(condition, what):
        def step():
            images.send()
            time.sleep(0.04)
            recent = latency.messages[-8:]
            return len(recent) == 8 and all(map(condition, recent))

        return wait_for(step, what, 90)

    run_until(lambda cost: cost.mode == "server", "results of the server")
    mode = graph.publisher("offload/mode", OffloadMode, latch=True)
    mode.publish(OffloadMode(mode="local", code=OffloadMode.LOCAL, reason="test"))
    run_until(lambda cost: cost.mode == "local" and not cost.fallback_reason, "obedience to offload/mode")
    mode.publish(OffloadMode(mode="server", code=OffloadMode.SERVER, reason="test"))
    run_until(lambda cost: cost.mode == "server", "results of the server again")
    assert "up to 2 frames" in graph.values(node)["in flight"]
    server.signal(signal.SIGKILL)
    run_until(lambda cost: cost.mode == "local" and cost.fallback_reason, "local answers after the kill")
    sent = len(images.stamps)
    wait_for(lambda: int(graph.values(node).get("frames offered", 0)) >= sent, "the arrival of all images")
    node.signal(signal.SIGINT)
    assert node.wait() == 0, node.output
    figures = graph.values(node)
    if carry:
        wait_for(lambda: len(people) == int(figures["frames taken"]), "a result for every image taken up")
        wait_for(lambda: len(latency) == int(figures["inferences"]), "a latency for every inference")
        assert {len(messages) for messages in people.by_stamp().values()} == {1}
        assert set(latency.by_stamp()) < set(people.by_stamp()) <= set(images.stamps)
    else:
        wait_for(lambda: len(people) == len(latency) > 0, "an even number of answers")
        results, _ = check_answers(images, people, latency)
        assert len(results) == int(figures["frames taken"]) == int(figures["results"])
    for listener in (people, latency):
        stamps = [message.header.stamp.to_nsec() for message in listener.messages]
        assert stamps == sorted(stamps)


@pytest.mark.slow
def test_a_server_on_a_used_port_fails_to_start_with_a_message(graph):
    from edge_offload_msgs.msg import ServerStatus

    address = f"tcp://127.0.0.1:{free_port()}"
    status = graph.listen("server/status", ServerStatus)
    graph.node("offload_server_node", "first", bind=address, keys=str(graph.keys))
    wait_for(lambda: len(status) > 0, "the first server", 90)
    second = graph.node("offload_server_node", "second", bind=address, keys=str(graph.keys))
    assert second.wait(120) == 1
    assert address.rsplit(":", 1)[1] in second.output
    statuses = graph.statuses(second)
    assert any(status.level == 2 and "cannot start" in status.message for status in statuses)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"mode": "replay", "server": "tcp://127.0.0.1:9"}, "mode replay cannot run here: it needs the virtual CUDA"),
        ({"mode": "split"}, "mode split cannot run here: it needs a server; start with server:=host:port"),
        ({"candidates": ["local", "lazy"]}, "mode lazy is a candidate and cannot run here: it needs a server; start"),
    ],
)
def test_a_mode_that_cannot_run_ends_the_start_with_the_argument_that_would_allow_it(graph, options, cause):
    node = graph.node("kapao_node", model="tiny_people:make", keys=str(graph.keys), **options)
    assert node.wait(120) == 1
    assert cause in node.output
    assert "Traceback" not in node.output


def test_unavailable_modes_are_reported_to_the_manager(graph, images):
    from edge_offload_msgs.msg import Forecast

    forecasts = graph.listen("offload/forecast", Forecast)
    start(graph, images, server=f"tcp://127.0.0.1:{free_port()}")
    images.send()
    forecast = wait_for(lambda: forecasts.messages[-1] if len(forecasts) else None, "a forecast")
    assert sorted(forecast.absent) == ["cached", "lazy", "per_op", "replay"]
    assert all("virtual_device:=true" in remedy for remedy in forecast.remedy)


def test_a_model_that_does_not_exist_ends_the_node_with_its_name(graph):
    node = graph.node("kapao_node", model="kapoa_s")
    assert node.wait(120) == 1
    assert "kapoa_s" in node.output


def test_a_turn_to_see_how_the_server_is_is_taken_where_a_policy_chose_the_robot(graph, images):
    import rospy
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import OffloadMode, Turn

    taken = graph.listen("offload/turn_taken", Turn)
    node, people, _ = start(graph, images, turns=True, mode="local", model_options={"seconds": 0.05})
    given = graph.publisher("offload/turn", Turn)
    modes = graph.publisher("offload/mode/people", OffloadMode)
    wait_for_readers(given, modes)

    def turn(number):
        header = Header(stamp=rospy.Time.now())
        name = f"/{node.name}"
        given.publish(Turn(header=header, number=number, task="people", node=name, state=Turn.GIVEN, at_once=1,
                           nodes=[name], latency=[rospy.Duration(1)]))  # fmt: skip
        time.sleep(0.2)
        for _ in range(3):
            images.send()
            time.sleep(0.1)

    modes.publish(OffloadMode(mode="local", policy="fixed"))
    turn(1)
    assert not taken.messages, "a mode that is held needs no looking"
    modes.publish(OffloadMode(mode="local", policy="latency"))
    turn(2)
    wait_for(lambda: len(people) == len(images.stamps), "a result for every image")
    wait_for(lambda: len(taken) >= 2, "a frame that takes the turn")
    states = [(message.number, message.state) for message in taken.messages]
    assert states == [(2, Turn.TAKEN), (2, Turn.ENDED)], "one frame, and no more"
