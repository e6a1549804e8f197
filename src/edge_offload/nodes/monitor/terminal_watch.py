"""Shows on the terminal what runs now, from ROS's topics: ``edge-offload top`` without a file."""

from __future__ import annotations

import sys
import time
from typing import List

import rosgraph
import rospy

from edge_offload.dashboard.terminal import TerminalView, columns, summary_line
from edge_offload.errors import EdgeOffloadError
from edge_offload.nodes.monitor.run_topics import RunTopics

CLEAR = "\x1b[H\x1b[J"


def watch(interval_s: float, window_s: float, once: bool) -> None:
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
            _print(view.lines(columns(), f": nothing comes on {topics.names['latency']}"), window_s, once)
            if once:
                break
            if not rosgraph.is_master_online():
                raise EdgeOffloadError(f"the ROS master at {rosgraph.get_master_uri()} is gone")
    except (KeyboardInterrupt, BrokenPipeError):
        print()
    finally:
        topics.close()


def _print(lines: List[str], window_s: float, once: bool) -> None:
    redraws = sys.stdout.isatty() and not once
    if once or redraws:
        head = f"edge_offload  {time.strftime('%H:%M:%S')}  the last {window_s:g} s; Ctrl-C ends"
        print((f"{CLEAR}{head}\n\n" if redraws else "") + "\n".join(lines), flush=True)
    else:
        print(f"{time.strftime('%H:%M:%S')} {summary_line(lines)}", flush=True)
