"""A ROS graph for tests, with a master of its own."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.ros.ros_rig import Graph, free_port, numbers, wait_for, wait_for_readers


def pytest_collection_modifyitems(items):
    for item in items:
        if "master" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ros)


@pytest.fixture(scope="session")
def master(tmp_path_factory):
    """A master on a free port, and this process as a node of it."""
    try:
        import rospy

        from edge_offload_msgs.msg import PersonArray  # noqa: F401
    except ImportError:
        pytest.skip("no ROS environment (source devel/setup.bash)")
    port = free_port()
    home = tmp_path_factory.mktemp("ros")
    os.environ.update(ROS_MASTER_URI=f"http://localhost:{port}", ROS_HOME=str(home), ROS_LOG_DIR=str(home))
    core = subprocess.Popen(["rosmaster", "--core", "-p", str(port)], stdout=subprocess.DEVNULL)
    try:
        import rosgraph

        wait_for(rosgraph.is_master_online, "the master's start")
        rospy.init_node("tests", anonymous=True, disable_signals=True)
        yield
        rospy.signal_shutdown("tests are done")
    finally:
        core.terminate()
        core.wait(60)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "call":
        item.stash[FAILED] = report.failed


@pytest.fixture
def graph(request, master, tmp_path):
    graph = Graph(f"/test{next(numbers)}", tmp_path / "keys")
    yield graph
    if request.node.stash.get(FAILED, False):
        graph.print_processes()
    graph.close()


@pytest.fixture
def images(graph):
    """Publishes images with given stamps and a bright spot, on camera/image_raw."""
    import rospy
    from sensor_msgs.msg import Image
    from std_msgs.msg import Header

    class Camera:
        def __init__(self) -> None:
            self.publisher = graph.publisher("camera/image_raw", Image)
            self.stamps = []

        def send(self, x: int = 60, y: int = 40, **changes):
            """Publish one image; ``changes`` spoil fields of the message. Returns its stamp in ns."""
            import numpy as np

            pixels = np.zeros((96, 128, 3), dtype=np.uint8)
            pixels[y - 8 : y + 8, x - 8 : x + 8] = 255
            # whole nanoseconds: a stamp that is mangled on its way through a float is found out
            stamp = rospy.Time(1_700_000_000, 123_456_789 + 5_000_003 * len(self.stamps))
            header = Header(stamp=stamp, frame_id="camera_optical_frame")
            message = Image(header, 96, 128, "bgr8", 0, 128 * 3, pixels.tobytes())
            for field, value in changes.items():
                setattr(message, field, value)
            self.publisher.publish(message)
            self.stamps.append(stamp.to_nsec())
            return stamp.to_nsec()

        def wait(self, timeout_s: float = 90.0) -> None:
            wait_for_readers(self.publisher, timeout_s=timeout_s)

    return Camera()
