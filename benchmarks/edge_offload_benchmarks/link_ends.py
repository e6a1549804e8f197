"""The two ends of ``bench levels``, processes of their own: a server that echoes, and a robot that tells what it sees.

The robot's lines of JSON have ``t`` (monotonic seconds) and one of ``state``, ``frame`` (seconds of a round trip, null:
it failed) and ``up`` (estimated bytes per second, with ``down``, and ``quiet``, the longest wait for a sign of life
since the last such line).
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.listener import Listener
from edge_offload.link.transport.prober import Prober

READ_S = 0.05


def main() -> None:
    """Run one end until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=("server", "robot"))
    parser.add_argument("address")
    parser.add_argument("keys")
    parser.add_argument("--up-bytes", type=int, default=200_000)
    parser.add_argument("--down-bytes", type=int, default=40_000)
    parser.add_argument("--fps", type=float, default=10.0)
    args = parser.parse_args()
    keys = KeyStore(args.keys)
    if args.end == "server":
        answer = bytes(args.down_bytes)
        with Listener(
            args.address, welcome=lambda *_: {}, handle=lambda request: request.reply({}, [answer]), keys=keys
        ):
            _print_record(state="listening")
            sys.stdin.read()
        return
    stop = threading.Event()
    with Client(args.address, keys=keys, on_state=lambda state, cause: _print_record(state=state.value)) as client:
        prober = Prober(client).start()
        threads = [
            threading.Thread(target=_send_frames, args=(client, args.up_bytes, args.fps, stop), daemon=True),
            threading.Thread(target=_read_levels, args=(client, stop), daemon=True),
        ]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
        prober.close()


_lock = threading.Lock()


def _print_record(**what: Any) -> None:
    with _lock:
        print(json.dumps({"t": time.monotonic(), **what}), flush=True)


def _send_frames(client: Client, size: int, fps: float, stop: threading.Event) -> None:
    payload = bytes(size)
    while not stop.is_set():
        started_at = time.monotonic()
        try:
            client.request("frame", {}, [payload], timeout_s=5.0).result()
            _print_record(frame=time.monotonic() - started_at)
        except EdgeOffloadError:
            _print_record(frame=None)
        stop.wait(max(0.005, 1 / fps - (time.monotonic() - started_at)))


def _read_levels(client: Client, stop: threading.Event) -> None:
    while not stop.is_set():
        with client.attend() as attention:
            stop.wait(READ_S * 10)
            quiet = max(attention.longest_s, attention.quiet_s(time.monotonic()))
        reading = client.estimator.make_reading(time.monotonic())
        _print_record(up=reading.uplink, down=reading.downlink, quiet=quiet)


if __name__ == "__main__":
    main()
