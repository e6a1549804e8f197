"""Writers of pictures and videos, whose files appear only when complete."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from typing import Any, Iterator, List, Optional, Tuple, Union

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.outputs import write_bytes

DISK_FRAMES = 50
"""Frames between two checks of the disk's free space."""

_CODECS = {".mp4": ("avc1", "mp4v"), ".avi": ("MJPG",)}


def write_png(path: Union[str, pathlib.Path], image: Array) -> pathlib.Path:
    """Write ``image`` (uint8 [h, w] or [h, w, 3] BGR) as PNG, which replaces an old file when complete.

    Raises:
        BadInput: the image cannot be coded, or the folder cannot be written.
    """
    path = pathlib.Path(path)
    if image.dtype != np.uint8 or not image.size:
        raise BadInput(f"{path}: {image.dtype} {image.shape} is not a uint8 image")
    coded, data = cv2.imencode(".png", image)
    if not coded:
        raise BadInput(f"{path}: image of shape {image.shape} cannot be coded as PNG")
    write_bytes(path, data.tobytes())
    return path


@contextlib.contextmanager
def _silence_opencv() -> Iterator[None]:
    """Silence OpenCV's errors about missing codecs, which are expected: the next codec is tried."""
    levels: Any = cv2 if hasattr(cv2, "getLogLevel") else vars(cv2.utils)["logging"]  # OpenCV 4, OpenCV 5
    level = levels.getLogLevel()
    levels.setLogLevel(0)
    try:
        yield
    finally:
        levels.setLogLevel(level)


class VideoWriter:
    """Writer of a video; the file appears under its name when :meth:`close` completes it.

    Codecs are tried in turn (``.mp4``: H.264, then MPEG-4; ``.avi``: Motion JPEG). If the OpenCV build has none for
    ``.mp4``, an ``.avi`` of the same name is written, as :attr:`path` says.

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

    def write(self, bgr: Array) -> None:
        """Append a frame, uint8 [h, w, 3] BGR, all of one size; an odd last row or column is cropped.

        Raises:
            BadInput: another size than the first frame's, or not an image.
        """
        if bgr.dtype != np.uint8 or bgr.ndim != 3 or bgr.shape[2] != 3 or min(bgr.shape[:2]) < 2:
            raise BadInput(f"{self.path}: {bgr.dtype} {bgr.shape} is not a uint8 BGR frame")
        size = (bgr.shape[1] // 2 * 2, bgr.shape[0] // 2 * 2)
        if self._writer is None:
            self._size = size
            self._writer = self._open_writer(size)
        if size != self._size:
            raise BadInput(f"{self.path}: frame of {size[0]}x{size[1]} in a video of {self._size}")
        self._writer.write(np.ascontiguousarray(bgr[: size[1], : size[0]]))
        self.frames += 1

    def _open_writer(self, size: Tuple[int, int]) -> cv2.VideoWriter:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.path}: {error.strerror}") from error
        with _silence_opencv():
            return self._try_codecs(size)

    def _try_codecs(self, size: Tuple[int, int]) -> cv2.VideoWriter:
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
        """Complete the file and return its path, None without a frame; BadInput: nothing reached the disk."""
        if self._writer is None:
            return None
        self._writer.release()
        self._writer = None
        if not self._temporary.exists() or not self._temporary.stat().st_size:
            raise BadInput(f"{self.path}: nothing was written", remedy="is the disk full?")
        os.replace(self._temporary, self.path)
        return self.path

    @property
    def size(self) -> int:
        """Bytes of the unfinished file on the disk; 0 before the first frame and after :meth:`close`."""
        return self._temporary.stat().st_size if self._writer is not None and self._temporary.exists() else 0

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class VideoParts:
    """Writer of a video in parts of bounded size; only the newest parts stay, so that long runs do not fill the disk.

    The first part has the given name, the others a number (``walk.avi``, ``walk-2.avi``, ...).

    Args:
        path: of the first part; its suffix selects the format (:class:`VideoWriter`).
        fps: frames per second.
        part_bytes: size at which a part is closed; 0: there is only one.
        max_parts: parts that stay, including the current one.
        reserve_bytes: free space of the disk below which the video ends.
    """

    def __init__(
        self,
        path: Union[str, pathlib.Path],
        fps: float,
        part_bytes: float = 0.0,
        max_parts: int = 3,
        reserve_bytes: int = 64 << 20,
    ) -> None:
        self._path = pathlib.Path(path)
        self._fps = fps
        self._part_bytes = part_bytes
        self._max_parts = max_parts
        self._reserve_bytes = reserve_bytes
        self._parts: List[pathlib.Path] = []
        self._number = 0
        self._frames = 0
        self._full = False
        self._writer: Optional[VideoWriter] = None

    def write(self, bgr: Array) -> None:
        """Append a frame, as :meth:`VideoWriter.write`; frames are dropped once the disk is full.

        Raises:
            BadInput: the frame has another size; or, once, the disk is full.
        """
        if self._full:
            return
        if self._frames % DISK_FRAMES == 0 and self._disk_is_full():
            self._full = True
            self._finish_part()
            raise BadInput(f"the disk of {self._path} is full: the video ends here", remedy="make room")
        if self._writer is None:
            self._number += 1
            name = self._path.name if self._number == 1 else f"{self._path.stem}-{self._number}{self._path.suffix}"
            self._writer = VideoWriter(self._path.with_name(name), self._fps)
        self._frames += 1
        self._writer.write(bgr)
        if self._part_bytes and self._writer.size >= self._part_bytes:
            self._finish_part()
            while len(self._parts) >= self._max_parts:
                self._parts.pop(0).unlink()

    def _disk_is_full(self) -> bool:
        folder = next(folder for folder in self._path.absolute().parents if folder.exists())
        return shutil.disk_usage(folder).free < self._reserve_bytes

    def _finish_part(self) -> None:
        writer, self._writer = self._writer, None
        path = writer.close() if writer is not None else None
        if path is not None:
            self._parts.append(path)

    def close(self) -> List[pathlib.Path]:
        """Complete the last part and return the paths of all that stay.

        Raises:
            BadInput: it could not be written.
        """
        self._finish_part()
        return self._parts
