"""Turns of the manager as topics: receives reports of nodes, publishes ``offload/turn``."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Callable, Mapping, Optional

import rospy
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.manager.drop import DropCurve
from edge_offload.manager.tuning import REPEAT_S
from edge_offload.manager.turn_giver import Rules, Turn, TurnGiver, rules_with
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.inference.compose import ros_duration
from edge_offload_msgs.msg import Drop
from edge_offload_msgs.msg import Turn as TurnMessage


class TurnGiving:
    """Gives turns to the nodes that ask for them; silent while none does.

    Args:
        node: the manager.
        rules: weights and bounds; :meth:`change_rules` changes them.
        taken: called with the name of a task that has taken its turn.
    """

    def __init__(self, node: Node, rules: Rules, taken: Callable[[str], None] = lambda _: None) -> None:
        self._node, self._on_turn_taken = node, taken
        self._giver = TurnGiver(rules)
        self._changed = threading.Condition()
        self._closed = False
        self._last: Optional[TurnMessage] = None
        self._published_s = -math.inf
        self._publisher = rospy.Publisher("offload/turn", TurnMessage, queue_size=10, latch=True)
        rospy.Subscriber("offload/turn_taken", TurnMessage, node.callback(self._on_taken), queue_size=100)
        rospy.Subscriber("offload/drop", Drop, node.callback(self._on_drop), queue_size=100)
        self._thread = threading.Thread(target=self._run_turns, name="turns", daemon=True)
        self._thread.start()

    def change_rules(self, **changed: Any) -> None:
        """Give turns by other rules from now on.

        Raises:
            BadInput: they cannot be meant; the rules of before hold.
        """
        with self._changed:
            self._giver.rules = rules_with(self._giver.rules, **changed)

    def request_turn(self, node: str, task: str, latency_s: float) -> None:
        """A node offloads its frames; a result should take so long (seconds; nan: it is not known yet)."""
        with self._changed:
            self._giver.report_task(time.monotonic(), node, task, latency_s)
            self._changed.notify_all()

    def release_node(self, node: str) -> None:
        """A node computes its frames by itself for now."""
        with self._changed:
            self._giver.remove_node(node)

    def _on_taken(self, message: Any) -> None:
        now = time.monotonic()
        if message.state == TurnMessage.TAKEN:
            self._on_turn_taken(message.task)
        with self._changed:
            if message.state == TurnMessage.TAKEN:
                self._giver.record_taken(now, message.number, message.node)
            elif message.state == TurnMessage.ENDED:
                stale_s = (rospy.Time.now() - message.header.stamp).to_sec()
                # stamps that cannot be tell nothing of the age
                self._giver.record_ended(
                    now, message.number, message.node, stale_s if 0 <= stale_s < 60.0 else math.nan
                )
            self._changed.notify_all()

    def _on_drop(self, message: Any) -> None:
        figures = (message.intercept, message.slope, message.slope_error)
        local = None if math.isnan(message.local) else message.local
        if not all(math.isfinite(figure) and figure >= 0 for figure in figures) or not 0 <= (local or 0.0) <= 1:
            raise BadInput(f"offload/drop of {message.node} says what cannot be: {figures}, {local}")
        curve = DropCurve(*figures, local)
        with self._changed:
            self._giver.update_drops(time.monotonic(), message.node, curve, message.interval.to_sec())

    def _run_turns(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                try:
                    self._step_turns(time.monotonic())
                except Exception as error:
                    self._node.fault("turns", error)
                self._changed.wait(min(REPEAT_S / 4, max(0.002, self._giver.due_s(time.monotonic()))))

    def _step_turns(self, now: float) -> None:
        turn = self._giver.give_turn(now)
        if turn is not None:
            self._last = self._turn_message(turn)
        if self._last is None or (turn is None and now - self._published_s < REPEAT_S):
            return
        if not self._giver.tasks:
            self._last = None  # nobody asks: nothing is said
            return
        self._published_s = now
        self._publisher.publish(self._last)

    def _turn_message(self, turn: Turn) -> TurnMessage:
        nodes = self._giver.tasks
        self._node.health.value("turn", f"{turn.number}: {turn.task}: {turn.reason}")
        return TurnMessage(
            header=Header(stamp=rospy.Time.now()),
            number=turn.number,
            task=turn.task,
            node=turn.node,
            state=TurnMessage.GIVEN,
            within=ros_duration(turn.within_s),
            at_once=self._giver.rules.in_flight,
            nodes=list(nodes),
            latency=[ros_duration(seconds) for seconds in nodes.values()],
            reason=turn.reason,
        )

    def refresh(self) -> None:
        health = self._node.health
        with self._changed:
            tasks, shared = len(self._giver.tasks), self._giver.shared_tasks
            vain = f"{self._giver.not_taken} not taken, {self._giver.never_ended} never ended"
        if not tasks:
            return
        health.value("turns", f"{tasks} nodes; {vain}")
        if shared:
            health.error("tasks", f"several nodes call their task {', '.join(shared)}: give each another _task")
        else:
            health.clear("tasks")

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(2.0)


def weights_of(text: str) -> Mapping[str, float]:
    """Weights by task from ``people: 2, scene: 1``.

    Raises:
        BadInput: it does not say that.
    """
    weights = {}
    for part in filter(None, (one.strip() for one in text.strip("{} ").split(","))):
        name, colon, number = part.partition(":")
        try:
            weights[name.strip()] = float(number) if colon else math.nan
        except ValueError:
            weights[name.strip()] = math.nan
        if not 0 <= weights[name.strip()] < 1e6:
            raise BadInput(f"weights {text!r}", remedy="write, for example, people: 2, scene: 1")
    return weights
