"""Where the sample video is: vtest.avi of the Debian package opencv-doc, people walking in front of a fixed camera."""

from __future__ import annotations

import os
import pathlib
from typing import List

from edge_offload.errors import BadInput
from edge_offload.models.cache import cache_dir

ENVIRONMENT = "EDGE_OFFLOAD_VIDEO"
FILE_NAME = "vtest.avi"
SHA256 = "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf"
"""Of the file in opencv-doc 4.6.0: 768×576 pixels, 795 frames, 10 frames a second."""

INSTALLED = pathlib.Path("/usr/share/doc/opencv-doc/examples/data") / FILE_NAME


def candidates() -> List[pathlib.Path]:
    """Places to look, in order: ``$EDGE_OFFLOAD_VIDEO`` alone if set, else the cache, then the installed package."""
    explicit = os.environ.get(ENVIRONMENT)
    return [pathlib.Path(explicit).expanduser()] if explicit else [cache_dir() / FILE_NAME, INSTALLED]


def sample_video() -> pathlib.Path:
    """Path of the sample video.

    Raises:
        BadInput: it is in none of the places; the message says how to get it.
    """
    places = candidates()
    for place in places:
        if place.is_file():
            return place
    raise BadInput(
        f"no sample video at {' or '.join(map(str, places))}",
        remedy=(
            f"set {ENVIRONMENT} to a video of yours, or: apt-get download opencv-doc && dpkg-deb --fsys-tarfile "
            f"opencv-doc_*.deb | tar -xO .{INSTALLED} > {cache_dir() / FILE_NAME}"
        ),
    )


def frames_per_s(video: pathlib.Path) -> float:
    """What the file says; 10 where it says nothing."""
    import cv2

    capture = cv2.VideoCapture(str(video))
    try:
        return float(capture.get(cv2.CAP_PROP_FPS)) or 10.0
    finally:
        capture.release()
