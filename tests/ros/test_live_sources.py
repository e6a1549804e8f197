"""Frames of a connection: the newest is taken, a backlog dropped and counted, silence noticed; no password is shown."""

from __future__ import annotations

import queue
import re
import socket
import threading
import time

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.nodes.camera import addresses, stream
from edge_offload.nodes.camera.frames import SourceLost
from edge_offload.nodes.camera.live import Backlog, Feed, LiveSource, StreamReader


class Script(Feed):
    """Gives what a test puts in: numbers are frames, None is the end, an exception is raised."""

    def __init__(self, live=True):
        self.live, self.items, self.closed = live, queue.Queue(), threading.Event()
        self._given = False

    def read(self, closed):
        if self._given:
            # whoever reads on has done with the frame before
            self.items.task_done()
        while not closed.is_set():
            try:
                item = self.items.get(timeout=0.01)
            except queue.Empty:
                continue
            self._given = True
            if isinstance(item, BaseException):
                raise item
            return None if item is None else np.full((1, 1, 3), item, np.uint8)
        return None

    def close(self):
        self.closed.set()


class Scripted(LiveSource):
    def __init__(self, *feeds, **waits):
        super().__init__("camera", **{"connect_s": 20.0, "read_s": 20.0, **waits})
        self.feeds = list(feeds)

    def connect(self):
        feed = self.feeds.pop(0)
        if isinstance(feed, BaseException):
            raise feed
        return feed


def arrivals(backlog, *instants):
    """Which of the frames that arrive at these instants are taken, if whoever takes them is always ready."""
    taken = []
    for number, instant in enumerate(instants):
        backlog.note_arrival(instant)
        following = instants[number + 1] if number + 1 < len(instants) else float("inf")
        if instant + backlog.wait_s(instant) < following:
            taken.append(number)
    return taken


def test_what_waited_in_buffers_is_not_taken_for_new():
    """As FFmpeg hands over what it read while it looked what the stream is, and a network what it held up."""
    at_start = [0.001 * n for n in range(20)]
    steady = [0.02 + 0.05 * n for n in range(1, 21)]
    delayed = [2.0 + 0.001 * n for n in range(15)]
    later = [2.05 + 0.05 * n for n in range(1, 5)]
    taken = arrivals(Backlog(20.0), *at_start, *steady, *delayed, *later)
    assert taken == [19, *range(20, 40), 54, *range(55, 59)]


@given(st.sampled_from([5.0, 10.0, 25.0, 60.0]), st.sampled_from([0.0, 10.0, 25.0, 90.0]), st.randoms())
def test_no_frame_of_a_steady_stream_is_delayed_for_long_at_any_claimed_rate(rate, claimed, random):
    """After its first second: its real pace is what counts, with a tenth of jitter."""
    instants = [(n + 0.1 * random.random()) / rate for n in range(int(2.5 * rate))]
    taken = arrivals(Backlog(claimed), *instants)
    assert [n for n, instant in enumerate(instants) if instant > 1.5] == [n for n in taken if instants[n] > 1.5]


def test_the_newest_frame_is_taken_and_those_before_it_are_counted():
    feed = Script()
    reception = StreamReader(lambda: feed)
    for number in range(1, 9):
        feed.items.put(number)
    feed.items.join()
    frame, _ = reception.take_frame(20.0)
    assert (frame[0, 0, 0], reception.dropped) == (8, 7)
    reception.close(20.0)
    assert feed.closed.is_set(), "the thread that reads a connection closes it"


def test_frames_of_a_file_wait_until_they_are_read_and_its_end_is_no_loss():
    source = Scripted(Script(live=False), Script(live=False))
    for feed in source.feeds:
        for item in (1, 2, 3, None):
            feed.items.put(item)
    for _ in range(2):
        assert [int(source.read()[0, 0, 0]) for _ in range(3)] == [1, 2, 3]
        assert source.read() is None
        if source.feeds:
            source.rewind()
    assert (source.live, source.dropped) == (False, 0)
    source.close()


def test_silent_and_refused_connections_are_lost_with_the_cause_and_reconnected():
    first, second, third = Script(), Script(), Script()
    source = Scripted(first, SourceLost("connection refused"), second, third, connect_s=0.1, read_s=0.05)
    first.items.put(1)
    assert source.read() is not None
    with pytest.raises(SourceLost, match=r"^camera: no frame for 0\.05 s"):
        source.read()
    with pytest.raises(SourceLost, match=r"^camera: connection refused"):
        source.rewind()
    with pytest.raises(SourceLost, match=r"^camera: no frame for 0\.1 s"):
        source.rewind()
    third.items.put(3)
    source.rewind()
    assert int(source.read()[0, 0, 0]) == 3
    third.items.put(OSError("rtsp://admin:geheim@10.0.0.9/x broke"))
    with pytest.raises(SourceLost, match="OSError") as lost:
        source.read()
    assert "geheim" not in str(lost.value)
    source.close()
    assert all(feed.closed.is_set() for feed in (first, second, third))


def test_a_wait_for_frames_ends_when_the_node_stops():
    source = Scripted(Script())
    ended = []

    def wait():
        with pytest.raises(SourceLost):
            source.read()
        ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while source._reception is None:
        threading.Event().wait(0.01)
    source.interrupt()
    waiting.join(10.0)
    assert ended


def test_a_stream_is_read_at_most_at_the_requested_rate():
    feed = Script()
    source = Scripted(feed)
    source._period_s = 0.1
    taken = []
    for number in (1, 2):
        feed.items.put(number)
        source.read()
        taken.append(time.monotonic())
    assert taken[1] - taken[0] >= 0.1
    source.close()


