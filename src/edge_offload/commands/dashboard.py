"""Show a run in the browser: pictures, latency by stage, mode and why, bandwidth, power, server load, events.

Without a file it shows the present run, from ROS topics (source devel/setup.bash first). With a file it plays a
recorded run, at the original speed or faster. A file that is still being written, or '-' for standard input, is
followed.

Examples:
  edge-offload dashboard                              the present run: http://127.0.0.1:8765/
  edge-offload dashboard runs/last.jsonl --speed 4    a recorded run, four times as fast
  edge-offload dashboard walk.bag                     the same from a bag
  tail -f run.jsonl | edge-offload dashboard -        a stream of records
  edge-offload dashboard --host 0.0.0.0 --token-file ~/dashboard.token

It listens on loopback. From another machine: ssh -L 8765:127.0.0.1:8765 robot, then http://127.0.0.1:8765/. Any other
address needs a token, which the page asks for. The token is read from a file or from EDGE_OFFLOAD_DASHBOARD_TOKEN. It
is no option, because every user of the machine can read command lines.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys
import threading
from typing import Any, Iterator, Tuple

from edge_offload.errors import BadInput, EdgeOffloadError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("run_file", nargs="?", metavar="RUN", help="a run's .jsonl or .bag; '-': standard input")
    parser.add_argument("--port", type=int, default=8765, help="TCP port; 0: any free (8765)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--token-file", default="", metavar="FILE", help="file with the token that visitors have to enter"
    )
    parser.add_argument("--name", action="append", default=[], help="host name that visitors use for this machine")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="speed of a recorded run: 1 original, 2 twice as fast, 0 at once (1)"
    )
    parser.add_argument("--loop", action="store_true", help="play a file again and again")
    parser.add_argument("--follow", action="store_true", help="wait for more records at the end of a .jsonl file")
    parser.add_argument("--namespace", default="", help="namespace of the robot, in a bag with several robots")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    if not 0 <= args.port <= 65535:
        raise BadInput(f"--port {args.port} is no TCP port")
    if not 0 <= args.speed <= 1000:
        raise BadInput(f"--speed {args.speed:g} is not between 0 and 1000")
    return _live(args) if args.run_file is None else _play(args)


def _live(args: argparse.Namespace) -> int:
    try:
        from edge_offload.nodes.common.base import run_node
        from edge_offload.nodes.monitor.dashboard_node import NODE
    except ImportError as error:
        raise EdgeOffloadError(
            f"no ROS here ({error})", remedy="source devel/setup.bash first, or give the file of a run"
        ) from error
    given = {"port": args.port, "host": args.host, "token_file": args.token_file, "names": ",".join(args.name)}
    # the node takes its parameters as rosrun would give them; an empty value would be read as YAML's null
    sys.argv = ["dashboard_node", *(f"_{name}:={value}" for name, value in given.items() if value != "")]
    return run_node(NODE)


def _play(args: argparse.Namespace) -> int:
    from edge_offload.dashboard.access import Access, read_token
    from edge_offload.dashboard.bag import is_bag, open_run
    from edge_offload.dashboard.history import History
    from edge_offload.dashboard.server import DashboardServer
    from edge_offload.dashboard.source import Player
    from edge_offload.dashboard.stream import Reading, Record, read_lines

    standard_input = args.run_file == "-"
    path = pathlib.Path(args.run_file)
    if not standard_input and not path.is_file():
        raise BadInput(f"no file {path}", remedy="give the .jsonl file or the bag of a run")
    if args.loop and (standard_input or args.follow):
        raise BadInput("--loop needs a file that is complete")
    if args.follow and is_bag(path):
        raise BadInput("a bag cannot be followed", remedy="play its topics, or follow the run's .jsonl")
    if not standard_input and not args.follow:
        next(open_run(path, args.namespace)[0], None)  # what cannot be read at all is told here, not in the page
    history = History()

    def records(player: Player) -> Tuple[Iterator[Record], Reading]:
        if not (standard_input or args.follow):
            return open_run(path, args.namespace)
        reading = Reading()
        if standard_input:
            return read_lines(sys.stdin, reading), reading
        return read_lines(path.open(encoding="utf-8", errors="replace"), reading, lambda: player.pause(0.2)), reading

    live = standard_input or args.follow
    title = "standard input" if standard_input else path.name
    player = Player(title, records, history, 0.0 if live else args.speed, args.loop)
    access = Access(args.host, read_token(args.token_file), args.name)
    server = DashboardServer(history, player, access, args.host, args.port).start()
    print(f"{title}: {server.url}", flush=True)
    _wait_for_stop(player, server)
    return 0


def _wait_for_stop(player: Any, server: Any) -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    player.start()
    stop.wait()
    server.close()
    player.close()
