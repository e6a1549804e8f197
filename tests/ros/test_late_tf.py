"""tf that comes late, as a localisation's does: people have positions all the same; when it stops, that is said."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.ros.ros_rig import wait_for, wait_for_readers
from tests.ros.test_people_node import start

LATE_S, PERIOD_S = 0.06, 0.2


class Localisation:
    """Says where the camera is, 20 times a second and late, until it is stopped."""

    def __init__(self, world: str, camera: str) -> None:
        import tf2_ros

        self._names, self._broadcaster, self._stop = (world, camera), tf2_ros.TransformBroadcaster(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for_readers(self._broadcaster.pub_tf)

    def _run(self) -> None:
        import rospy
        from geometry_msgs.msg import Quaternion, TransformStamped
        from scipy.spatial.transform import Rotation

        down = Rotation.from_euler("y", 30, degrees=True) * Rotation.from_matrix([[0, 0, 1], [-1, 0, 0], [0, -1, 0]])
        while not self._stop.wait(0.05):
            message = TransformStamped(child_frame_id=self._names[1])
            message.header.frame_id = self._names[0]
            message.header.stamp = rospy.Time.now() - rospy.Duration(LATE_S)
            message.transform.translation.z = 2.0
            message.transform.rotation = Quaternion(*down.as_quat())
            self._broadcaster.sendTransform(message)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10.0)


@pytest.mark.parametrize("carry", [False, True])
def test_people_have_positions_with_late_tf_and_its_end_is_reported(graph, images, carry):
    import rospy
    from sensor_msgs.msg import CameraInfo
    from std_msgs.msg import Header

    world, camera = f"world_{carry}", f"cam_{carry}"
    # a leading slash is dropped, as tf did
    node, people, _ = start(graph, images, carry=carry, world_frame=f"/{world}", model_options={"seconds": 0.01})
    info = graph.publisher("camera/camera_info", CameraInfo, latch=True)
    info.publish(CameraInfo(width=128, height=96, K=[100, 0, 64, 0, 100, 48, 0, 0, 1], distortion_model="plumb_bob"))
    wait_for_readers(info)
    localisation = Localisation(world, camera)

    def send(count):
        for _ in range(count):
            images.send(header=Header(stamp=rospy.Time.now(), frame_id=f"/{camera}"))
            time.sleep(PERIOD_S)

    send(4)
    wait_for(lambda: people.messages and people.messages[-1].people, "somebody who is found")
    before = len(people)
    send(10)
    seen = [message.people[0] for message in people.messages[before:] if message.people]
    placed = [person for person in seen if person.position_frame == world]
    # on a busy machine one may be lost
    assert len(placed) >= len(seen) - 1 > 5
    assert np.allclose([person.position.z for person in placed], 0.0, atol=1e-6)
    localisation.stop()
    send(8)
    wait_for(lambda: graph.has_status(node, 1, f"results without a position in '{world}'"), "the word of it")
    status = graph.statuses(node)[-1].message
    assert "late by" in status or "is its publisher running" in status
