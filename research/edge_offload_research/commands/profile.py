"""Measure every operator of a model at several slice sizes, for the planners of the split: here and on a server.

  edge-offload profile resnet50 --server tcp://gpu:5700 --out robot.json --server-out server.json
  edge-offload profile kapao_s --option size=960 --image frame.png --out robot.json       this machine alone

Then: edge-offload plan MODEL --profile robot.json --server-profile server.json. With --server the server measures first
and this machine after it, with the same weights. What may travel is coded with every lossless codec as well, so give a
picture that is like the camera's. Timings are only worth something on idle machines. 'edge-offload models list' names
the models.

  edge-offload profile movenet --engines          what each inference engine takes for a whole model, on this machine

From then on engine 'auto' is the fastest of them for this model, on this machine and with these threads.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, List

from edge_offload.outputs import add_output, write_each
from edge_offload.subcommands import options, some

#: Frames on which engines are measured.
ENGINE_TURNS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    add_model_arguments(parser)
    add_output(parser, "--out", metavar="FILE", help="where the profile goes (JSON)")
    parser.add_argument("--engines", action="store_true", help="measure engines in place of operators, for 'auto'")
    parser.add_argument("--server", metavar="ADDR", help="tcp://host:port of 'edge-offload serve': measure it, too")
    add_output(parser, "--server-out", metavar="FILE", help="where the server's profile goes (JSON)")
    parser.add_argument("--keys", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument("--device", default="cpu", help="what is measured of this machine: cpu (default), cuda, auto")
    parser.add_argument("--repeats", type=some, default=5, help="timings per slice size; the median counts (default 5)")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the model that ``profile`` and ``plan`` share."""
    parser.add_argument("model", metavar="MODEL", help="a name from 'edge-offload models list'")
    parser.add_argument("--option", metavar="KEY=VALUE", action="append", default=[], help="option of the model")
    parser.add_argument("--image", metavar="FILE", help="a picture like the camera's (default: a synthetic one)")
    parser.add_argument("--axis", type=int, help="axis of the input to split along (default: most local operators)")
    parser.add_argument("--threads", type=int, default=1, help="threads of this side (default 1)")


def network_of(args: argparse.Namespace, dense: bool = False) -> Any:
    """The traced network that the arguments name; ``dense``: only up to its last maps."""
    from edge_offload.errors import BadInput
    from edge_offload.execute.threads import pin
    from edge_offload_research.networks import load_network

    pin(args.threads)
    picture = None
    if args.image:
        import cv2

        picture = cv2.imread(args.image) if os.path.isfile(args.image) else None
        if picture is None:
            raise BadInput(f"cannot read picture {args.image}", remedy="give a .png or .jpg")
    return load_network(args.model, options_of(args), picture, args.axis, dense)


def options_of(args: argparse.Namespace) -> Dict[str, Any]:
    """The model's options that the arguments give."""
    from edge_offload.models import registry

    entry = registry.entries().get(args.model)
    return options(args.option, entry.options if entry else None)


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    from edge_offload.errors import BadInput
    from edge_offload.execute import devices
    from edge_offload.execute.heap import retain_freed_memory
    from edge_offload.split.runtime.profile import measure_profile

    if args.engines:
        return _engines(args)
    if not args.out:
        raise BadInput("no file for the profile", remedy="give one with --out")
    if bool(args.server) != bool(args.server_out):
        raise BadInput("--server and --server-out go together")
    network = network_of(args)
    theirs = _server_profile(args, network) if args.server else None
    load_average = os.getloadavg()[0]
    retain_freed_memory()  # as the runtime does
    profile = measure_profile(network, args.repeats, device=devices.pick_device(args.device))
    counts = network.located.count_kinds()
    lines: List[str] = [
        f"{args.model}: {counts['local']} local and {counts['global']} global operators",
        f"unsplit {profile.alone_s * 1e3:.1f} ms; operator by operator {profile.whole_s * 1e3:.1f} ms, of which "
        f"{sum(cost.launch_s for cost in profile.fit_costs()) * 1e3:.1f} ms are launches",
        f"load average {load_average:.2f}, threads {args.threads}",
    ]
    if theirs is not None:
        lines.append(f"server: operator by operator {theirs.whole_s * 1e3:.1f} ms")
    for number in network.program.sequence.inputs:
        for speed in sorted(profile.codecs.get(number, ()), key=lambda item: -item.ratio)[:5]:
            lines.append(f"input %{number} {speed.name}: {speed.ratio:.2f}x, {speed.encode_bytes_per_s / 1e6:.0f} MB/s "
                         f"coding, {speed.decode_bytes_per_s / 1e6:.0f} MB/s decoding")  # fmt: skip
    print("\n".join(lines))
    write_each(lambda: profile.write(args.out), lambda: theirs.write(args.server_out) if theirs is not None else None)
    return 0


def _engines(args: argparse.Namespace) -> int:
    """Measure torch and the engines that 'auto' may take, and keep it."""
    import statistics

    from edge_offload.errors import BadInput
    from edge_offload.execute.engines import measured, table
    from edge_offload.execute.threads import pin
    from edge_offload_research.commands.engines import line_of, row_of, samples
    from edge_offload_research.engine_comparison import measure_engines

    if args.out or args.server or args.image:
        raise BadInput("--engines goes with --threads and --option alone")
    names = table.packaged_engines()
    if not names:
        raise BadInput("no engine is installed", remedy=table.INSTALL)
    pin(args.threads)
    module, inputs = samples(args.model, options_of(args), ENGINE_TURNS)
    eager, *engines = measure_engines(module, names, inputs, ENGINE_TURNS)
    for one in engines:
        print(f"{args.model}: {line_of(row_of(one, eager))}")
    seconds = {one.facts: statistics.median(one.wall_s) for one in (eager, *engines) if one.wall_s}
    path = measured.store_seconds(module, args.threads, seconds)
    best = table.pick_backend("auto", network=module)
    print(f"engine auto is {best.name if best else 'eager'} for {args.model} from now on ({path})")
    return 0


def _server_profile(args: argparse.Namespace, network: Any) -> Any:
    """The server's profile of the same model.

    Raises:
        EdgeOffloadError: the server is not there, refuses the model, or traces it differently.
    """
    from edge_offload.errors import RemoteError
    from edge_offload.execute.tensors import pack_tensors
    from edge_offload.ir import sequence_hash
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.models import registry
    from edge_offload.split.runtime.profile import Profile

    given = options_of(args)
    descriptors, buffers = pack_tensors(network.inputs)
    body = {
        "name": args.model,
        "options": given,
        "state_hash": registry.state_hash(registry.build_module(args.model, **given)),
        "inputs": descriptors,
    }
    with Client(args.server, keys=KeyStore(args.keys)) as client:
        client.wait_ready(20.0)
        reply = client.request("split_open", body, buffers, timeout_s=600.0).result(600.0)
        profile = Profile.from_bytes(reply.buffers)
    if profile.sequence != sequence_hash(network.program.sequence):
        raise RemoteError("robot and server trace this model differently", remedy="use the same torch on both")
    return profile
