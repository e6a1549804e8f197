"""Show a run on the terminal: frames, latency by stage in milliseconds, link, energy, server, what happened.

Without a file it shows what runs now, from ROS's topics (source devel/setup.bash first), until Ctrl-C. On a terminal it
redraws; into a pipe or a file it writes one line an interval.

Examples:
  edge-offload top                           what runs now
  edge-offload top --once                    the last seconds, once
  edge-offload top runs/last.jsonl           how a run ended, from its file or bag
  edge-offload top --interval 5 >> run.log   a line every 5 s
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import sys
import time

from edge_offload.errors import BadInput, EdgeOffloadError

CLEAR = "\x1b[H\x1b[J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("run_file", nargs="?", metavar="RUN", help="a run's .jsonl or .bag")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    parser.add_argument("--window", type=float, default=30.0, metavar="S", help="seconds of frames that count (30)")
    parser.add_argument("--once", action="store_true", help="look for two intervals, print, and end")
    parser.add_argument("--namespace", default="", help="of the robot: in a bag, or on the topics")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    if not 0.1 <= args.interval <= 3600:
        raise BadInput(f"--interval {args.interval:g} is not between 0.1 and 3600 seconds")
    if not 1 <= args.window <= 86400:
        raise BadInput(f"--window {args.window:g} is not between 1 and 86400 seconds")
    return _live(args) if args.run_file is None else _file(args)


def _file(args: argparse.Namespace) -> int:
    from edge_offload.dashboard.bag import open_run
    from edge_offload.dashboard.terminal import TerminalView

    path = pathlib.Path(args.run_file)
    if not path.is_file():
        raise BadInput(f"no file {path}", remedy="give the .jsonl file or the bag of a run")
    newest = 0.0
    view = TerminalView(args.window, lambda: newest)
    for record in open_run(path, args.namespace)[0]:
        newest = max(newest, record["t_s"])
        view.put(record)
    print("\n".join(view.lines(_width())))
    return 0


def _live(args: argparse.Namespace) -> int:
    if args.namespace:
        os.environ["ROS_NAMESPACE"] = "/" + args.namespace.strip("/")  # rospy looks at it when it is imported
    try:
        import rosgraph
        import rospy

        from edge_offload.nodes.monitor.run_topics import RunTopics
    except ImportError as error:
        raise EdgeOffloadError(
            f"no ROS here ({error})", remedy="source devel/setup.bash first, or give the file of a run"
        ) from error
    from edge_offload.dashboard.terminal import TerminalView, summary_line

    if not rosgraph.is_master_online():
        raise EdgeOffloadError(
            f"no ROS master at {rosgraph.get_master_uri()}",
            remedy="start a launch file, or set ROS_MASTER_URI; a run that is over: edge-offload top runs/last.jsonl",
        )
    rospy.init_node("top", argv=[], anonymous=True, disable_signals=True)
    view = TerminalView(args.window)
    topics = RunTopics(view.put, lambda callback: callback)
    waiting = f": nothing comes on {topics.names['latency']}"
    redraws = sys.stdout.isatty() and not args.once
    try:
        for turn in range(1 << 62):
            time.sleep(args.interval)
            if args.once and not turn:
                continue
            lines = view.lines(_width(), waiting)
            if args.once or redraws:
                head = f"edge_offload  {time.strftime('%H:%M:%S')}  the last {args.window:g} s; Ctrl-C ends"
                print((CLEAR + head + "\n\n" if redraws else "") + "\n".join(lines), flush=True)
            else:
                print(f"{time.strftime('%H:%M:%S')} {summary_line(lines)}", flush=True)
            if args.once:
                break
            if not rosgraph.is_master_online():
                raise EdgeOffloadError(f"the ROS master at {rosgraph.get_master_uri()} is gone")
    except (KeyboardInterrupt, BrokenPipeError):
        print()
    finally:
        topics.close()
    return 0


def _width() -> int:
    return shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else 200
