"""Turns of one node at the server, as the topics ``offload/turn`` and ``offload/turn_taken`` give and report them."""

from __future__ import annotations

import math
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

import rospy

from edge_offload.errors import BadInput
from edge_offload.manager.tuning import REPEAT_S
from edge_offload.manager.turn_taker import Claim, TurnTaker
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.inference.compose import copy_header, ros_duration
from edge_offload.perception.timeline import Instant
from edge_offload_msgs.msg import Turn

if TYPE_CHECKING:
    from edge_offload.nodes.inference.intake import Frame

#: Names of tasks become parts of topics.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


def task_name(name: str) -> str:
    """The name, if it can be one.

    Raises:
        BadInput: it cannot.
    """
    if not NAME.match(name):
        raise BadInput(f"a task is called {name!r}", remedy="use letters, digits and _, a letter first: _task:=people")
    return name


class Turns:
    """Says when a frame may go to the server; tells the others when one goes, and when its result is there.

    Args:
        node: whose turns these are.
        task: what it does.
        wake: called when a frame that waits may go.
        request_turn: called when the manager does not know that turns are wanted.
    """

    def __init__(self, node: Node, task: str, wake: Callable[[], None], request_turn: Callable[[], None]) -> None:
        self._node, self.task, self._wake, self._request_turn = node, task_name(task), wake, request_turn
        self._requested_s = -math.inf
        self._name = rospy.get_name()
        self._lock = threading.Lock()
        self._taker = TurnTaker(self._name, time.monotonic())
        #: Between frames, seconds; NaN: not known.
        self.interval_s = math.nan
        self._last: Dict[str, Instant] = {}
        self._manager = False
        self._taken = rospy.Publisher("offload/turn_taken", Turn, queue_size=100)
        self._turn_subscriber = rospy.Subscriber("offload/turn", Turn, node.callback(self._on_turn), queue_size=10)
        rospy.Subscriber("offload/turn_taken", Turn, node.callback(self._on_taken), queue_size=100)

    def _on_turn(self, message: Any) -> None:
        if len(message.nodes) != len(message.latency):
            raise BadInput("offload/turn names other nodes than it has latencies for")
        latencies_s = {node: latency.to_sec() for node, latency in zip(message.nodes, message.latency)}
        with self._lock:
            self._manager = True
            key = (message.number, message.header.stamp.to_nsec())
            self._taker.record_turn(time.monotonic(), key, message.node, latencies_s, message.at_once)
        if self._name not in message.nodes and time.monotonic() - self._requested_s > REPEAT_S:
            self._requested_s = time.monotonic()
            self._request_turn()
        self._wake()

    def _on_taken(self, message: Any) -> None:
        if message.node == self._name:
            return
        if message.task == self.task:
            self._node.health.warn("task", f"{message.node} calls its task {self.task}, too: give one another _task")
        with self._lock:
            self._taker.record_other_frame(time.monotonic(), message.node, message.state == Turn.ENDED)
        self._wake()

    def wait_s(self) -> float:
        """Return the seconds until a frame may go, which messages may change."""
        if rospy.is_shutdown():
            return 0.0
        with self._lock:
            self._check_manager()
            # a manager that goes is not heard of
            return min(0.2, self._taker.wait_s(time.monotonic(), rospy.get_time()))

    def _check_manager(self) -> None:
        """Check that the manager is still there: its connection ends with it."""
        if self._manager and not self._turn_subscriber.get_num_connections():
            self._taker.lose_manager("the manager is gone")
            self._manager = False

    def begin_claim(self, frame: Frame, needed: bool = True) -> Optional[Claim]:
        """A frame goes to the server; None: its turn is over already.

        Args:
            frame: it.
            needed: whether it waited for its turn; else it only takes one that the manager has given.
        """
        with self._lock:
            self._note_frame(frame)
            self._check_manager()
            if not needed and self._taker.clock_reason:
                return None
            claim = self._taker.claim_turn(time.monotonic(), rospy.get_time())
            clock_reason = self._taker.clock_reason
        if claim is None:
            if needed:
                self._node.health.count("frames whose turn was over")
            return None
        self._publish_state(Turn.TAKEN, claim, frame.message.header, clock_reason if not claim.number else "")
        return claim

    def end_claim(self, claim: Claim, header: Any) -> None:
        """Tell the others that its result is there."""
        self._publish_state(Turn.ENDED, claim, header)

    def _publish_state(self, state: int, claim: Claim, header: Any, reason: str = "") -> None:
        self._taken.publish(
            Turn(
                header=copy_header(header), number=claim.number, task=self.task, node=self._name, state=state,
                within=ros_duration(self.interval_s), reason=reason,
            )
        )  # fmt: skip

    def _note_frame(self, frame: Frame) -> None:
        """Learn how far frames of a camera lie apart, from those that were taken up."""
        instant, last = frame.instant, self._last.get(frame.camera)
        self._last[frame.camera] = instant
        if last is None or not 0 < instant.number - last.number < 1000:
            return
        seconds = (instant - last) * 1e-9 / (instant.number - last.number)
        if 0 < seconds <= 10.0:  # seconds; longer is not believed
            measured = math.isfinite(self.interval_s)
            self.interval_s = self.interval_s + 0.2 * (seconds - self.interval_s) if measured else seconds

    def refresh(self) -> None:
        with self._lock:
            self._check_manager()
            clock_reason = self._taker.clock_reason
        health = self._node.health
        health.value("turns", f"taken by the clock: {clock_reason}" if clock_reason else "given by the manager")
        if clock_reason and self._node.params["server"]:
            health.warn("turns", f"{clock_reason}: nodes take turns by themselves, by the clock")
        else:
            health.clear("turns")
