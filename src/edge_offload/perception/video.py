"""Write pictures and videos so that a file is either whole or not there."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from typing import Iterator, Optional, Tuple, Union

import cv2
import numpy as np

from edge_offload.errors import BadInput

_CODECS = {".mp4": ("avc1", "mp4v"), ".avi": ("MJPG",)}


def write_png(path: Union[str, pathlib.Path], image: np.ndarray) -> pathlib.Path:
    """Write ``image`` (uint8 [h, w] or [h, w, 3] BGR) as PNG; an old file stays until the new one is complete.

    Raises:
        BadInput: the image cannot be coded, or the folder cannot be written.
    """
    path = pathlib.Path(path)
    if image.dtype != np.uint8 or not image.size:
        raise BadInput(f"{path}: {image.dtype} {image.shape} is not a uint8 image")
    coded, data = cv2.imencode(".png", image)
    if not coded:
        raise BadInput(f"{path}: image of shape {image.shape} cannot be coded as PNG")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data.tobytes())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", remedy="choose a folder that can be written") from error
    return path


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep OpenCV from writing to stderr that a codec is missing: that is expected, and the next one is tried."""
    level = cv2.getLogLevel()
    cv2.setLogLevel(0)
    try:
        yield
    finally:
        cv2.setLogLevel(level)


class VideoWriter:
    """Writes frames to a video; the file appears under its name when :meth:`close` completes it.

    Codecs are tried in turn (``.mp4``: H.264, then MPEG-4; ``.avi``: Motion JPEG). Where the OpenCV build has none for
    ``.mp4``, an ``.avi`` of the same name is written: :attr:`path` says what it is.

    Raises:
        BadInput: another suffix, or no codec works.
    """

    def __init__(self, path: Union[str, pathlib.Path], fps: float = 10.0) -> None:
        self.path = pathlib.Path(path)
        if self.path.suffix.lower() not in _CODECS:
            raise BadInput(f"{path}: suffix {self.path.suffix!r}", remedy=f"use one of {', '.join(_CODECS)}")
        if not fps > 0:
            raise BadInput(f"{path}: {fps} frames per second")
        self.frames = 0
        self._fps = fps
        self._size: Optional[Tuple[int, int]] = None
        self._writer: Optional[cv2.VideoWriter] = None
        self._temporary = self.path

    def write(self, bgr: np.ndarray) -> None:
        """Append a frame, uint8 [h, w, 3] BGR; all of one size (an odd last row or column is cut off).

        Raises:
            BadInput: another size than the first frame's, or not an image.
        """
        if bgr.dtype != np.uint8 or bgr.ndim != 3 or bgr.shape[2] != 3 or min(bgr.shape[:2]) < 2:
            raise BadInput(f"{self.path}: {bgr.dtype} {bgr.shape} is not a uint8 BGR frame")
        size = (bgr.shape[1] // 2 * 2, bgr.shape[0] // 2 * 2)
        if self._writer is None:
            self._size = size
            self._writer = self._open(size)
        if size != self._size:
            raise BadInput(f"{self.path}: frame of {size[0]}x{size[1]} in a video of {self._size}")
        self._writer.write(np.ascontiguousarray(bgr[: size[1], : size[0]]))
        self.frames += 1

    def _open(self, size: Tuple[int, int]) -> cv2.VideoWriter:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.path}: {error.strerror}") from error
        with _quiet():
            return self._first_that_works(size)

    def _first_that_works(self, size: Tuple[int, int]) -> cv2.VideoWriter:
        suffixes = [self.path.suffix.lower()] + [".avi"] * (self.path.suffix.lower() != ".avi")
        for suffix in suffixes:
            self._temporary = self.path.with_name(f".{self.path.stem}.{os.getpid()}.part{suffix}")
            for codec in _CODECS[suffix]:
                writer = cv2.VideoWriter(str(self._temporary), cv2.VideoWriter.fourcc(*codec), self._fps, size)
                if writer.isOpened():
                    self.path = self.path.with_suffix(suffix)
                    return writer
                writer.release()
                self._temporary.unlink(missing_ok=True)
        raise BadInput(f"{self.path}: OpenCV has no codec for it here, or the folder cannot be written")

    def close(self) -> Optional[pathlib.Path]:
        """Complete the file; its path, or None when no frame was written."""
        if self._writer is None:
            return None
        self._writer.release()
        self._writer = None
        if not self._temporary.exists() or not self._temporary.stat().st_size:
            raise BadInput(f"{self.path}: nothing was written", remedy="is the disk full?")
        os.replace(self._temporary, self.path)
        return self.path

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
