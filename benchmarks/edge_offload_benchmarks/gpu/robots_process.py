"""Up to eight robots of phase ``robots``, a thread each: they begin at a line on standard input.

Usage: python -m edge_offload_benchmarks.gpu.robots_process --address A --root DIR --model M --names a,b --seconds S
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import threading
import time
from typing import Any, Dict

from edge_offload.errors import LinkLost
from edge_offload.execute.tensors import pack_tensors, specs_of
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload_benchmarks.gpu.networks import make_inputs
from edge_offload_benchmarks.gpu.served import wire_name

#: Attempts to open the model.
OPENINGS = 5


class Robots:
    """The robots of this process.

    Attributes:
        results: by robot: seconds of its frames, seconds that the server computed, and counts of failures.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        given = make_inputs(args.model, 4)
        self._packed = [pack_tensors(frame, "raw") for frame in given]
        self._open: Dict[str, Any] = {
            "name": wire_name(args.model),
            "options": {},
            "state_hash": None,
            "inputs": [spec.to_dict() for spec in specs_of(given[0])],
        }
        self._begin, self._ready = threading.Event(), threading.Semaphore(0)
        self.results: Dict[str, Dict[str, Any]] = {}

    def run(self) -> None:
        """Connect, print ``ready``, wait for a line, and send frames."""
        names = self._args.names.split(",")
        threads = [threading.Thread(target=self._run_robot, args=(name,), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for _ in names:
            self._ready.acquire()
        print("ready", flush=True)
        sys.stdin.readline()
        self._begin.set()
        for thread in threads:
            thread.join()

    def _open_model(self, client: Client) -> int:
        """Open the model; again, as a robot does, where the server is busy for so long that the link counts as lost."""
        for attempts_remaining in reversed(range(OPENINGS)):
            client.wait_ready(60.0)
            try:
                return int(client.request("open_model", self._open, timeout_s=120.0).result(120.0).body["handle"])
            except LinkLost:
                if not attempts_remaining:
                    raise
        raise AssertionError

    def _run_robot(self, name: str) -> None:
        facts: Dict[str, Any] = {"seconds": [], "server_s": [], "failed": {}}
        self.results[name] = facts
        with Client(self._args.address, keys=KeyStore(pathlib.Path(self._args.root) / name)) as client:
            handle = self._open_model(client)
            self._ready.release()
            self._begin.wait()
            ends, number = time.monotonic() + self._args.seconds, 0
            while time.monotonic() < ends:
                descriptors, buffers = self._packed[number % len(self._packed)]
                number += 1
                body = {"handle": handle, "inputs": descriptors, "codec": "raw", "wait_s": 10.0, "meta": {}}
                started_at = time.monotonic()
                try:
                    reply = client.request("infer", body, buffers, timeout_s=20.0).result(20.0)
                    facts["seconds"].append(time.monotonic() - started_at)
                    facts["server_s"].append(reply.body["compute_s"])
                except Exception as error:
                    text = f"{type(error).__name__}: {str(error)[:80]}"
                    facts["failed"][text] = facts["failed"].get(text, 0) + 1
                    time.sleep(0.01)


def main() -> None:
    """Run the robots, and print their results as JSON."""
    parser = argparse.ArgumentParser()
    for name in ("--address", "--root", "--model", "--names"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    robots = Robots(parser.parse_args())
    robots.run()
    print(json.dumps(robots.results), flush=True)


if __name__ == "__main__":
    main()
