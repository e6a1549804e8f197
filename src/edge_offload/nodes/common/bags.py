"""Opens bags, and says of one that cannot be read why, and what to do."""

from __future__ import annotations

import pathlib

import rosbag

from edge_offload.errors import BadInput


def open_bag(path: str) -> rosbag.Bag:
    """Open a bag for reading.

    Raises:
        BadInput: it does not exist, is no bag, or was not closed properly.
    """
    path = str(pathlib.Path(path).expanduser().absolute())
    if not pathlib.Path(path).is_file():
        raise BadInput(f"no bag file {path}", remedy="give the path of a bag")
    try:
        return rosbag.Bag(path)
    except rosbag.ROSBagUnindexedException as error:
        raise BadInput(f"bag {path} has no index", remedy=f"run: rosbag reindex {path}") from error
    except (rosbag.ROSBagException, OSError) as error:
        raise BadInput(f"cannot read bag {path}: {error}") from error
