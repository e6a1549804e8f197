"""A server process for the tests: echoes requests; prints its address as one JSON line; lives until it is killed."""

import argparse
import json
import sys
import time

from edge_offload.link.transport.gate import Bounds
from edge_offload.link.transport.listener import Listener
from edge_offload.link.transport.messages import Limits
from edge_offload_benchmarks.ports import lasting_port


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bind", default=f"tcp://127.0.0.1:{lasting_port()}")
    parser.add_argument("--max-message-mib", type=int, default=64)
    parser.add_argument("--max-connections", type=int, default=64)
    parser.add_argument("--hello-timeout-s", type=float, default=60.0)
    parser.add_argument("--clock-offset-s", type=float, default=0.0)
    args = parser.parse_args()

    def handle(request):
        if request.kind == "counters":
            request.reply({"counters": {str(key): count for key, count in listener.counters.items()}})
        elif request.kind != "ignore":
            request.reply(request.body, request.buffers)

    listener = Listener(
        args.bind,
        welcome=lambda peer, hello: {},
        handle=handle,
        limits=Limits(max_message_bytes=args.max_message_mib << 20),
        bounds=Bounds(60.0, args.hello_timeout_s, args.max_connections),
        clock=lambda: time.monotonic() + args.clock_offset_s,
    )
    with listener:
        print(json.dumps({"address": listener.address}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
