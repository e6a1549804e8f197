"""Opens bags; the error for an unreadable one names the cause and the remedy."""

from __future__ import annotations

import pathlib
import shlex
import struct
from typing import Any, Iterator, Sequence

import genpy
import rosbag

from edge_offload.errors import BadInput

ROS_2 = (b"SQLite format 3", b"\x89MCAP0")
"""How files of rosbag2 begin."""


def open_bag(path: str) -> rosbag.Bag:
    """Open a bag for reading.

    Raises:
        BadInput: it does not exist, is no bag, or was not closed properly.
    """
    file = pathlib.Path(path).expanduser().absolute()
    path = str(file)
    if _is_ros_2(file):
        command = f"rosbags-convert --src {shlex.quote(path)} --dst {shlex.quote(str(file.with_suffix('.bag')))}"
        raise BadInput(f"{path} is a bag of ROS 2", remedy=f"convert it: pip install rosbags, {command}")
    if not file.is_file():
        raise BadInput(f"no bag file {path}", remedy="give the path of a bag")
    try:
        return rosbag.Bag(path)
    except rosbag.ROSBagUnindexedException as error:
        raise BadInput(f"bag {path} has no index", remedy=f"run: rosbag reindex {shlex.quote(path)}") from error
    except (rosbag.ROSBagException, OSError, ValueError) as error:
        raise BadInput(f"cannot read bag {path}: {error}", remedy="see what 'rosbag info' says of it") from error


def read_messages(bag: rosbag.Bag, topics: Sequence[str], raw: bool = False) -> Iterator[Any]:
    """Topic, message and time of recording of each message on ``topics``, as ``Bag.read_messages`` gives them.

    Raises:
        BadInput: what follows is damaged.
    """
    damaged = (rosbag.ROSBagException, genpy.DeserializationError, OSError, ValueError, EOFError, KeyError)
    try:
        yield from bag.read_messages(topics=list(topics), raw=raw)
    except (*damaged, struct.error) as error:
        raise BadInput(f"bag {bag.filename} is damaged: {error}", remedy="copy it again from its source") from error


def _is_ros_2(file: pathlib.Path) -> bool:
    """Tell whether this is a folder or a file of rosbag2 (SQLite or MCAP)."""
    if file.is_dir():
        return (file / "metadata.yaml").is_file()
    try:
        with file.open("rb") as stream:
            return stream.read(16).startswith(ROS_2)
    except OSError:
        return False