class Slow:
    """Stands for OpenCV's capture of a stream at 10 Hz, of which a frame arrives ``on_the_way(n)`` s after its time."""

    def __init__(self, monkeypatch, on_the_way):
        self.number, self.on_the_way = 0, on_the_way
        monkeypatch.setattr(stream.time, "monotonic", lambda: 1000.0 + 0.1 * self.number + on_the_way(self.number))

    def read(self):
        self.number += 1
        return True, np.zeros((1, 1, 3), np.uint8)

    def get(self, what):
        return {cv2.CAP_PROP_POS_MSEC: 900.0 + 100.0 * self.number, cv2.CAP_PROP_FPS: 10.0}.get(what, -9e15)


def frames_before_it_is_late(capture, most):
    feed = stream.StreamCapture(capture, "10.0.0.9")
    for number in range(most):
        try:
            feed.read(threading.Event())
        except SourceLost as error:
            return number, str(error)
    return most, ""


def test_a_stream_faster_than_its_reader_is_reported_and_reconnected(monkeypatch):
    """Read at 9 Hz: after 100 frames the next one is more than a second old, though it has just arrived."""
    number, message = frames_before_it_is_late(Slow(monkeypatch, lambda n: n * (1 / 9 - 0.1)), 400)
    assert 90 < number < 130
    assert re.search(r"frames come 1\.\d s late, .*; ask the camera for a smaller picture", message)


def test_neither_a_network_that_delays_frames_nor_a_drifting_clock_counts_as_that(monkeypatch):
    delayed = Slow(monkeypatch, lambda n: max(0.0, 3.0 - 0.095 * (n - 50)) if n >= 50 else 0.01)
    assert frames_before_it_is_late(delayed, 200) == (200, "")
    drifting = Slow(monkeypatch, lambda n: 2.0 + n * 1e-4)
    assert frames_before_it_is_late(drifting, 30000) == (30000, ""), "three seconds in an hour"


SECRETS = [
    "rtsp://admin:geheim@192.168.1.64:554/Streaming/Channels/101",
    "rtsp://admin:ge/h:eim@geheim@192.168.1.64/x",
    "http://192.168.1.64/video.cgi?user=admin&pwd=geheim",
    "http://192.168.1.64/mjpg?token=geheim#x",
    "rtsp://192.168.1.64:554/user=admin_password=geheim_channel=1_stream=0.sdp",
    "rtspsrc location=rtsp://192.168.1.64/x user-id=admin user-pw=geheim ! decodebin",
    'souphttpsrc location="http://admin:geheim@192.168.1.64/x" ! jpegdec',
    'souphttpsrc user-pw="geheim und mehr" location=http://192.168.1.64/x ! jpegdec',
    "rtspsrc location=rtsp://a:geheim@192.168.1.64/x?k=geheim ! decodebin ! videoconvert",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_is_shown_of_an_address_has_its_host_and_no_password(text):
    shown = addresses.hide_secrets(text)
    assert "geheim" not in shown
    assert "admin" not in shown
    assert "192.168.1.64" in shown


@given(st.text("abcXYZ019:/@?#!$%&;=+._~-", min_size=1), st.text("abcXYZ019:/@?#!$%&;=+._~-"))
def test_no_password_whatever_is_shown(user, password):
    shown = addresses.hide_secrets(f"no frame of rtsp://u{user}:SECRET{password}@10.0.0.9/path for 5 s")
    assert "SECRET" not in shown


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"RTSP/1.0 401 Unauthorized\r\n\r\n", "401 Unauthorized: check user and password"),
        (b"RTSP/1.0 404 Not Found\r\nCSeq: 1\r\n\r\n", "404 Not Found"),
        (b"SSH-2.0-OpenSSH\r\n", "no server of streams"),
        (b"", "no server of streams"),
        (None, "does not answer"),
    ],
)
def test_the_cause_of_a_failure_is_requested_from_the_server_without_a_password(monkeypatch, answer, message):
    monkeypatch.setattr(addresses, "PROBE_S", 0.1 if answer is None else 20.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        requests = []

        def serve():
            peer, _ = server.accept()
            with peer:
                requests.append(peer.recv(1000))
                if answer is not None:
                    peer.sendall(answer)
                else:
                    peer.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        port = server.getsockname()[1]
        assert message in addresses.probe_url(f"rtsp://admin:geheim@127.0.0.1:{port}/cam")
    assert f"rtsp://127.0.0.1:{port}/cam".encode() in requests[0]
    assert b"geheim" not in requests[0]
    assert addresses.probe_url(f"rtsp://127.0.0.1:{port}/cam") == f"127.0.0.1:{port}: connection refused"


def test_user_and_password_of_a_host_are_read_from_netrc(tmp_path, monkeypatch):
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    assert addresses.with_login("rtsp://10.0.0.9/x") == "rtsp://10.0.0.9/x", "no such file"
    file.write_text("machine 10.0.0.9 login admin password ge@heim\ndefault login x password y\n")
    assert addresses.with_login("rtsp://10.0.0.9:8554/x") == "rtsp://admin:ge%40heim@10.0.0.9:8554/x"
    assert addresses.with_login("rtsp://eve:z@10.0.0.9/x") == "rtsp://eve:z@10.0.0.9/x"
    assert addresses.with_login("rtsp://10.0.0.10/x") == "rtsp://10.0.0.10/x", "a default is for no camera"
    file.write_text("machine 10.0.0.9 geheim\n")
    with pytest.raises(BadInput, match=r"line \d") as refused:
        addresses.with_login("rtsp://10.0.0.9/x")
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("address", ["rtsp://", "rtsp://:554/x", "http://10.0.0.9:port/", "rtsp://[10.0.0.9/x"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(BadInput, match="is no address"):
        addresses.with_login(address)
