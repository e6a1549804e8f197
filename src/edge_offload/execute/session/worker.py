"""The executor process: one session of the virtual device behind a socket that its parent made.

``python -m edge_offload.execute.session.worker FD`` serves until the parent hangs up. A crash here (a kernel that
faults, memory that runs out) ends this session and no other; the operator that was running is left in a note.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import mmap
import os
import resource
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from edge_offload import background
from edge_offload.errors import BadInput, DeviceLost, EdgeOffloadError, LinkLost, ProtocolError, RemoteError

if TYPE_CHECKING:
    from edge_offload.execute.session.session import DeviceSession
    from edge_offload.ir.trace.calls import Buffer
    from edge_offload.protocol.channel import Channel


def import_all() -> None:
    """Imports what takes a second or two of a processor, at the lowest priority."""
    with background.yielding():
        gc.disable()  # of what is imported nothing is garbage
        # torch first: in a program on the virtual device its import brings our own modules with it
        for name in ("torch", "edge_offload.execute.session.serve", "edge_offload.execute.session.session"):
            importlib.import_module(name)
        # nor later, and to find that takes a tenth of a second of a processor
        gc.freeze()
        gc.enable()


def prepare_imports() -> None:
    """Import everything that a session needs, once in a process; blocks for seconds the first time."""
    if "edge_offload.execute.session.session" not in sys.modules:
        starting = threading.Thread(target=import_all)
        starting.start()
        starting.join()


def make_session(args: argparse.Namespace) -> DeviceSession:
    """The session, with the limits of the command line, which leaves the operator's name where the parent finds it."""
    from edge_offload.execute.session.limits import SessionLimits
    from edge_offload.execute.session.session import DeviceSession

    memory = mmap.mmap(args.note, 0) if args.note >= 0 else None
    limits = SessionLimits(
        storage_bytes=args.storage_bytes, storages=args.storages, segments=args.segments, operators=args.segments
    )
    return DeviceSession(args.device, limits, memory)


def bound_memory(size: int) -> None:
    """Let this process take ``size`` bytes more than it has: an operator that asks for all memory fails by itself."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        mine = int(stream.read().split()[0]) * resource.getpagesize()
    with contextlib.suppress(ValueError, OSError):  # a stricter limit is set already
        resource.setrlimit(resource.RLIMIT_AS, (mine + size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def serve_forever(channel: Channel, args: argparse.Namespace) -> None:
    """Answer messages in order until the parent hangs up.

    Raises:
        DeviceLost: the GPU failed; who asked has been answered so.
    """
    import torch

    from edge_offload.execute import devices, heap
    from edge_offload.execute.session.native_runner import library
    from edge_offload.execute.session.serve import serve_message
    from edge_offload.protocol import payloads
    from edge_offload.protocol.messages import refusal_to_wire

    heap.retain_freed_memory()
    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        with devices.gpu_failures():
            device = torch.device(args.device)
            devices.select_device(device)
            facts = devices.device_facts(device, args.storage_bytes)  # torch says first why there is no GPU
            session = make_session(args)
            if args.device == "cpu":
                # torch and its kernels need 4 GiB besides tensors
                bound_memory(args.storage_bytes + (4 << 30))
            devices.fix_kernel_choice(session.device)
    except LinkLost:
        raise
    except (EdgeOffloadError, RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        channel.send({"failed": str(error) or type(error).__name__})
        raise DeviceLost(f"it did not start: {error}") from error
    channel.send({"ready": torch.__version__, "gpu": facts})
    # what a message leaves is looked for after its answer has gone
    gc.collect()
    gc.freeze()
    gc.disable()
    complete_s = time.monotonic()
    while True:
        # a complete collection takes some milliseconds, whatever the rate of messages
        complete = time.monotonic() - complete_s >= 30.0
        gc.collect(2 if complete else 0)
        if complete:
            complete_s = time.monotonic()
        library.look()
        try:
            header, buffers = channel.receive()
        except LinkLost:
            return
        codec = header.get("codec")
        parts: List[int] = []

        def send_part(part: List[Buffer], header: Dict[str, Any] = header, parts: List[int] = parts) -> None:
            coded: List[payloads.Coded] = []
            if header.get("codec"):
                coded, part = payloads.encode(part, header["codec"], header.get("downlink"))
            channel.send({"id": header["id"], "coded": [list(item) for item in coded], "part": len(parts)}, part)
            parts.append(len(part))

        try:
            message = payloads.decode(header.get("coded"), buffers, args.storage_bytes)
            started_s = time.monotonic()
            answer = serve_message(session, message, send_part if header.get("parts") else None)
            compute_s = time.monotonic() - started_s
            coded, answer = payloads.encode(answer, codec, header.get("downlink")) if codec else ([], answer)
        except (ProtocolError, BadInput) as error:
            coded, answer, compute_s = [], refusal_to_wire(error), 0.0
        except DeviceLost as error:  # the next process has a context of its own
            channel.send({"id": header["id"], "coded": [], "parts": len(parts)}, refusal_to_wire(error))
            raise
        except Exception as error:  # what the session holds now is unknown: the program is told why, and it ends
            text = f"the executor failed: {type(error).__name__}: {error}"
            failure_answer = refusal_to_wire(RemoteError(text, remedy="start the program again"))
            channel.send({"id": header["id"], "coded": [], "parts": len(parts)}, failure_answer)
            raise
        coded_parts = [list(item) for item in coded]
        channel.send({"id": header["id"], "coded": coded_parts, "parts": len(parts), "compute_s": compute_s}, answer)
        session.do_idle_work()


def main(argv: Optional[List[str]] = None) -> int:
    """Parse the command line of the process and serve."""
    parser = argparse.ArgumentParser(prog="edge_offload.execute.session.worker", description=__doc__)
    parser.add_argument("fd", type=int, help="inherited socket")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:n")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's choice")
    parser.add_argument("--cores", default="", help="CPU cores, such as 0,2; empty leaves them")
    parser.add_argument("--storage-bytes", type=int, default=8 << 30, help="most bytes that tensors may hold")
    parser.add_argument("--storages", type=int, default=1_000_000, help="most tensors")
    parser.add_argument("--segments", type=int, default=1_000_000, help="most segments, and most distinct calls")
    parser.add_argument("--note", type=int, default=-1, help="inherited memory for the name of the running operator")
    args = parser.parse_args(argv)
    # Ctrl-C in a terminal reaches this process too; the parent decides when it ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_imports()
    from edge_offload.protocol.channel import Channel

    with socket.socket(fileno=args.fd) as inherited:
        try:
            serve_forever(Channel(inherited), args)
        except LinkLost:
            return 1
        except DeviceLost as error:
            print(f"edge_offload: an executor ends: {error}", file=sys.stderr, flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
