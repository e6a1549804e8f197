"""The executor process: one session of the virtual device behind a socket that its parent made.

``python -m edge_offload.capture.worker FD`` serves messages until the parent hangs up. A crash here (a kernel that
faults, memory that runs out) ends this session and no other.
"""

from __future__ import annotations

import argparse
import socket
import sys
from typing import List, Optional

from edge_offload.capture.channel import Channel
from edge_offload.errors import LinkLost


def serve_forever(channel: Channel, device: str, threads: int, storage_bytes: int) -> None:
    """Answer messages in order until the parent hangs up."""
    import torch

    from edge_offload.capture.executor import DeviceSession, Limits
    from edge_offload.capture.messages import serve

    if threads:
        torch.set_num_threads(threads)
    session = DeviceSession(device, Limits(storage_bytes=storage_bytes))
    channel.send({"ready": torch.__version__})
    while True:
        try:
            header, buffers = channel.receive()
        except LinkLost:
            return
        channel.send({"id": header["id"]}, serve(session, buffers))


def main(argv: Optional[List[str]] = None) -> int:
    """Parse the command line of the process and serve."""
    parser = argparse.ArgumentParser(prog="edge_offload.capture.worker", description=__doc__)
    parser.add_argument("fd", type=int, help="inherited socket")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's choice")
    parser.add_argument("--storage-bytes", type=int, default=8 << 30, help="most bytes that tensors may hold")
    args = parser.parse_args(argv)
    channel = Channel(socket.socket(fileno=args.fd))
    try:
        serve_forever(channel, args.device, args.threads, args.storage_bytes)
    except LinkLost:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
