"""Explains a silent topic: no publisher, another message type, or another name. ROS itself reports little."""

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
"""Type of a topic that is not known, or of a subscription that takes every type."""


class TopicTypes:
    """Compares what a node subscribes to with what is published.

    Args:
        health: gets the warning ``types`` while a type differs.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._calls = 0

    def refresh(self) -> None:
        """Set or clear the warning about topics of another type. Call it about once a second."""
        self._calls += 1
        if self._calls % 3:  # only every third call asks the master
            return
        try:
            published: Dict[str, str] = dict(rospy.get_published_topics())
        except (OSError, xmlrpc.client.Error, rospy.ROSException):
            # the master does not answer; it may come back
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
    """Return a note on other topics of a type, ``" (there are some on /a, /b)"``; empty: none, or no master.

    Args:
        kind: type of the messages.
        name: topic to leave out.
    """
    try:
        published = rospy.get_published_topics()
    except (OSError, xmlrpc.client.Error, rospy.ROSException):
        return ""
    others = sorted(other for other, published_type in published if published_type == kind and other != name)
    return f" (there are some on {', '.join(others)})" if others else ""


def await_topic(topic: str, kind: Any, what: str, remedy: str, after_s: float) -> Awaited:
    """Make a watch that reports a silent topic, with the remedy and the other topics of its type.

    Args:
        topic: name that the node subscribes to, before remapping.
        kind: class of its messages.
        what: what a message is, in words.
        remedy: what the user should do.
        after_s: silence that is too long, seconds.
    """
    name = rospy.resolve_name(topic)
    return Awaited(f"{what} on {name}", lambda: f"{remedy}{others_of(kind._type, name)}", after_s)


def explain_mismatch(name: str, expected: str, published: Dict[str, str]) -> str:
    """Return a text that says why a node receives nothing on a topic of another type, and the remedy.

    Args:
        name: of the topic; a key of ``published``.
        expected: type of messages that the node subscribes to.
        published: types of all published topics by name.
    """
    others: List[str] = sorted(other for other, kind in published.items() if kind == expected)
    where = f"there are some on {', '.join(others)}" if others else "no topic has any"
    argument = ARGUMENTS.get(expected)
    how = f"give {argument}:= in the launch file, or remap the topic" if argument else "remap the topic"
    return f"{name} has {published[name]}, not {expected} ({where}); {how}"
