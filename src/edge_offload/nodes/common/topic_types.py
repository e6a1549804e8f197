"""Topics on which nothing comes: another type than a node takes, or another name. ROS itself says little."""

from __future__ import annotations

import xmlrpc.client
from typing import Any, Dict, List

import rospy
from rospy.impl.registration import get_topic_manager

from edge_offload.nodes.common.health import Awaited, Health

ARGUMENTS = {
    "sensor_msgs/Image": "image_topic or depth_topic",
    "sensor_msgs/CompressedImage": "image_topic",
    "sensor_msgs/CameraInfo": "info_topic",
    "sensor_msgs/PointCloud2": "input or cloud_topic",
}
"""Arguments of launch files that name topics, by the type of their messages."""

ANY = "*"


class TopicTypes:
    """Compares what a node subscribes to with what is published.

    Args:
        health: where a difference is told.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._turn = 0

    def refresh(self) -> None:
        """Tell of topics of another type. Call it about once a second."""
        self._turn += 1
        if self._turn % 3:  # the master is asked by one report of three
            return
        try:
            published: Dict[str, str] = dict(rospy.get_published_topics())
        except (OSError, xmlrpc.client.Error, rospy.ROSException):
            # the master is away; it may come back
            return
        causes = [
            explain_mismatch(name, expected, published)
            for name, expected in get_topic_manager().get_subscriptions()
            if expected != ANY and published.get(name, ANY) not in (ANY, expected)
        ]
        if causes:
            self._health.warn("types", "; ".join(sorted(causes)))
        else:
            self._health.clear("types")


def others_of(kind: str, name: str) -> str:
    """`` (there are some on /a, /b)``: topics of a type besides ``name``; empty: none, or no master says so."""
    try:
        published = rospy.get_published_topics()
    except (OSError, xmlrpc.client.Error, rospy.ROSException):
        return ""
    others = sorted(other for other, its in published if its == kind and other != name)
    return f" (there are some on {', '.join(others)})" if others else ""


def await_topic(topic: str, kind: Any, what: str, remedy: str, after_s: float) -> Awaited:
    """Make the watch that tells when a topic is silent, and which others have its type.

    Args:
        topic: as it is subscribed to.
        kind: class of its messages.
        what: a message is.
        remedy: what to do.
        after_s: silence that is too long, seconds.
    """
    name = rospy.resolve_name(topic)
    return Awaited(f"{what} on {name}", lambda: f"{remedy}{others_of(kind._type, name)}", after_s)


def explain_mismatch(name: str, expected: str, published: Dict[str, str]) -> str:
    """Explain why nothing comes on a topic, and the remedy.

    Args:
        name: of the topic.
        expected: type that the node takes.
        published: types of all topics by name.
    """
    others: List[str] = sorted(other for other, kind in published.items() if kind == expected)
    where = f"there are some on {', '.join(others)}" if others else "no topic has any"
    argument = ARGUMENTS.get(expected)
    how = f"give {argument}:= in the launch file, or remap the topic" if argument else "remap the topic"
    return f"{name} has {published[name]}, not {expected} ({where}); {how}"
