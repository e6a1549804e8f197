"""A node that was promised a bound on accuracy: it follows the server's turns, and goes on when that is killed."""

from __future__ import annotations

import dataclasses
import signal
import time

import pytest

from tests.ros.ros_rig import free_port, wait_for
from tests.ros.test_people_node import start


def test_a_promise_is_made_followed_and_outlived(graph, images):
    from edge_offload_msgs.msg import ServerStatus

    address = f"tcp://127.0.0.1:{free_port()}"
    status = graph.listen("server/status", ServerStatus)
    server = graph.node(
        "offload_server_node", bind=address, allow=["tiny_people:make"], threads=1, keys=str(graph.keys), promises=True
    )
    options = {"carry": True, "accuracy": 0.3, "model_options": {"seconds": 0.01}}
    node, people, latency = start(graph, images, mode="server", server=address, server_wait=60.0, **options)

    def run_until(condition, what):
        def step():
            images.send(x=40 + len(images.stamps) % 30)
            time.sleep(0.05)
            return condition()

        return wait_for(step, what, 90)

    run_until(lambda: graph.values(node).get("promise", "").startswith("promised: at most 0.3"), "a promise")
    run_until(lambda: status.messages[-1].promises and status.messages[-1].promises[0].turns > 5, "turns at the server")
    promise = status.messages[-1].promises[0]
    assert (promise.model, round(promise.bound, 3)) == ("tiny_people:make", 0.3)
    assert status.messages[-1].batches > 0
    server.signal(signal.SIGKILL)
    run_until(lambda: "on its own" in graph.values(node).get("promise", ""), "the word that it is on its own")
    before = len(latency)
    run_until(lambda: len(latency) > before + 3, "inferences without a server")
    sent = len(images.stamps)
    wait_for(lambda: int(graph.values(node).get("frames offered", 0)) == sent, "the arrival of all images")
    taken = int(graph.values(node)["frames taken"])
    wait_for(lambda: len(people) == taken, "one result for every image taken up")


def test_a_server_reports_which_claims_of_a_robot_it_doubts():
    pytest.importorskip("rospy")
    from edge_offload.nodes.server.offload_server_node import promise_message
    from edge_offload.server.status import PromiseStatus

    status = PromiseStatus(
        "patrol", "movenet", 0.05, 0.03125, 2.5, 1.5, 0.125, 11, "says it loses 1.5: 0.05 is believed"
    )
    message = promise_message(status)
    assert [getattr(message, name) for name in message.__slots__] == list(dataclasses.astuple(status))
    assert message.note == "says it loses 1.5: 0.05 is believed"


def test_accuracy_without_carry_is_refused_with_a_message(graph):
    node = graph.node("kapao_node", model="tiny_people:make", threads=1, keys=str(graph.keys), accuracy=0.1)
    assert node.wait(120) == 1
    assert "carry:=true" in node.output
