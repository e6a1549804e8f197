"""Registers a node again when the ROS master has been restarted.

rospy registers once. A restarted master does not know the nodes that are older than itself. Their connections work,
but no node that starts later finds them. This module asks the master at intervals whether it knows this node. If not,
it registers the node's topics again, without touching the connections.
"""

from __future__ import annotations

import xmlrpc.client
from typing import Any

import rosgraph
import rospy
from rospy.impl.registration import get_topic_manager

UNREACHABLE, REGISTERED, REREGISTERED = "gone", "known", "anew"


class MasterWatch:
    """Call :meth:`check_registration` from one thread, every second or so."""

    def __init__(self) -> None:
        self._name = rospy.get_name()
        self._master = rosgraph.Master(self._name)

    def check_registration(self) -> str:
        """GONE: no master answers; KNOWN: it knows this node; ANEW: it did not, and does now."""
        try:
            try:
                registered = self._master.lookupNode(self._name) == rospy.get_node_uri()
            except rosgraph.MasterError:
                registered = False
            if registered:
                return REGISTERED
            self._register_node()
        except (OSError, xmlrpc.client.Error, rosgraph.MasterException):
            return UNREACHABLE
        return REREGISTERED

    def _register_node(self) -> None:
        uri = rospy.get_node_uri()
        slave: Any = xmlrpc.client.ServerProxy(uri)
        topics = get_topic_manager()
        for name, message_type in topics.get_publications():
            self._master.registerPublisher(name, message_type, uri)
        for name, message_type in topics.get_subscriptions():
            publishers = self._master.registerSubscriber(name, message_type, uri)
            # what the master would have told by itself, had it known
            slave.publisherUpdate("/master", name, publishers)
