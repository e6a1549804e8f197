"""Shows the present run on the terminal from ROS topics, and its progress: ``edge-offload top`` without a file."""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, List

import rosgraph
import rospy

from edge_offload.dashboard.progress import PROGRESS, results_line, waiting_line
from edge_offload.dashboard.terminal import TerminalView, summary_line, terminal_width
from edge_offload.errors import EdgeOffloadError
from edge_offload.nodes.monitor.run_topics import RunTopics
from edge_offload_msgs.msg import Latency


def watch_rates(interval_s: float, window_s: float, once: bool) -> None:
    """Print every ``interval_s`` what the last ``window_s`` brought, until Ctrl-C; with ``once`` after two intervals.

    Raises:
        EdgeOffloadError: there is no ROS master, or it goes away.
    """
    if not rosgraph.is_master_online():
        raise EdgeOffloadError(
            f"no ROS master at {rosgraph.get_master_uri()}",
            remedy="start a launch file, or set ROS_MASTER_URI; a run that is over: edge-offload top runs/last.jsonl",
        )
    rospy.init_node("top", argv=[], anonymous=True, disable_signals=True)
    view = TerminalView(window_s)
    topics = RunTopics(view.put, lambda callback: callback)
    try:
        time.sleep(interval_s if once else 0)
        while True:
            time.sleep(interval_s)
            _print_rates(
                view.render_lines(terminal_width(), f": nothing comes on {topics.names['latency']}"), window_s, once
            )
            if once:
                break
            if not rosgraph.is_master_online():
                raise EdgeOffloadError(f"the ROS master at {rosgraph.get_master_uri()} is gone")
    except (KeyboardInterrupt, BrokenPipeError):
        print()
    finally:
        topics.close()


class Counts:
    """Results of every network, from what they say on offload/latency; times by a monotonic clock."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._first_s: Dict[str, float] = {}
        self._done: Dict[str, int] = {}
        self._last: Dict[str, Any] = {}

    def count_result(self, message: Any, now_s: float) -> None:
        self._first_s.setdefault(message.model, now_s)
        self._done[message.model] = self._done.get(message.model, 0) + 1
        self._last[message.model] = message

    def render_line(self, now_s: float) -> str:
        last = dict(self._last)
        if not last:
            return waiting_line(now_s - self._started_s)
        return "; ".join(
            f"{name}: {results_line(self._done[name], 0, now_s - self._first_s[name], msg.mode, msg.total.to_sec())}"
            for name, msg in sorted(last.items())
        )


def print_progress(every_s: float) -> None:
    """Print a line every ``every_s`` that says how far the networks are, until Ctrl-C or the end of the master.

    Raises:
        EdgeOffloadError: there is no ROS master.
    """
    if not rosgraph.is_master_online():
        raise EdgeOffloadError(f"no ROS master at {rosgraph.get_master_uri()}", remedy="start a launch file")
    rospy.init_node("progress", argv=[], anonymous=True, disable_signals=True)
    counts = Counts(time.monotonic())
    rospy.Subscriber(
        "offload/latency", Latency, lambda message: counts.count_result(message, time.monotonic()), queue_size=200
    )
    try:
        while rosgraph.is_master_online():
            time.sleep(every_s)
            print(f"{PROGRESS}{counts.render_line(time.monotonic())}", flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        pass


def _print_rates(lines: List[str], window_s: float, once: bool) -> None:
    redraws = sys.stdout.isatty() and not once
    if once or redraws:
        head = f"edge_offload  {time.strftime('%H:%M:%S')}  the last {window_s:g} s; Ctrl-C ends"
        print((f"\x1b[H\x1b[J{head}\n\n" if redraws else "") + "\n".join(lines), flush=True)
    else:
        print(f"{time.strftime('%H:%M:%S')} {summary_line(lines)}", flush=True)
