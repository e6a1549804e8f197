"""Streams of real servers on loopback: a server that is killed, hangs or comes back, and what is said meanwhile."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import threading

import cv2
import numpy as np
import pytest

from edge_offload.nodes.camera.frames import SourceLost
from tests.ros.ros_rig import free_port, wait_for
from tests.ros.stream_servers import Mjpeg, rtsp_lacks, rtsp_server
from tests.ros.test_camera_types import camera_of

SECRET = "geheim-77"
gstreamer = pytest.mark.skipif(
    shutil.which("gst-launch-1.0") is None,
    reason="no GStreamer: apt-get install gstreamer1.0-tools gstreamer1.0-plugins-good",
)


def until_lost(source):
    """What is said of the loss, and the frames before it."""
    frames = []
    try:
        while True:
            frames.append(source.read())
    except SourceLost as error:
        return str(error), frames


@pytest.mark.process
@pytest.mark.parametrize("breaks", [False, True], ids=["hangs", "breaks"])
def test_frames_of_an_http_camera_are_new_complete_and_counted_and_an_end_within_one_is_noticed(breaks):
    from edge_offload.nodes.camera.stream import NetworkStream

    camera = Mjpeg(cut_at=60, breaks=breaks, burst=30)
    source = NetworkStream(f"http://127.0.0.1:{camera.port}/", read_s=1.0)
    seen = []
    try:
        lost, frames = until_lost(source)
        assert re.search("sends no more" if breaks else r"no frame for 1 s|sends no more", lost)
        for frame in frames:
            assert np.ptp(frame.reshape(-1, 3).astype(int), axis=0).max() < 8, "every frame is whole"
            seen.append(round(float(frame.mean())))
        assert seen == sorted(seen)
        assert seen[-1] == 59
        # a pause of this machine within the backlog counts as its end
        assert seen[0] >= 10, "most of a camera's backlog is not played"
        assert len(seen) + source.dropped == 60, "what was not taken is counted"
    finally:
        source.close()
        camera.stop()


@pytest.mark.process
def test_a_file_on_a_server_ends_like_a_file(tmp_path):
    from edge_offload.nodes.camera.stream import NetworkStream

    writer = cv2.VideoWriter(str(tmp_path / "clip.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 20.0, (64, 48))
    for number in range(12):
        writer.write(np.full((48, 64, 3), 20 * number, np.uint8))
    writer.release()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        source = NetworkStream(f"http://127.0.0.1:{server.server_address[1]}/clip.avi")
        for _ in range(2):
            shown = [source.read() for _ in range(13)]
            assert [round(float(frame.mean()) / 20) for frame in shown[:-1]] == list(range(12))
            assert shown[-1] is None, "its end, no loss"
            source.rewind()
        assert (source.live, source.rate, source.dropped) == (False, 20.0, 0), (
            "played in its own rate, no frame left out"
        )
        source.close()
        server.shutdown()


def test_a_camera_node_reports_the_lost_server_reconnects_and_never_prints_a_password(graph):
    from rosgraph_msgs.msg import Log
    from sensor_msgs.msg import Image

    camera = Mjpeg(login=f"admin:{SECRET}")
    port = camera.port
    url = f"http://admin:{SECRET}@127.0.0.1:{port}/video?pwd={SECRET}"
    logs = graph.listen("/rosout", Log)
    images = graph.listen("camera/image_raw", Image)
    node = graph.node("camera_node", video=url, loop=False)
    wait_for(lambda: len(images) > 10, "images")
    wait_for(lambda: graph.has_status(node, 0), "level OK")
    camera.stop()
    wait_for(
        lambda: graph.has_status(node, 1, "connection refused; trying again in 2 s"),
        "the warning with cause and next try",
    )
    lost = len(images)
    camera = Mjpeg(port=port, login=f"admin:{SECRET}")
    wait_for(lambda: len(images) > lost + 5, "images again")
    wait_for(lambda: graph.has_status(node, 0), "level OK again")
    stamps = [message.header.stamp for message in images.messages]
    assert stamps == sorted(set(stamps))
    status = graph.statuses(node)[-1]
    values = {value.key: value.value for value in status.values}
    assert (values["times reconnected"], values["source"]) == ("1", f"http://***@127.0.0.1:{port}/video?***")
    assert node.stop() == 0
    camera.stop()
    texts = (
        [str(status) for status in graph.statuses(node)] + [message.msg for message in logs.messages] + [node.output]
    )
    assert f"127.0.0.1:{port}" in node.output
    assert not [text for text in texts if SECRET in text]


@pytest.mark.parametrize("argument", ["video", "camera"])
def test_no_parameter_of_a_launch_has_a_password(master, argument):
    """They are printed by roslaunch, listed by rosparam and read by anybody."""
    for value in (
        f"rtsp://admin:{SECRET}@127.0.0.1/x",
        f"rtspsrc location=rtsp://127.0.0.1/x user-pw={SECRET} ! decodebin",
    ):
        node, params = camera_of(f"{argument}:={value}")
        assert not [name for name, given in params.items() if SECRET in str(given)]
        assert value in dict(node.env_args).values()


@pytest.mark.process
@pytest.mark.skipif(bool(rtsp_lacks()), reason=rtsp_lacks() or "-")
def test_an_rtsp_camera_that_is_killed_is_a_warning_until_it_is_back(master):
    from edge_offload.nodes.camera import camera_node
    from edge_offload.nodes.camera.stream import NetworkStream
    from edge_offload.nodes.common import params
    from edge_offload.nodes.common.health import OK, WARN, Health

    port = free_port()

    class Camera(camera_node.CameraNode):
        def _open_source(self):
            return NetworkStream(f"rtsp://127.0.0.1:{port}/cam", read_s=1.0)

    health, server = Health(), rtsp_server(port)
    node = Camera(params.read(Camera.declared, {}), health)
    node.start()
    try:
        wait_for(lambda: node._published > 3, "images")
        assert health.make_report().level == OK
        server.kill()
        server.wait(60)
        wait_for(
            lambda: health.make_report().level == WARN and "refused" in health.make_report().message, "the warning"
        )
        assert "trying again in" in health.make_report().message
        before = node._published
        server = rtsp_server(port)
        wait_for(lambda: node._published > before + 3, "images again")
        assert health.make_report().level == OK
        assert health.read_count("times reconnected") == 1
    finally:
        server.kill()
        server.wait(60)
        node.stop()


@pytest.mark.process
@gstreamer
def test_a_pipeline_gives_its_frames_to_the_bit_and_its_end_is_an_end():
    from edge_offload.nodes.camera.pipeline import GstreamerPipeline

    # a width whose rows are padded; red in BGR
    text = ("videotestsrc num-buffers=5 pattern=solid-color foreground-color=0xffc80a05 ! "
            "video/x-raw,format=BGR,width=161,height=120,framerate=15/1 ! appsink drop=true max-buffers=1")  # fmt: skip
    source = GstreamerPipeline(text)
    frames = [source.read() for _ in range(6)]
    assert [frame is None for frame in frames] == [False] * 5 + [True]
    assert frames[0].shape == (120, 161, 3)
    assert {tuple(pixel) for pixel in np.concatenate(frames[:5]).reshape(-1, 3)} == {(0x05, 0x0A, 0xC8)}
    assert (source.live, source.rate) == (False, 15.0)
    source.rewind()
    assert source.read() is not None
    source.close()


@pytest.mark.process
@gstreamer
def test_a_pipeline_whose_camera_is_killed_is_lost_with_the_message_of_gstreamer_and_restarts():
    from edge_offload.errors import BadInput
    from edge_offload.nodes.camera.pipeline import GstreamerPipeline

    camera = Mjpeg()
    text = (
        f"souphttpsrc location=http://admin:{SECRET}@127.0.0.1:{camera.port}/ is-live=true ! multipartdemux ! jpegdec"
    )
    source = GstreamerPipeline(text, read_s=3.0)
    try:
        assert source.read().shape == (120, 160, 3)
        camera.stop()
        lost, _ = until_lost(source)
        with pytest.raises(
            SourceLost, match=rf"souphttpsrc0: .*127\.0\.0\.1:{camera.port}: connection refused"
        ) as refused:
            source.rewind()
        assert SECRET not in lost + str(refused.value)
        camera = Mjpeg(port=camera.port)
        source.rewind()
        assert source.read().shape == (120, 160, 3)
        assert source.live
    finally:
        source.close()
        camera.stop()
    with pytest.raises(BadInput, match='no element "videotestsource"'):
        GstreamerPipeline("videotestsource ! appsink").read()


def test_a_pipeline_without_gstreamer_is_refused_before_anything_starts_with_what_to_install(monkeypatch):
    from edge_offload.nodes import arguments

    monkeypatch.setattr(shutil, "which", lambda _: None)
    (line,) = arguments.list_faults(["video:=videotestsrc ! appsink"])
    assert "apt-get install gstreamer1.0-tools" in line
    (line,) = arguments.list_faults([f"video:=rstp://admin:{SECRET}@10.0.0.9/x"])
    assert "give one like" in line
    assert SECRET not in line
