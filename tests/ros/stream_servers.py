"""Servers of streams on loopback: JPEGs over HTTP in this process, and a real RTSP server as a process of its own."""

from __future__ import annotations

import base64
import contextlib
import http.server
import socket
import socketserver
import subprocess
import sys
import threading
import time

import cv2
import numpy as np

PERIOD_S = 0.05
BOUNDARY = b"frame"


def picture(number: int) -> bytes:
    """A JPEG whose brightness is its number."""
    return cv2.imencode(".jpg", np.full((120, 160, 3), number % 250, np.uint8))[1].tobytes()


class Mjpeg:
    """A camera that sends JPEGs over HTTP.

    Args:
        login: user:password that it asks for; empty: none.
        cut_at: number of the frame whose end does not come, nor anything else.
        breaks: whether the connection ends there.
        burst: number of frames that come at once at the start.
    """

    def __init__(self, port: int = 0, login: str = "", cut_at: int = -1, breaks: bool = False, burst: int = 0) -> None:
        self.login, self.cut_at, self.breaks, self.burst = login, cut_at, breaks, burst
        self.stopped = threading.Event()
        self._peers: list[socket.socket] = []
        camera = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                authorization = "Basic " + base64.b64encode(camera.login.encode()).decode()
                if camera.login and self.headers.get("Authorization") != authorization:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="camera"')
                    self.end_headers()
                    return
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
                self.end_headers()
                camera.send(self.wfile)

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that goes away is none."""

            def get_request(self):
                request, address = super().get_request()
                camera._peers.append(request)
                return request, address

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def send(self, out) -> None:
        number = 0
        while not self.stopped.is_set():
            data = picture(number)
            out.write(b"--%s\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % (BOUNDARY, len(data)))
            if number == self.cut_at:
                out.write(data[:-16])
                out.flush()
                if not self.breaks:
                    self.stopped.wait()
                return
            out.write(data + b"\r\n")
            out.flush()
            number += 1
            if number > self.burst:
                time.sleep(PERIOD_S)

    def stop(self) -> None:
        """As if it were killed: no connection stays open."""
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


RTSP = """
import sys
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
Gst.init(None)
encoder = sys.argv[2]
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(sys.argv[1])
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch("( videotestsrc is-live=true ! video/x-raw,width=160,height=120,framerate=20/1 ! %s )" % encoder)
factory.set_shared(True)
server.get_mount_points().add_factory("/cam", factory)
assert server.attach(None)
print("up", flush=True)
GLib.MainLoop().run()
"""
ENCODERS = (("x264enc", "x264enc tune=zerolatency key-int-max=10 ! rtph264pay name=pay0 pt=96"),
            ("openh264enc", "openh264enc gop-size=10 ! rtph264pay name=pay0 pt=96"),
            ("jpegenc", "jpegenc ! rtpjpegpay name=pay0 pt=26"))  # fmt: skip
PYTHON = "/usr/bin/python3"
"""The distribution's, for which its GStreamer is."""
NEEDS = "gir1.2-gst-rtsp-server-1.0 gstreamer1.0-tools python3-gi"


def rtsp_lacks() -> str:
    """Why there can be no RTSP server here; empty: there can."""
    probe = 'import gi; gi.require_version("GstRtspServer", "1.0"); from gi.repository import GstRtspServer'
    try:
        done = subprocess.run([PYTHON, "-c", probe], capture_output=True, check=False, timeout=60)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 and encoder() else f"no RTSP server of GStreamer: apt-get install {NEEDS}"


def encoder() -> str:
    """The first encoder that is installed."""
    for name, launch in ENCODERS:
        if subprocess.run(["gst-inspect-1.0", "--exists", name], check=False).returncode == 0:
            return launch
    return ""


def rtsp_server(port: int) -> subprocess.Popen:
    """A camera at rtsp://127.0.0.1:PORT/cam; ready when this returns."""
    server = subprocess.Popen([PYTHON, "-c", RTSP, str(port), encoder()], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "up\n", sys.stderr
    return server
