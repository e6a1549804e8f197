"""Topics of a run as records, for the dashboard and the file of a run."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Sequence

import rospy
from diagnostic_msgs.msg import DiagnosticArray

from edge_offload.dashboard import messages
from edge_offload.dashboard.stream import Record
from edge_offload_msgs import msg


class RunTopics:
    """Subscribes to everything that makes a record.

    Args:
        on_record: called with each record, one at a time, in the order in which they were received.
        guard: wraps the callbacks (:meth:`edge_offload.nodes.common.base.Node.callback`).
        cameras: namespaces of people, where there are several.
    """

    def __init__(
        self,
        on_record: Callable[[Record], None],
        guard: Callable[[Callable[[Any], None]], Callable[[Any], None]],
        cameras: Sequence[str] = ("",),
    ) -> None:
        self._on_record = on_record
        self._lock = threading.Lock()
        self._changes = messages.DiagnosticChanges()
        self.names: Dict[str, str] = {}
        self._subscribers: List[Any] = []
        queue = 200  # messages that may wait: they are small, and none should be missed
        for kind, topic in messages.TOPICS.items():
            self.names[kind] = rospy.resolve_name(topic.name)
            callback = guard(self._make_callback(topic))
            for camera in cameras if kind == "people" else ("",):
                name = f"{camera}/{topic.name}" if camera else topic.name
                subscriber = rospy.Subscriber(name, getattr(msg, topic.message), callback, queue_size=queue)
                self._subscribers.append(subscriber)
        self.names["diagnostic"] = messages.DIAGNOSTICS_TOPIC
        self._subscribers.append(
            rospy.Subscriber(messages.DIAGNOSTICS_TOPIC, DiagnosticArray, guard(self._on_diagnostics), queue_size=queue)
        )

    def close(self) -> None:
        for subscriber in self._subscribers:
            subscriber.unregister()

    def _make_callback(self, topic: messages.Topic) -> Callable[[Any], None]:
        def take(message: Any) -> None:
            with self._lock:
                record = topic.convert(message, time.time())
                if record is not None:
                    self._on_record(record)

        take.__name__ = topic.name
        return take

    def _on_diagnostics(self, message: Any) -> None:
        with self._lock:
            for record in self._changes.changed_records(message, time.time()):
                self._on_record(record)
