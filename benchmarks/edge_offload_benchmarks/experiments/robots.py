"""Many robots on one server: how evenly they are served, and whether the server grows.

One server process; robots are emulated in another process, each with a key of its own and no torch: they send random
pictures as fast as they are answered, two at a time, so the server works at its capacity. The first robot is greedy: it
has four connections. Fairness is per robot, not per connection.

  edge-offload bench robots                        10 robots, 20 s
  edge-offload bench robots --full --json robots.json     10 minutes
  edge-offload bench robots --mode replay --robots 2 5 10 --json robots_modes.json
                                                   real networks in one mode, a process each; --mode split likewise
  edge-offload bench robots --front                frames of 250 kB per core of a front: decrypt, check, decode, answer

served: answers per robot. ratio: most / least. memory growth: of the server's resident memory, from a fifth of the
time to the end. A robot whose connection breaks opens its model again on the next one; every break is counted with its
reason. Ends with 1 if anything failed, if the most served robot got more than 1.2 times as much as the least, or if
the server grew by more than 2 %, or held more sockets or threads than at the beginning (--front: without the ratio).
With --mode each robot runs frame after frame for --seconds once all have learnt and planned; results are compared with
what the robot computes itself: bit for bit, or for split within 1e-4 of the largest value. Ends with 1 where that, or
the ratio, is not met, or a frame fell back to the robot. The ratio is of those whose plan of split does not leave all
to the robot.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Any, Dict, List

from edge_offload.outputs import add_output

CONNECTIONS_OF_GREEDY = 4
WAIT_S = 30.0
FULL_S = 600.0
#: Pixels of a side of the pictures; with --front: 248,832 bytes each, for a network that computes nothing.
SIDE, FRONT_SIDE = 96, 288
FRONT = "edge_offload_benchmarks.chaos.net:nothing"
MAX_RATIO, MAX_GROWTH = 1.2, 0.02
#: Sockets and threads that may come and go in the server.
SLACK = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--robots", type=int, nargs="+", default=[10], metavar="N", help="robots (10)")
    parser.add_argument("--mode", choices=("server", "replay", "split"), help="real networks, in this mode")
    parser.add_argument("--model", default="kapao_vtest", help="with --mode: the network (kapao_vtest)")
    parser.add_argument("--reference", choices=("cpu", "cuda"), default="cpu",
                        help="with --mode: compare with the robot's CPU, or with plain CUDA on this machine's GPU, "
                        "where the server computes as well (cpu)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of load (20)")
    parser.add_argument("--full", action="store_true", help=f"{FULL_S:g} s of load")
    parser.add_argument("--front", action="store_true", help="frames of 250 kB a second and core of the server")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record robots_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if not all(1 <= robots <= 50 for robots in args.robots) or args.seconds <= 0:
        raise BadInput("--robots is 1 to 50, --seconds positive")
    if args.mode is not None:
        return _run_mode(args)
    if len(args.robots) > 1:
        raise BadInput("several numbers of robots are for --mode")
    record = measure_robots(args.robots[0], FULL_S if args.full else args.seconds, args.front)
    served, latency = record["served"], record["latency_s"]
    print(f"{record['answers_per_s']:.0f} answers/s to {len(served)} robots: {min(served)} to {max(served)} each")
    print(f"latency p50 {latency['p50'] * 1e3:.0f} ms, p99 {latency['p99'] * 1e3:.0f} ms")
    print(f"most / least {record['ratio']:.2f}; refused {record['refused']}, failed {record['failed']}")
    for reason, count in record["failures"].items():
        print(f"  {count} x {reason}")
    print(f"server memory {record['memory_begin'] / 1e6:.0f} MB, growth {record['memory_growth']:+.1%}; "
          f"{record['server_begin']['sockets']} to {record['server_end']['sockets']} sockets, "
          f"{record['server_begin']['threads']} to {record['server_end']['threads']} threads")  # fmt: skip
    if args.front:
        print(f"{1e3 * record['cpu_s']:.2f} ms of the server's processor a frame of {record['frame_bytes']} bytes: "
              f"{1 / record['cpu_s']:.0f} frames per second and core")  # fmt: skip
    if args.json is not None:
        records.write(args.json, "robots_bench", record)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0 if record["passed"] else 1


def _run_mode(args: argparse.Namespace) -> int:
    """One mode, with every number of robots."""
    from edge_offload import records
    from edge_offload.execute import devices, heap
    from edge_offload_benchmarks.held_robots import load_together, show_record

    if args.reference == "cuda" and not heap.LAUNCHER:
        devices.pick_device("cuda")
    passed = True
    for robots in args.robots:
        record = load_together(args.mode, args.model, robots, FULL_S if args.full else args.seconds, args.reference)
        show_record(record)
        passed &= record["passed"]
        if args.json is not None:
            keys = ("mode", "model", "robots")
            others = [item for item in records.read_list(args.json, "held_robots")
                      if any(item[key] != record[key] for key in keys)]  # fmt: skip
            records.write(args.json, "held_robots", [*others, record])
            print(f"wrote {args.json}", file=sys.stderr)
    return 0 if passed else 1


def measure_robots(robots: int, seconds: float, front: bool = False) -> Dict[str, Any]:
    """Run server and robots; ``front``: with large pictures for a network that computes nothing."""
    import psutil

    from edge_offload_benchmarks.chaos.robot import MODEL
    from edge_offload_benchmarks.processes import Process, Server, introduce_robots

    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        public, stores = introduce_robots(root, [f"robot{number}" for number in range(robots)])
        with Server("--keys", str(root / "server"), "--allow", MODEL, "--allow", FRONT) as server:
            for store in stores.values():
                store.trust_server(server.address, public)
            model, side = (FRONT, FRONT_SIDE) if front else (MODEL, SIDE)
            arguments = [server.address, directory, str(robots), str(seconds), model, str(side)]
            with Process([sys.executable, "-m", "edge_offload_benchmarks.experiments.robots", *arguments]) as load:
                load.wait_line("loaded")
                cpu_before = psutil.Process(server.pid).cpu_times()
                watched = _sample_process(server.pid, seconds)
                answer = json.loads(load.wait_line("{"))
                ended = psutil.Process(server.pid).cpu_times()
                load.end()
    cpu_s = ended.user + ended.system - cpu_before.user - cpu_before.system
    memory = [moment["memory"] for moment in watched]
    fifth = len(memory) // 5
    early, late = statistics.median(memory[fifth : fifth + 5]), statistics.median(memory[-5:])
    served = answer["served"]
    begin, end = watched[fifth], watched[-1]
    ratio, growth = max(served) / max(1, min(served)), late / early - 1
    fair = front or ratio <= MAX_RATIO  # with --front the robots' own process is what they wait for
    stable = all(end[name] <= begin[name] + SLACK for name in ("sockets", "threads"))
    return {
        "robots": robots,
        "seconds": seconds,
        "passed": not answer["failed"] and fair and growth <= MAX_GROWTH and stable,
        "served": served,
        "answers_per_s": sum(served) / seconds,
        "frame_bytes": 3 * side * side,
        "cpu_s": cpu_s / max(1, sum(served)),
        "latency_s": answer["latency_s"],
        "ratio": ratio,
        "refused": answer["refused"],
        "failed": answer["failed"],
        "failures": answer["failures"],
        "memory_begin": early,
        "memory_end": late,
        "memory_growth": growth,
        "server_begin": begin,
        "server_end": end,
    }


def _sample_process(pid: int, seconds: float) -> List[Dict[str, int]]:
    from edge_offload_benchmarks.chaos.usage import read_usage

    watched: List[Dict[str, int]] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends - 0.5 or not watched:  # the last moment is one under load
        watched.append(read_usage(pid))
        time.sleep(min(1.0, seconds / 20))
    return watched


class _Robot:
    """One connection of an emulated robot, and the model that it has opened there."""

    def __init__(self, client: Any, model: str, spec: Dict[str, Any]) -> None:
        self._client = client
        self._open = {"name": model, "inputs": [spec]}
        self._lock = threading.Lock()
        self._handle = 0
        self._connection = -1

    def open_handle(self) -> int:
        """Return the handle of the model, which is reopened after a reconnection."""
        with self._lock:
            self._client.wait_ready(WAIT_S)
            connection = self._client.counters["connections"]
            if connection != self._connection:
                opened = self._client.request("open_model", self._open, timeout_s=WAIT_S).result(WAIT_S + 1)
                self._handle, self._connection = opened.body["handle"], connection
            return self._handle

    def infer(self, body: Dict[str, Any], buffers: List[Any]) -> None:
        """One picture."""
        body = {**body, "handle": self.open_handle()}
        self._client.request("infer", body, buffers, timeout_s=WAIT_S).result(WAIT_S + 1)


def _run_robots(address: str, directory: str, robots: int, seconds: float, model: str, side: int) -> None:
    """The robots, in a process without torch."""
    import numpy as np

    from edge_offload import records
    from edge_offload.errors import EdgeOffloadError, Refused
    from edge_offload.link import codecs
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client

    picture = np.random.RandomState(1).randint(0, 256, (3, side, side), dtype=np.uint8)
    spec = {"dtype": "uint8", "shape": list(picture.shape)}
    coded = codecs.encode(picture)
    descriptor = {**spec, "payload": coded.descriptor, "parts": len(coded.buffers)}
    body: Dict[str, Any] = {"inputs": [descriptor], "codec": "auto", "wait_s": None, "meta": {}}
    counts: Counter[Any] = Counter()
    failures: Counter[Any] = Counter()
    latency_s: List[float] = []
    clients, robots_ = [], []
    for number in range(robots):
        for _ in range(CONNECTIONS_OF_GREEDY if number == 0 else 1):
            client = Client(address, keys=KeyStore(pathlib.Path(directory) / f"robot{number}")).start()
            robot = _Robot(client, model, spec)
            robot.open_handle()
            clients.append(client)
            robots_.append((number, robot))
    print("loaded", flush=True)
    ends = time.monotonic() + seconds

    def drive_robot(number: int, robot: _Robot) -> None:
        while time.monotonic() < ends:
            started_s = time.monotonic()
            try:
                robot.infer(body, coded.buffers)
                counts[number] += 1
                latency_s.append(time.monotonic() - started_s)
            except EdgeOffloadError as error:
                refused = isinstance(error, Refused)
                counts["refused" if refused else "failed"] += 1
                if not refused:
                    failures[str(error)[:200]] += 1
                time.sleep(0.01)

    # two requests at a time, so that one waits at the server while the other is answered
    threads = [
        threading.Thread(target=drive_robot, args=(number, robot))
        for number, robot in robots_
        for _ in range(1 if number == 0 else 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "torch" not in sys.modules, "an emulated robot needs no torch"
    answer = {
        "served": [counts[number] for number in range(robots)],
        "latency_s": records.latency_summary(latency_s),
        "refused": counts["refused"],
        "failed": counts["failed"],
        "failures": dict(failures),
    }
    print(json.dumps(answer), flush=True)
    for client in clients:
        client.close()


if __name__ == "__main__":
    _run_robots(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
