"""The page in a real browser: what a person sees while the run goes on, stops, lags, or has not begun."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import urllib.parse

import cv2
import numpy as np
import pytest

from edge_offload.dashboard.access import Access
from edge_offload.dashboard.history import CAPACITY, History
from edge_offload.dashboard.server import MAX_VIEWERS, DashboardServer
from tests.dashboard import made_up

pytestmark = pytest.mark.process

ORANGE, GREEN = "#e69f00", "#009e73"


def fill(history, source, seconds: float = 60.0):
    for record in made_up.run(seconds):
        history.put(record)
    source.now_s = made_up.BEGIN_S + seconds


def jpeg(blue: int, size=(320, 240)) -> bytes:
    picture = np.full((size[1], size[0], 3), (blue, 0, 0), dtype=np.uint8)
    return cv2.imencode(".jpg", picture)[1].tobytes()


def test_a_person_sees_figures_plots_modes_and_why(browser, history, source, serve):
    fill(history, source)
    tab = browser.tab(serve().url)
    tab.until("document.querySelectorAll('#events li').length > 8")
    assert tab.text("#tile-mode .big") == "server"
    assert "the link carries 11.0 MB/s again" in tab.text("#tile-mode .small")
    assert "server 67 %, local 33 %" in tab.text("#tile-mode .small")
    assert tab.text("#tile-faults .big") == "160 of 480"
    assert tab.text("#tile-latency .big").endswith(" ms")
    assert "1 robot" in tab.text("#tile-server .small")
    assert "3 people" in tab.text("#camera-caption")
    events = tab.text("#events")
    for text in ("the server has not answered for 1.0 s", "160 frames fell back in", "does not answer"):
        assert text in events
    # the robot's computing is drawn in orange, the server's in green, and so are their modes
    for color in (ORANGE, GREEN):
        assert tab.inked("#chart-latency canvas", color) > 500
        assert tab.inked("#ribbon canvas", color) > 500
    assert tab.inked("#chart-bandwidth canvas", "#56b4e9") > 50
    # everything came from this machine, and nothing was blocked or failed
    assert all(url.startswith((tab.value("location.origin"), "blob:", "data:")) for url in tab.requested)
    assert tab.complaints == []
    tab.close()


def test_carried_results_are_counted_alongside_inferences(browser, history, source, serve):
    for number in range(50):
        t_s = made_up.BEGIN_S + 50 + number / 10
        put = made_up.people if number % 2 else made_up.scene
        history.put(put(t_s, "carried" if number % 5 else "fresh"))
        if not number % 5:
            history.put(made_up.latency(t_s))
    source.now_s = made_up.BEGIN_S + 55
    tab = browser.tab(serve().url)
    tab.until("document.querySelector('#tile-latency .small').textContent.includes('inferences/s')")
    assert "2.0 inferences/s, 10 results/s" in tab.text("#tile-latency .small")
    assert tab.inked("#ribbon canvas", "#56b4e9") > 200
    assert tab.complaints == []
    tab.close()


def test_before_the_first_record_the_page_names_what_it_waits_for(browser, source, serve):
    source.state, source.text = "waiting", "no frame yet: nothing came on /offload/latency"
    source.now_s = time.time()
    tab = browser.tab(serve().url)
    tab.until("document.querySelector('#connection').textContent === 'waiting'")
    assert "nothing came on /offload/latency" in tab.text("#notice")
    assert tab.text("#chart-latency .empty") == "waiting for /offload/latency"
    assert tab.text("#camera-empty") == "waiting for /kapao/overlay/compressed"
    assert tab.text("#tile-server .small") == "waiting for /server/status"
    assert tab.complaints == []
    tab.close()


def test_the_newest_picture_is_shown_and_fetched_only_for_an_open_page(browser, history, source, serve):
    fill(history, source, 5)
    history.set_picture(jpeg(0), 1.0)
    tab = browser.tab(serve().url)
    tab.until("!document.querySelector('#camera').hidden && document.querySelector('#camera').naturalWidth === 320")
    history.set_picture(jpeg(250, (200, 100)), 2.0)
    tab.until("document.querySelector('#camera').naturalWidth === 200", "the newer picture")
    assert source.viewers[-1] == 1
    tab.close()
    ends = time.monotonic() + 30
    while source.viewers[-1] and time.monotonic() < ends:
        time.sleep(0.05)
    assert source.viewers[-1] == 0


def test_texts_of_nodes_are_never_markup(browser, history, source, serve):
    source.now_s = 10.0
    attack = "<img src=x onerror=window.broken=1><script>window.broken=1</script>"
    source.title = attack
    history.put(made_up.mode(9.0, "server", "auto", attack))
    history.put(made_up.diagnostic(9.0, f"{attack}: health", "error", attack))
    tab = browser.tab(serve().url)
    tab.until("document.querySelectorAll('#events li').length === 2")
    assert attack in tab.text("#events")
    assert tab.text("#title") == attack
    assert "1 of 1 nodes in trouble" in tab.text("#health")
    assert tab.value("window.broken === undefined && document.querySelectorAll('#events img').length === 0")
    tab.close()


def test_the_page_reconnects_after_the_dashboard_restarts(browser, history, source, serve):
    fill(history, source, 10)
    server = serve()
    port = urllib.parse.urlsplit(server.url).port
    tab = browser.tab(server.url)
    tab.until("document.querySelector('#connection').textContent === 'live'")
    server.close()
    tab.until("document.querySelector('#connection').textContent === 'no connection'")
    assert "trying again" in tab.text("#notice")
    other = History()
    other.put(made_up.mode(made_up.BEGIN_S + 1, "local", "auto", "after the restart"))
    restarted = DashboardServer(other, source, port=port).start()
    try:
        tab.until("document.querySelector('#tile-mode .big').textContent === 'local'")
        # nothing of the time before is left: the new dashboard does not know it
        tab.until("document.querySelector('#tile-latency .big').textContent === '–'")
        assert tab.text("#connection") == "live"
    finally:
        restarted.close()
        tab.close()


def test_several_browsers_and_a_full_house(browser, history, source, serve):
    fill(history, source, 10)
    server = serve()
    tabs = [browser.tab(server.url, dark=bool(number)) for number in range(2)]
    for tab in tabs:
        tab.until("document.querySelector('#tile-faults .big').textContent === '27 of 80'")
    others = [Reader(server.url) for _ in range(MAX_VIEWERS - 2)]
    extra = Reader(server.url)
    assert extra.closed_with() == 1013
    for other in others:
        other.close()
    for tab in tabs:
        assert tab.complaints == []
        tab.close()


def test_the_token_is_requested_once(browser, history, source, serve):
    fill(history, source, 5)
    token = "a-token-of-enough-characters"
    tab = browser.tab(serve(access=Access("127.0.0.1", token)).url)
    tab.until("document.querySelector('#token') !== null")
    tab.value("document.querySelector('#token').value = 'wrong-wrong-wrong-wrong'; document.forms[0].submit()")
    tab.until("document.body.textContent.includes('That is not the token.')")
    tab.value(f"document.querySelector('#token').value = '{token}'; document.forms[0].submit()")
    tab.until("document.querySelector('#tile-mode .big').textContent === 'server'")
    assert token not in tab.value("location.href + document.cookie")
    tab.close()


class Reader:
    """A visitor that reads no faster than it is told to."""

    def __init__(self, url: str, buffer: int = 0) -> None:
        where = urllib.parse.urlsplit(url)
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", where.port))
        self.socket.sendall(
            f"GET /stream HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        self._stream = self.socket.makefile("rb")
        assert b" 101 " in self._stream.readline()
        while self._stream.readline().strip():
            pass

    def frame(self):
        """The next WebSocket frame: its opcode and payload."""
        opcode, length = self.head()
        return opcode, self.take(length)

    def take(self, length: int) -> bytes:
        return self._stream.read(length)

    def head(self):
        """Opcode and length of the next frame; its payload is left where it is."""
        first, length = self._stream.read(2)
        if length == 126:
            (length,) = struct.unpack(">H", self._stream.read(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self._stream.read(8))
        return first & 15, length

    def closed_with(self) -> int:
        while True:
            opcode, payload = self.frame()
            if opcode == 8:
                return struct.unpack(">H", payload[:2])[0]

    def close(self) -> None:
        self.socket.close()


def test_a_stalled_visitor_delays_no_other_and_gets_the_newest_picture(history, source, serve):
    source.now_s = 1.0
    server = serve(period_s=0.01)
    slow, quick = Reader(server.url, buffer=4096), Reader(server.url)
    pictures = 60
    size = 400_000
    newest = 0.0
    for number in range(pictures):
        history.set_picture(b"\xff\xd8\xff" + bytes(size), float(number))
        history.put(made_up.power(float(number), 5.0, 0.0))
        # the quick one sees every picture although the slow one reads nothing at all
        while newest < number:
            opcode, payload = quick.frame()
            if opcode == 2:
                newest = struct.unpack(">d", payload[:8])[0]
    # what the slow one gets when it wakes up: few old pictures, then the newest
    seen = []
    while not seen or seen[-1] < pictures - 1:
        opcode, payload = slow.frame()
        if opcode == 2:
            seen.append(struct.unpack(">d", payload[:8])[0])
    assert len(seen) < pictures / 2
    slow.close()
    quick.close()


def test_a_visitor_far_behind_is_notified_of_how_much_it_missed(history, source, serve):
    server = serve(period_s=0.01)
    slow = Reader(server.url, buffer=4096)
    history.set_picture(b"\xff\xd8\xff" + bytes(16_000_000), 0.0)
    opcode, length = slow.head()
    while opcode != 2:
        slow.take(length)
        opcode, length = slow.head()
    # stuck in the middle of the picture, which is larger than all the buffers on the way
    for number in range(3 * CAPACITY["latency"]):
        history.put(made_up.latency(float(number)))
    slow.take(length)
    skipped = records = 0
    while skipped + records < 3 * CAPACITY["latency"]:
        opcode, payload = slow.frame()
        if opcode == 1:
            message = json.loads(payload)
            skipped += message.get("skipped", 0)
            records += len(message.get("records", {}).get("latency", []))
    assert skipped + records == 3 * CAPACITY["latency"]
    assert skipped > 0
    slow.close()


def test_closing_leaves_no_thread_and_no_task(history, source):
    before = threading.active_count()
    server = DashboardServer(history, source, port=0).start()
    reader = Reader(server.url)
    reader.frame()
    server.close()
    reader.close()
    assert threading.active_count() == before
