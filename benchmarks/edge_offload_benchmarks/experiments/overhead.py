"""What interception costs when a plan says device-only: a plain network, a copy of it and the intercepted one in turn.

Three ways to intercept: ``module``, a program that calls its network through OffloadedModule in mode split with a
device-only plan in force (a server is connected and idle); ``local``, an unmodified program on the virtual CUDA device
that its own process computes (exec --mode local, or --absent local); and ``split``, the same in exec --mode split,
whose inference has been recorded and whose plan says device-only. The bar is max(1 %, 3 microseconds per operator), by
medians.

  edge-offload bench overhead --model movenet --pairs 200 --json overhead.json

The copy is the yardstick's own error: what differs between two plain networks is not interception. Where a process's
memory lies makes a difference of its own, so the rounds are divided among several that begin anew (--starts).

The process and the server share this machine: each is pinned to a core of its own, if there are two. The robot's own
threads are one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Sequence, Set

from edge_offload.outputs import Kept, add_output
from edge_offload_benchmarks.processes import ONE_THREAD, Process, Server, edge_offload

SHARE, PER_OPERATOR_S = 0.01, 3e-6
"""The bar: the larger of the two."""
WAYS = ("local", "split", "module")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--model", action="append", help="a model of the registry (movenet, mobilenet_v3_large)")
    parser.add_argument("--pairs", type=int, default=200, help="rounds of one inference each (200)")
    parser.add_argument("--starts", type=int, default=4, help="processes that the rounds are divided among (4)")
    parser.add_argument("--lead", type=int, default=1,
                        help="untimed inferences of the same kind before each, as in a program that does nothing else "
                             "(1); 0: the two kinds in turn, each after the other has had the caches")  # fmt: skip
    parser.add_argument("--way", action="append", choices=WAYS, help="only these ways (all)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE",
                        help="write records `overhead` here, over those of the same model, way, lead")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if not 1 <= args.starts <= args.pairs or args.lead < 0:
        raise BadInput("--starts is at least 1, --pairs at least as many, and --lead at least 0")
    models, ways = args.model or ["movenet", "mobilenet_v3_large"], tuple(args.way or WAYS)
    measured = {(model, way) for model in models for way in ways}
    rows = [
        item
        for item in records.read_list(args.json, "overhead")
        if (item["model"], item["way"]) not in measured or item.get("lead", 0) != args.lead
    ]
    load = os.getloadavg()[0]
    saver = Kept()
    with tempfile.TemporaryDirectory() as keys, Server("--keys", keys, cores=_choose_core(0)) as server:
        for model in models:
            for measured_now in _measure_ways(model, ways, args, server.address, keys):
                rows.append({**measured_now, "lead": args.lead, "load_average": load})
                print(format_record(rows[-1]), flush=True)
                if args.json:
                    saver("json", lambda: records.write(args.json, "overhead", rows))
    saver.settle()
    return 0


def _choose_core(which: int) -> Set[int]:
    """Return the number of one of the available cores."""
    return {sorted(os.sched_getaffinity(0))[which]}


def _measure_ways(
    model: str, ways: Sequence[str], args: argparse.Namespace, address: str, keys: str
) -> Iterator[Dict[str, Any]]:
    remote = [way for way in ways if way != "local"]
    modes = [(["local"], "local")] if "local" in ways else []
    if remote:
        modes.append((["split", "--server", address, "--keys", keys], ",".join(remote)))
    for mode, names in modes:
        seconds: Dict[str, List[List[float]]] = {way: [[], [], []] for way in names.split(",")}
        for start in range(args.starts):
            count = args.pairs // args.starts + (start < args.pairs % args.starts)
            measured = _start_robot(mode, [model, str(count), str(args.lead), address, keys, names])
            for way, of_kinds in seconds.items():
                for mine, more in zip(of_kinds, measured["seconds"][way]):
                    mine += more
        for way, of_kinds in seconds.items():
            yield {**make_record(model, way, of_kinds, measured["operators"]), "starts": args.starts}


def _start_robot(mode: Sequence[str], arguments: Sequence[str]) -> Dict[str, Any]:
    from edge_offload.errors import RemoteError

    program_line = [sys.executable, "-m", "edge_offload_benchmarks.overhead_robot", *arguments]
    command = edge_offload("exec", "--threads", "1", "--mode", *mode, "--", *program_line)
    with Process(command, ONE_THREAD, _choose_core(-1)) as program:
        code = program.end(None)
        if code != 0:
            raise RemoteError(f"the measured program ended with code {code}: {program.read_stderr()[-500:]}")
        answer: Dict[str, Any] = json.loads(program.lines[-1])
    return answer


def make_record(model: str, way: str, seconds: Sequence[Sequence[float]], operators: int) -> Dict[str, Any]:
    """Medians; the overhead is the median of the rounds' differences from the mean of the two plain networks.

    Args:
        model: of the registry.
        way: how it was intercepted.
        seconds: of the plain network, of a copy of it, and of the intercepted one, by round.
        operators: calls of one inference.
    """
    plain, alike, other = seconds
    plain_s = statistics.median([*plain, *alike])
    overhead_s = statistics.median(c - (a + b) / 2 for a, b, c in zip(*seconds))
    return {
        "model": model,
        "way": way,
        "pairs": len(plain),
        "operators": operators,
        "plain_s": plain_s,
        "intercepted_s": statistics.median(other),
        "overhead_s": overhead_s,
        "null_s": statistics.median(b - a for a, b in zip(plain, alike)),
        "within": overhead_s <= max(SHARE * plain_s, PER_OPERATOR_S * operators),
    }


def format_record(record: Dict[str, Any]) -> str:
    """One record as a line."""
    return (
        f"{record['model']:20s} {record['way']:7s} plain {record['plain_s'] * 1e3:8.2f} ms, intercepted "
        f"{record['overhead_s'] * 1e3:+7.3f} ms ({record['overhead_s'] / record['plain_s']:+.2%}, "
        f"{record['overhead_s'] / record['operators'] * 1e6:+.2f} us per operator; "
        f"{record.get('null_s', 0.0) * 1e3:+.3f} ms between two plain ones), "
        f"{'within' if record['within'] else 'beyond'} the bar"
    )
