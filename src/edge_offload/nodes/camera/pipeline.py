"""GStreamer pipelines in OpenCV's notation, run by ``gst-launch-1.0`` in a process of its own.

OpenCV from pip has no GStreamer. A process needs no binding for this Python. If it hangs or crashes in a camera's
driver, it is ended and started again. Frames come through a pipe, each after its length. Their size is read from
gst-launch's output.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from typing import List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.nodes.camera.addresses import hide_secrets, probe_url
from edge_offload.nodes.camera.frames import SourceLost
from edge_offload.nodes.camera.live import Feed, LiveSource

LAUNCHER = "gst-launch-1.0"
MUXER = "edge_offload"
"""Name of the element whose input has the frames, by which its size is found among what gst-launch says."""
WAIT_S = 2.0
_CAPS = re.compile(rf"/GstMultipartMux:{MUXER}\.GstPad:sink_\d+: caps = video/x-raw, .*width=\(int\)(\d+), "
                   r"height=\(int\)(\d+)(?:.*framerate=\(fraction\)(\d+)/(\d+))?")  # fmt: skip
_SINK = re.compile(r"\bappsink\b((?:\s+[\w-]+=(?:\"[^\"]*\"|\S+))*)")
_SYNC = re.compile(r"\bsync=(\S+)")
_WRONG = "WARNING: erroneous pipeline: "
#: Not live by GStreamer's word, and yet nothing that waits until it is read.
_REMOTE = re.compile(r"httpsrc|tcp\w*src|(?<!file)://")


class GstreamerPipeline(LiveSource):
    """A pipeline that ends in raw video, or in ``appsink``.

    Raises:
        BadInput: GStreamer is not installed.
    """

    def __init__(self, text: str, rate: float = 0.0, **waits: float) -> None:
        self.check(text)
        name = hide_secrets(text)
        super().__init__(f"pipeline {name if len(name) <= 80 else name[:77] + '...'}", rate, **waits)
        self._text = text

    @classmethod
    def check(cls, value: str) -> None:
        if shutil.which(LAUNCHER) is None:
            raise BadInput(
                f"{LAUNCHER} is not installed",
                remedy="apt-get install gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good",
            )

    def connect(self) -> Feed:
        return _GstreamerProcess(self._text)


def _to_command(text: str, output: int) -> List[str]:
    """gst-launch with ``text`` whose end writes frames to the file descriptor ``output``."""
    sink = _SINK.search(text)
    sync = _SYNC.search(sink.group(1)) if sink else None
    ending = (
        f"videoconvert ! video/x-raw,format=BGR ! multipartmux name={MUXER} ! "
        f"fdsink fd={output} sync={sync.group(1) if sync else 'false'}"
    )
    text = f"{text[: sink.start()]}{ending}{text[sink.end() :]}" if sink else f"{text.rstrip(' !')} ! {ending}"
    # gst-launch puts its arguments together again with one space between them
    return [LAUNCHER, "--verbose", "--no-fault", *text.split()]


class _GstreamerProcess(Feed):
    def __init__(self, text: str) -> None:
        self._text = text
        data, output = os.pipe()
        self._data = os.fdopen(data, "rb", 0)
        try:
            self._process = subprocess.Popen(
                _to_command(text, output), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=(output,), env={**os.environ, "LC_ALL": "C", "GST_DEBUG_NO_COLOR": "1"},
            )  # fmt: skip
        except OSError as error:
            self._data.close()
            raise BadInput(f"cannot start {LAUNCHER}: {error.strerror}") from error
        finally:
            os.close(output)
        self._rest = b""
        self._gst_live = False
        self._size: Optional[Tuple[int, int]] = None
        self._error: List[str] = []
        self._listener = threading.Thread(target=self._collect_errors, name="gst-launch", daemon=True)
        self._listener.start()

    def _collect_errors(self) -> None:
        """Keep what matters of what gst-launch says, until it ends."""
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode("utf-8", "replace").strip()
            caps = _CAPS.search(line)
            if caps:
                self.rate = int(caps[3]) / int(caps[4]) if caps[3] and int(caps[4]) else 0.0
                self._size = int(caps[1]), int(caps[2])
            elif line.startswith("Pipeline is live"):
                self._gst_live = True
            elif self._error or line.startswith(("ERROR: ", _WRONG)):
                self._error.append(line)

    def read(self, closed: threading.Event) -> Optional[Array]:
        head = self._read_header(closed)
        length = re.search(rb"Content-Length: (\d+)", head)
        data = self._read_exactly(int(length[1]) if length else 0, closed)
        if not data:
            if not closed.is_set():
                self._check_end()
            return None
        frame = self._shape_image(data)
        self.live = self._gst_live or _REMOTE.search(self._text) is not None or "sync=true" in self._text
        return frame

    def _read_header(self, closed: threading.Event) -> bytes:
        while b"\r\n\r\n" not in self._rest:
            more = self._wait_readable(closed) and self._data.read(4096)
            if not more:
                return b""
            self._rest += more
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        return head

    def _read_exactly(self, length: int, closed: threading.Event) -> bytearray:
        """Read ``length`` bytes; none where the pipe ended before."""
        data = bytearray(length)
        have = min(len(self._rest), length)
        data[:have], self._rest = self._rest[:have], self._rest[have:]
        with memoryview(data) as view:
            while have < length:
                more = self._data.readinto(view[have:]) if self._wait_readable(closed) else 0
                if not more:
                    return bytearray()
                have += more
        return data

    def _wait_readable(self, closed: threading.Event) -> bool:
        while not closed.is_set():
            if select.select([self._data], [], [], 0.2)[0]:
                return True
        return False

    def _shape_image(self, data: bytearray) -> Array:
        """The bytes of a frame as an image: rows begin at multiples of four bytes."""
        ends = time.monotonic() + WAIT_S
        while time.monotonic() < ends:
            width, height = self._size or (0, 0)
            stride = (3 * width + 3) // 4 * 4
            if self._size is not None and stride * height == len(data):
                rows = np.frombuffer(data, np.uint8).reshape(height, stride)
                return np.ascontiguousarray(rows[:, : 3 * width]).reshape(height, width, 3)
            # gst-launch says it in another thread than that which sends frames
            time.sleep(0.01)
        raise SourceLost(f"a frame has {len(data)} bytes, which is not {self._size or 'a size that was told'}")

    def _check_end(self) -> None:
        """Find out why there are no more frames.

        Raises:
            SourceLost: the pipeline failed, or it was that of a camera.
            BadInput: there can be no such pipeline.
        """
        try:
            code = self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise SourceLost("it stopped") from None
        self._listener.join(WAIT_S)
        if self._error:
            self._raise_error()
        if code != 0:
            raise SourceLost(f"{LAUNCHER} ended with exit code {code}")
        if (self._gst_live or _REMOTE.search(self._text)) and "num-buffers=" not in self._text:
            raise SourceLost("the stream ended")

    def _raise_error(self) -> None:
        """Raise what gst-launch said: a line, and behind it where in its source that was and some detail."""
        first = self._error[0]
        if first.startswith(_WRONG):
            reason = hide_secrets(first[len(_WRONG) :])
            raise BadInput(f"pipeline: {reason}", remedy=f"try it with {LAUNCHER}; it ends in raw video or appsink")
        cause = re.sub(r"^ERROR: (?:from element \S*:(\S+: ))?", r"\1", first)
        url = re.search(r"\b(?:rtsp|http)s?://[^\s\"']+", self._text)
        more = [*self._error[3:4], *([probe_url(url[0])] if url else [])]
        raise SourceLost(hide_secrets(" ".join([cause, *(f"({detail})" for detail in more if detail)])))

    def close(self) -> None:
        # whoever waits for room in the pipe goes on
        self._data.close()
        if self._process.poll() is None:
            # a driver wants to be told: Argus keeps the camera of a process that was killed
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._listener.join(WAIT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
