"""Sources of camera frames: their common interface, and a device, a video file, a folder of images.

Independent of ROS. :mod:`~edge_offload.nodes.camera.sources` lists the types.
"""

from __future__ import annotations

import abc
import pathlib
import re
from typing import Any, List, Optional, Tuple

import cv2

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.models.video import sample_video, shortfall
from edge_offload.nodes.camera.addresses import hide_secrets

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


class SourceLost(EdgeOffloadError):
    """A source that worked gives no more frames although it should (unplugged, file truncated)."""


class FrameSource(abc.ABC):
    """Gives frames one by one.

    Attributes:
        name: what is read, for people.
        rate: frames per second that the source itself has, 0 if it has none.
        live: whether frames come when they come (a device) rather than when asked for.
        info: calibration that the source itself has, a CameraInfo; None where it has none.
        rectified: whether the frames are rectified, so that P of their calibration counts.
        networked: whether it is expected to be lost at times and to come back: that is a warning, not an error.
        pauses_s: before the first attempt to open it again, the second one, and so on; the last one again and again.
        arrived_s: monotonic instant at which the frame read last arrived; 0: it is as new as the call.
        dropped: frames that were too old by the time of a call.
        lacking: what should have been there before the end and was not, in words.
    """

    name: str
    rate: float = 0.0
    live: bool = False
    info: Any = None
    rectified: bool = False
    networked: bool = False
    pauses_s: Tuple[float, ...] = (1.0,)
    arrived_s: float = 0.0
    dropped: int = 0
    lacking: str = ""

    @classmethod  # noqa: B027  (a device can be looked at only when it is opened)
    def check(cls, value: str) -> None:
        """Look at ``value`` before anything is started.

        Raises:
            BadInput: it cannot be used, whatever happens later (a device may be plugged in yet).
        """

    @abc.abstractmethod
    def read(self) -> Optional[Array]:
        """The next frame, uint8 [h, w, 3] BGR, or None at the end.

        Raises:
            SourceLost: there should be one and is not.
        """

    @abc.abstractmethod
    def rewind(self) -> None:
        """Begin anew (a lost device is opened again).

        Raises:
            BadInput: it cannot be opened.
            SourceLost: it could be opened, but gives no frames.
        """

    def interrupt(self) -> None:  # noqa: B027  (what reads at once need not be interrupted)
        """Let a call of another thread that waits for a frame end soon."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what is held."""


class VideoFile(FrameSource):
    """A video file, in the container's own rate; ``sample`` is the sample video.

    Raises:
        BadInput: no such file, or it is no video.
    """

    def __init__(self, path: str) -> None:
        _expect_path(path)
        self._path = sample_video() if path == "sample" else pathlib.Path(path).expanduser().absolute()
        self.name = f"video {self._path}"
        if not self._path.is_file():
            raise BadInput(f"no video file {self._path}", remedy="give the path of a video")
        self._capture = self._open_capture()
        rate = float(self._capture.get(cv2.CAP_PROP_FPS))
        self.rate = rate if 0 < rate <= 1000 else 0.0
        self._read, self._declared = 0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))

    @classmethod
    def check(cls, value: str) -> None:
        cls(value).read()

    def _open_capture(self) -> cv2.VideoCapture:
        capture = cv2.VideoCapture(str(self._path))
        if not capture.isOpened():
            raise BadInput(f"{self._path} is no video that OpenCV can read", remedy="convert it, for example to MP4")
        return capture

    def read(self) -> Optional[Array]:
        read, frame = self._capture.read()
        if not read:
            if self._read == 0:
                raise BadInput(f"{self._path} holds no frame that can be decoded")
            self.lacking = shortfall(self._path, self._read, self._declared)
            return None
        self._read += 1
        image: Array = frame
        return image

    def rewind(self) -> None:
        # seeking is unreliable in some containers
        self._capture.release()
        self._capture = self._open_capture()
        self._read = 0

    def close(self) -> None:
        self._capture.release()


def _expect_path(value: str) -> None:
    if "://" in value or " ! " in value:
        raise BadInput(
            f"{hide_secrets(value)} is a stream or pipeline, no file or device",
            remedy="give it to camera_node or a launch file: video:=… or camera:=…",
        )


class ImageFolder(FrameSource):
    """All images of a folder in the order of their names, numbers compared as numbers.

    Raises:
        BadInput: no such folder, or no image in it.
    """

    def __init__(self, path: str) -> None:
        folder = pathlib.Path(path).expanduser().absolute()
        self.name = f"images in {folder}"
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}", remedy="give the path of a folder of images")
        self._files: List[pathlib.Path] = sorted(
            (file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES),
            key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)],
        )
        if not self._files:
            raise BadInput(f"no images in {folder}", remedy=f"it should hold files {', '.join(IMAGE_SUFFIXES)}")
        self._next = 0

    @classmethod
    def check(cls, value: str) -> None:
        cls(value).read()

    def read(self) -> Optional[Array]:
        if self._next >= len(self._files):
            return None
        file = self._files[self._next]
        self._next += 1
        frame = cv2.imread(str(file), cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
        if frame is None:
            raise BadInput(f"{file} is no image that OpenCV can read")
        if frame.dtype != "uint8":
            cause = f"{file} has samples of {8 * frame.itemsize} bits, and which of them hold the picture is not stated"
            raise BadInput(cause, remedy="convert it to 8 bits")
        image: Array = frame
        return image

    def rewind(self) -> None:
        self._next = 0

    def close(self) -> None:
        self._files = []


class Device(FrameSource):
    """A camera that the kernel knows (v4l2): ``/dev/video0`` or ``0``.

    Raises:
        BadInput: it cannot be opened.
    """

    live = True

    def __init__(self, device: str, width: int = 0, height: int = 0, rate: float = 0.0) -> None:
        self._device = device
        self._settings = (width, height, rate)
        self.name = f"camera {device}"
        self._capture = self._open_capture()
        reported = float(self._capture.get(cv2.CAP_PROP_FPS))
        self.rate = reported if 0 < reported <= 1000 else 0.0

    def _open_capture(self) -> cv2.VideoCapture:
        _expect_path(self._device)
        number = re.fullmatch(r"(?:/dev/video)?(\d+)", self._device)
        path = pathlib.Path(f"/dev/video{number.group(1)}") if number else pathlib.Path(self._device)
        if not path.exists():
            raise BadInput(f"no camera {path}", remedy="plug it in; 'ls /dev/video*' shows those that are there")
        capture = cv2.VideoCapture(str(path), cv2.CAP_V4L2)
        if not capture.isOpened():
            raise BadInput(f"camera {path} cannot be opened", remedy="check permissions (group video) and who uses it")
        width, height, rate = self._settings
        if width and height:
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, width)
            capture.set(cv2.CAP_PROP_FRAME_HEIGHT, height)
        if rate:
            capture.set(cv2.CAP_PROP_FPS, rate)
        # a queue in the driver would add its age to every frame
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        return capture

    def read(self) -> Optional[Array]:
        read, frame = self._capture.read()
        if not read or frame is None:
            raise SourceLost(f"{self.name} gives no frames", remedy="check its cable")
        image: Array = frame
        return image

    def rewind(self) -> None:
        self._capture.release()
        self._capture = self._open_capture()

    def close(self) -> None:
        self._capture.release()
