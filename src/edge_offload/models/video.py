"""Frames of videos and synthetic ones; the sample video: vtest.avi of Debian's opencv-doc, seen by a static camera."""

from __future__ import annotations

import os
import pathlib
from typing import Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from edge_offload import places
from edge_offload.arrays import Array
from edge_offload.cache import cache_dir
from edge_offload.errors import BadInput
from edge_offload.notices import notify

ENVIRONMENT = "EDGE_OFFLOAD_VIDEO"
FILE_NAME = "vtest.avi"
SHA256 = "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf"
"""Of the file in opencv-doc 4.6.0: 768×576 pixels, 795 frames, 10 frames a second."""


INSTALLED = pathlib.Path("/usr/share/doc/opencv-doc/examples/data") / FILE_NAME


def candidate_paths() -> List[pathlib.Path]:
    """Return the possible paths: only ``$EDGE_OFFLOAD_VIDEO`` if set, else the cache, then the installed package."""
    explicit = os.environ.get(ENVIRONMENT)
    return [places.expand(explicit)] if explicit else [cache_dir() / FILE_NAME, INSTALLED]


def sample_video() -> pathlib.Path:
    """Return the path of the sample video.

    Raises:
        BadInput: it is not installed; the message says how to get it.
    """
    places = candidate_paths()
    for place in places:
        if place.is_file():
            return place
    raise BadInput(
        f"no sample video at {' or '.join(map(str, places))}",
        remedy=(
            f"set {ENVIRONMENT} to a video of yours, or: apt-get download opencv-doc && dpkg-deb --fsys-tarfile "
            f"opencv-doc_*.deb | tar -xO .{INSTALLED} > {FILE_NAME} && export {ENVIRONMENT}=$PWD/{FILE_NAME}"
        ),
    )


class Video:
    """An opened video, by default the sample video.

    Attributes:
        fps: frames per second; 10 where the file lacks it.
        length: number of frames in the container's header; 0: unknown.

    Raises:
        BadInput: it cannot be opened.
    """

    def __init__(self, path: Union[str, pathlib.Path, None] = None) -> None:
        import cv2

        self.path = str(path or sample_video())
        self._capture = cv2.VideoCapture(self.path)
        if not self._capture.isOpened():
            raise self._unreadable()
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        self.fps = fps if 0 < fps < 1000 else 10.0
        self.length = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def _unreadable(self) -> BadInput:
        return BadInput(f"video {self.path} cannot be read", remedy="give a file that OpenCV can decode")

    def frames(self, limit: Optional[int] = None) -> Iterator[Tuple[float, Array]]:
        """Yield time in seconds and pixels (uint8 [h, w, 3] BGR) of each frame, up to ``limit`` frames.

        Raises:
            BadInput: there is none.
        """
        count = 0
        try:
            while limit is None or count < limit:
                decoded, bgr = self._capture.read()
                if not decoded:
                    break
                yield count / self.fps, bgr
                count += 1
        finally:
            self._capture.release()
        if not count:
            raise self._unreadable()
        if count != limit and shortfall(self.path, count, self.length):
            notify(shortfall(self.path, count, self.length))


def shortfall(path: Union[str, pathlib.Path], read: int, declared: int) -> str:
    """What a video that was cut off lacks, in words; empty where ``read`` frames are about what it ``declared``."""
    # some containers give the number by the mean rate
    if read >= 0.9 * declared:
        return ""
    return f"{path}: {read} of {declared} frames can be read; copy it again from its source"


def read_frames(video: Union[str, pathlib.Path], frame_numbers: Sequence[int]) -> Dict[int, Array]:
    """Read frames of ``video`` by their numbers (from 0): uint8 [h, w, 3] BGR each, ascending.

    Raises:
        BadInput: the video cannot be opened, or ends before the last of them.
    """
    frames: Dict[int, Array] = {}
    numbers, length = set(frame_numbers), 0
    if numbers:
        for number, (_, frame) in enumerate(Video(video).frames(max(numbers) + 1)):
            length = number + 1
            if number in numbers:
                frames[number] = frame
    if len(frames) < len(numbers):
        raise BadInput(f"video {video} ends at frame {length}; frame {max(numbers)} was asked for")
    return frames


def synthetic_frame(height: int = 480, width: int = 640, seed: int = 0) -> Array:
    """Return a smooth random picture, uint8 [height, width, 3]; codecs' figures need a real one."""
    import cv2

    chooser = np.random.default_rng(seed)
    frame = np.zeros((height, width, 3))
    for cells, weight in ((4, 60.0), (24, 30.0), (120, 10.0)):
        coarse = chooser.normal(size=(cells, cells, 3))
        frame += weight * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(frame + 127.5, 0, 255).astype(np.uint8)
