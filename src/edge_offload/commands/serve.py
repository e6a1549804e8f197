"""Serve robots: run their networks on this machine's GPU or CPU.

The server owns the device and answers robots over an encrypted link. On loopback, keys are made on first use. For
other machines, make keys ('edge-offload keys new') and list the robots ('edge-offload keys trust') first. It runs only
models that come with edge_offload, and factories and files that --allow names.

  edge-offload serve                                      on this machine only, for a first try
  edge-offload serve --bind tcp://0.0.0.0:5700            for robots on the network
  edge-offload serve --allow my_package.nets:make_net     a model of your own, importable on this machine
  edge-offload serve --allow net.onnx                     a trained network; the robot has an equal copy

Ctrl-C or SIGTERM ends it. Robots then compute locally, and return when it is back. For an update, run 'edge-offload
serve --drain' first: robots with several servers (--server a:5700,b:5700) change to another one before it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from edge_offload.outputs import add_output
from edge_offload.subcommands import options, positive, some

DEFAULT_BIND = "tcp://127.0.0.1:5700"
#: Signal on which a server drains: it answers what is in flight and ends.
DRAIN_SIGNAL = signal.SIGUSR1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--bind", default=DEFAULT_BIND, metavar="ADDR", help=f"address to listen on ({DEFAULT_BIND})")
    parser.add_argument("--announce", action="store_true",
                        help="announce the address on this network by multicast DNS, for 'exec --server auto'; only "
                        "trusted robots are admitted")  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto (the GPU if there is one), cpu or cuda; "
                        "emulated:TABLE.csv takes the time of a table (batch,latency_ms) and gives outputs of another "
                        "frame")  # fmt: skip
    parser.add_argument(
        "--compute",
        default="exact",
        choices=("exact", "fast"),
        help="models of mode server: exact (torch's bits), or fast (compiled by TorchInductor in the "
        "background, which takes a minute and a C++ compiler; results are close, and say so) (exact)",
    )
    parser.add_argument("--engine", metavar="ENGINE",
                        help="what computes the models of mode server: exact (torch's kernels, on a GPU as CUDA "
                        "graphs, on a CPU as compiled steps), eager (torch, operator by operator), auto, or a name "
                        "from 'edge-offload engines'; ENGINE,MODEL=ENGINE for single models (exact)")  # fmt: skip
    parser.add_argument("--engine-buffers", default="", choices=("", "torch", "pycuda"), metavar="WHO",
                        help="who allocates TensorRT's buffers: torch or pycuda (torch where it has CUDA)")  # fmt: skip
    parser.add_argument("--tf32", action="store_true",
                        help="let a GPU round the inputs of convolutions and matrix products to 10 bits of mantissa: "
                        "faster, with relative errors of about 1e-3 (off)")  # fmt: skip
    parser.add_argument("--threads", type=some, metavar="N", help="compute threads; results are bit-equal only where "
                        "robot and server use as many")  # fmt: skip
    parser.add_argument("--cores", metavar="LIST", help="CPU cores to stay on, such as 0,2-3")
    parser.add_argument("--allow", action="append", default=[], metavar="PACKAGE.MODULE:FACTORY",
                        help="also let robots open this model or file (net.onnx, net.pt); importing a factory or "
                        "loading net.pt runs its code (repeatable)")  # fmt: skip
    parser.add_argument("--preload", action="append", default=[], metavar="MODEL",
                        help="build this model before listening (repeatable)")  # fmt: skip
    parser.add_argument("--option", action="append", default=[], metavar="MODEL.OPTION=VALUE",
                        help="option of a model that overrides the robot's, such as a path")  # fmt: skip
    parser.add_argument("--max-models", type=some, default=12, metavar="N", help="models kept in memory (12)")
    parser.add_argument("--models-per-robot", type=some, default=8, metavar="N",
                        help="most models that one robot may have open (8)")  # fmt: skip
    parser.add_argument(
        "--max-input-mb", type=some, default=256, metavar="MB", help="most MB of inputs of one inference (256)"
    )
    parser.add_argument("--queue", type=some, default=4, metavar="N", help="most waiting requests of one robot (4)")
    parser.add_argument("--max-devices", type=some, default=8, metavar="N",
                        help="most programs with a virtual device at once (8)")  # fmt: skip
    parser.add_argument("--devices-per-robot", type=some, default=4, metavar="N",
                        help="most of them that one robot may have (4)")  # fmt: skip
    parser.add_argument("--device-memory-mb", type=some, default=4096, metavar="MB",
                        help="most MB of tensors of one virtual device (4096)")  # fmt: skip
    parser.add_argument("--device-seconds", type=positive, default=120.0, metavar="S",
                        help="most seconds that a virtual device may compute on one message (120)")  # fmt: skip
    parser.add_argument("--lease", type=positive, default=30.0, metavar="S",
                        help="seconds that a virtual device outlives its connection (30)")  # fmt: skip
    add_output(parser, "--weights-cache", metavar="DIR", folder=True,
                        help="where weights that robots have sent, and traces of models that were split, are kept "
                        "(default: in the user's cache)")  # fmt: skip
    parser.add_argument("--weights-cache-mb", type=some, default=16384, metavar="MB",
                        help="most MB of cached weights; the least recently used go first (16384)")  # fmt: skip
    parser.add_argument("--promises", action="store_true",
                        help="promise robots a bound on the accuracy that sharing may cost them")  # fmt: skip
    parser.add_argument("--pool", default="", metavar="ADDR",
                        help="compute --model with the pool at this address (see 'edge-offload pool')")  # fmt: skip
    parser.add_argument("--model", default="", metavar="MODEL", help="model that the pool computes")
    parser.add_argument("--slo", type=positive, default=0.2, metavar="S",
                        help="seconds from a request's arrival to the pool's answer (0.2)")  # fmt: skip
    parser.add_argument("--profiles", default="", metavar="DIR", help="folder that 'edge-offload pool profile' wrote")
    parser.add_argument("--pool-keys", default="", metavar="DIR", help="folder with the pool's token (the user's)")
    parser.add_argument("--drain", action="store_true",
                        help="start nothing: the server of this machine that listens on --bind answers what it was "
                        "asked, sends robots to their other servers, and ends")  # fmt: skip
    parser.add_argument("--keys", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument(
        "--status-every", type=float, default=0.0, metavar="S", help="print a status line every S seconds"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    if args.drain:
        return drain(args.bind)
    stop, drained = threading.Event(), threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())

    def drain_soon(*_: Any) -> None:
        drained.set()
        stop.set()

    signal.signal(DRAIN_SIGNAL, drain_soon)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    print_progress("loading torch")
    import pathlib

    from edge_offload.execute import devices
    from edge_offload.execute.collector import Collector
    from edge_offload.execute.engines import table
    from edge_offload.execute.heap import retain_freed_memory
    from edge_offload.execute.threads import parse_cores
    from edge_offload.link import codecs, discovery
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.server.blobs import BlobStore
    from edge_offload.server.quota import DeviceQuota
    from edge_offload.server.server import OffloadServer
    from edge_offload.server.services.replica.service import RobotQuota
    from edge_offload.server.settings import Compute, Limits, Models

    overrides = parse_overrides(args.option)
    if args.tf32:
        devices.allow_tf32()
    retain_freed_memory()
    print_progress(f"payload codecs: {codecs.prepare()}")
    server = OffloadServer(
        args.bind,
        compute=Compute(
            args.device,
            table.with_buffers(pick_engine(args.compute, args.engine), args.engine_buffers),
            args.threads,
            parse_cores(args.cores) if args.cores else None,
        ),
        models=Models(args.allow, overrides, args.max_models),
        limits=Limits(
            queue_per_peer=args.queue,
            robot=RobotQuota(max_models=args.models_per_robot, max_input_bytes=args.max_input_mb << 20),
            devices=DeviceQuota(
                sessions=args.max_devices,
                sessions_per_robot=args.devices_per_robot,
                storage_bytes=args.device_memory_mb << 20,
                message_s=args.device_seconds,
                lease_s=args.lease,
            ),
        ),
        keys=KeyStore(args.keys) if args.keys else None,
        gpus=pool_settings(args) if args.pool else None,
        blobs=BlobStore(pathlib.Path(args.weights_cache) if args.weights_cache else None, args.weights_cache_mb << 20),
        promises=args.promises,
    )
    for name in [*args.preload, *([args.model] if args.pool else [])]:
        if stop.is_set():
            return 0
        print_progress(f"building {name}")
        started_at = time.monotonic()
        server.preload(name)
        print_progress(f"built {name} in {time.monotonic() - started_at:.1f} s")
    with contextlib.ExitStack() as stack:
        stack.enter_context(server)
        stack.enter_context(Collector().running())
        if args.announce:
            stack.enter_context(contextlib.closing(discovery.announce_server(server.address)))
        if server.engine != "eager":
            print_progress(f"engine: {server.engine}")
        # the only line on stdout: programs wait for it
        print(f"listening on {server.address} device {server.device} pid {os.getpid()}", flush=True)
        while not stop.wait(args.status_every or None):
            print_progress(status_line(server.status()))
        if drained.is_set():
            remaining = server.drain()
            print_progress(
                f"drained: {f'{remaining} robots know no other server' if remaining else 'every robot has gone on'}"
            )
        print_progress("stopping")
    return 0


def pick_engine(compute: str, engine: Optional[str]) -> str:
    """Engine that ``--compute`` and ``--engine`` ask for.

    Raises:
        BadInput: both ask for one.
    """
    from edge_offload.errors import BadInput
    from edge_offload.execute.engines.base import FASTEST_EXACT
    from edge_offload.execute.engines.recorded.inductor import InductorBackend

    if compute == "exact":
        return engine or FASTEST_EXACT
    if engine:
        raise BadInput("--compute fast and --engine both say what computes", remedy="leave one of them out")
    return InductorBackend.name


def pool_settings(args: argparse.Namespace) -> Any:
    """Settings of a pool from the arguments. Raises as :func:`~edge_offload.server.pool.settings.make_settings`."""
    from edge_offload.errors import BadInput
    from edge_offload.server.pool.settings import make_settings

    if args.promises:
        raise BadInput("--pool and --promises are two ways to share a GPU", remedy="choose one")
    return make_settings(args.pool, args.model, args.slo, args.profiles, args.pool_keys, args.threads or 1)


def drain(bind: str) -> int:
    """Tell the server of this machine that listens on ``bind`` to drain, and wait for its end.

    Raises:
        BadInput: no server of this user listens there.
    """
    import psutil

    from edge_offload.errors import BadInput
    from edge_offload.link.security.keys import split_address

    _, port = split_address(bind)
    listening = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid
    }
    servers = [process for process in map(psutil.Process, listening) if "serve" in process.cmdline()]
    if len(servers) != 1:
        raise BadInput(
            f"no 'edge-offload serve' of yours listens on port {port} of this machine",
            remedy="name its --bind, and run this as the same user; a server that is a node ends with rosnode kill",
        )
    servers[0].send_signal(DRAIN_SIGNAL)
    drain_s = 20.0
    end_s = time.monotonic() + drain_s
    while time.monotonic() < end_s:
        with contextlib.suppress(psutil.NoSuchProcess):
            if servers[0].status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
                continue
        print_progress("drained")
        return 0
    print_progress(f"pid {servers[0].pid} still runs after {drain_s:g} s; 'kill {servers[0].pid}' ends it")
    return 1


def parse_overrides(texts: List[str]) -> Dict[str, Dict[str, Any]]:
    """``{model: {option: value}}`` from ``MODEL.OPTION=VALUE``; values are JSON scalars, or else text.

    Raises:
        BadInput: not of that form.
    """
    from edge_offload.errors import BadInput

    overrides: Dict[str, Dict[str, Any]] = {}
    for name, value in options(texts, form="MODEL.OPTION=VALUE").items():
        model, dot, option = name.rpartition(".")
        if not (dot and model and option):
            raise BadInput(f"option {name!r}", remedy="write MODEL.OPTION=VALUE")
        overrides.setdefault(model, {})[option] = value
    return overrides


def status_line(status: Any) -> str:
    """One line on what the server does."""
    models = ", ".join(f"{name} {facts.mean_s * 1e3:.1f} ms" for name, facts in status.models.items()) or "no inference"
    promised = f", {len(status.promises)} with a promise" if status.promises else ""
    return (
        f"load {status.load:.0%}, {status.queue_length} waiting, {status.sessions} robots{promised}, {models}, "
        f"{status.refused} refused, {status.failed} failed"
    )


def print_progress(text: str) -> None:
    """Progress, on stderr."""
    print(f"edge-offload serve: {text}", file=sys.stderr, flush=True)
