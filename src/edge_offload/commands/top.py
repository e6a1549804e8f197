"""Show a run on the terminal: frames, latency by stage (ms), link, energy, server and events.

Without a file it shows the present run, from ROS topics (source devel/setup.bash first), until Ctrl-C. A terminal is
redrawn; a pipe or a file gets one line per interval.

Examples:
  edge-offload top                           the present run
  edge-offload top --once                    its last seconds, once
  edge-offload top runs/last.jsonl           the end of a recorded run (file or bag)
  edge-offload top --interval 5 >> run.log   a line every 5 s
  edge-offload top --progress 10             the progress of each network, every 10 s, as launch files print it
"""

from __future__ import annotations

import argparse
import os
import pathlib

from edge_offload.errors import BadInput, EdgeOffloadError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("run_file", nargs="?", metavar="RUN", help="a run's .jsonl or .bag")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two updates (1)")
    parser.add_argument(
        "--window", type=float, default=30.0, metavar="S", help="seconds of frames that are counted (30)"
    )
    parser.add_argument("--once", action="store_true", help="watch for two intervals, print, and end")
    parser.add_argument("--progress", type=float, metavar="S", help="print only the progress, every S seconds")
    parser.add_argument("--namespace", default="", help="namespace of the robot, in a bag or of the topics")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    if not 0.1 <= args.interval <= 3600:
        raise BadInput(f"--interval {args.interval:g} is not between 0.1 and 3600 seconds")
    if not 1 <= args.window <= 86400:
        raise BadInput(f"--window {args.window:g} is not between 1 and 86400 seconds")
    if args.progress is not None and not 0.1 <= args.progress <= 86400:
        raise BadInput(f"--progress {args.progress:g} is not between 0.1 and 86400 seconds")
    if args.progress is not None and args.run_file is not None:
        raise BadInput("--progress is of what runs now", remedy="leave the file out")
    return _live(args) if args.run_file is None else _file(args)


def _file(args: argparse.Namespace) -> int:
    from edge_offload.dashboard.bag import open_run
    from edge_offload.dashboard.terminal import TerminalView, terminal_width

    path = pathlib.Path(args.run_file)
    if not path.is_file():
        raise BadInput(f"no file {path}", remedy="give the .jsonl file or the bag of a run")
    newest = 0.0
    view = TerminalView(args.window, lambda: newest)
    for record in open_run(path, args.namespace)[0]:
        newest = max(newest, record["t_s"])
        view.put(record)
    print("\n".join(view.render_lines(terminal_width())))
    return 0


def _live(args: argparse.Namespace) -> int:
    if args.namespace:
        os.environ["ROS_NAMESPACE"] = "/" + args.namespace.strip("/")  # rospy looks at it when it is imported
    try:
        from edge_offload.nodes.monitor.terminal_watch import print_progress, watch_rates
    except ImportError as error:
        raise EdgeOffloadError(
            f"no ROS here ({error})", remedy="source devel/setup.bash first, or give the file of a run"
        ) from error
    if args.progress is not None:
        print_progress(args.progress)
        return 0
    watch_rates(args.interval, args.window, args.once)
    return 0
