"""Many robots on one server: how evenly they are served, and whether the server grows.

One server process; robots are emulated in another process, each with a key of its own and no torch: they send random
pictures as fast as they are answered, two at a time, so the server works at its capacity. The first robot is greedy: it
has four connections. Fairness is per robot, not per connection.

  edge-offload bench robots                        10 robots, 20 s
  edge-offload bench robots --seconds 600 --json robots.json

served: answers per robot. ratio: most / least. memory growth: of the server's resident memory, from a fifth of the time
to the end.
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
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    from edge_offload.chaos.rig import Process

CONNECTIONS_OF_GREEDY = 4
WAIT_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--robots", type=int, default=10, metavar="N", help="emulated robots (10)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of load (20)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the record robots_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if not 1 <= args.robots <= 50 or args.seconds <= 0:
        raise BadInput("--robots is 1 to 50, --seconds positive")
    record = measure(args.robots, args.seconds)
    served = record["served"]
    print(f"{record['answers_per_s']:.0f} answers/s to {len(served)} robots: {min(served)} to {max(served)} each")
    print(f"most / least {record['ratio']:.2f}; refused {record['refused']}, failed {record['failed']}")
    print(f"server memory {record['memory_begin'] / 1e6:.0f} MB, growth {record['memory_growth']:+.1%}")
    if args.json is not None:
        records.write(args.json, "robots_bench", record)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


def measure(robots: int, seconds: float) -> Dict[str, Any]:
    """Run server and robots."""
    from edge_offload.chaos.rig import Process
    from edge_offload.chaos.robot import MODEL
    from edge_offload.link.keys import KeyStore

    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        server_keys = KeyStore(root / "server")
        public = server_keys.new_pair("server").public
        for number in range(robots):
            server_keys.trust_client(f"robot{number}", KeyStore(root / f"robot{number}").new_pair("client").public)
        words = [sys.executable, "-m", "edge_offload.cli", "serve", "--bind", "tcp://127.0.0.1:0", "--threads", "1"]
        server = Process([*words, "--keys", str(root / "server"), "--allow", MODEL])
        load = None
        try:
            address = server.wait_line("listening on ").split()[2]
            for number in range(robots):
                KeyStore(root / f"robot{number}").trust_server(address, public)
            arguments = [address, directory, str(robots), str(seconds), MODEL]
            load = Process([sys.executable, "-m", "edge_offload.bench.robots", *arguments])
            load.wait_line("loaded")
            memory = _watch(server, load, seconds)
            told = json.loads(load.wait_line("{"))
            load.end()
        finally:
            for process in (load, server):
                if process is not None:
                    process.kill()
    early = statistics.median(memory[len(memory) // 5 : len(memory) // 5 + 5])
    late = statistics.median(memory[-5:])
    served = told["served"]
    return {
        "robots": robots,
        "seconds": seconds,
        "served": served,
        "answers_per_s": sum(served) / seconds,
        "ratio": max(served) / max(1, min(served)),
        "refused": told["refused"],
        "failed": told["failed"],
        "memory_begin": early,
        "memory_end": late,
        "memory_growth": late / early - 1,
    }


def _watch(server: Process, load: Process, seconds: float) -> List[int]:
    import psutil

    process = psutil.Process(server.process.pid)
    memory: List[int] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or not memory:
        memory.append(process.memory_info().rss)
        time.sleep(min(1.0, seconds / 20))
    return memory


def _load(address: str, directory: str, robots: int, seconds: float, model: str) -> None:
    """The robots, in a process without torch."""
    import numpy as np

    from edge_offload.errors import EdgeOffloadError
    from edge_offload.link import codecs
    from edge_offload.link.client import Client
    from edge_offload.link.keys import KeyStore

    picture = np.random.RandomState(1).randint(0, 256, (3, 96, 96), dtype=np.uint8)
    spec = {"dtype": "uint8", "shape": list(picture.shape)}
    coded = codecs.encode(picture)
    descriptor = {**spec, "payload": coded.descriptor, "parts": len(coded.buffers)}
    counts: Counter = Counter()
    clients, handles = [], []
    for number in range(robots):
        for _ in range(CONNECTIONS_OF_GREEDY if number == 0 else 1):
            client = Client(address, keys=KeyStore(pathlib.Path(directory) / f"robot{number}")).start()
            client.wait_ready(WAIT_S)
            opened = client.request("open_model", {"name": model, "inputs": [spec]}, timeout_s=60.0).result(60.0)
            clients.append((number, client))
            handles.append(opened.body["handle"])
    print("loaded", flush=True)
    ends = time.monotonic() + seconds

    def drive(number: int, client: Client, handle: int) -> None:
        body = {"handle": handle, "inputs": [descriptor], "codec": "auto", "wait_s": None, "meta": {}}
        while time.monotonic() < ends:
            try:
                client.request("infer", body, coded.buffers, timeout_s=WAIT_S).result(WAIT_S + 1)
                counts[number] += 1
            except EdgeOffloadError as error:
                counts["refused" if type(error).__name__ == "Refused" else "failed"] += 1
                time.sleep(0.01)

    # two requests at a time, so that one waits at the server while the other is answered
    threads = [
        threading.Thread(target=drive, args=(number, client, handle))
        for (number, client), handle in zip(clients, handles)
        for _ in range(1 if number == 0 else 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "torch" not in sys.modules, "an emulated robot needs no torch"
    served = [counts[number] for number in range(robots)]
    print(json.dumps({"served": served, "refused": counts["refused"], "failed": counts["failed"]}), flush=True)
    for _, client in clients:
        client.close()


if __name__ == "__main__":
    _load(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
