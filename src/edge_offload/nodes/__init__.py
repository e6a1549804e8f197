"""ROS nodes: convert, call, publish. The only package that imports rospy."""

import pathlib


def module_of(node: str) -> str:
    """The module of a node, which lies in one of the folders here."""
    (path,) = pathlib.Path(__file__).parent.glob(f"*/{node}.py")
    return f"{__name__}.{path.parent.name}.{node}"
