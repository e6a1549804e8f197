"""From the start of a program to its first result, as a whole process: plain Python here, and exec with a server.

  edge-offload bench start                                  ten starts of each kind, over three links (fifteen minutes)
  edge-offload bench start --link loopback --starts 30
  edge-offload bench start --link wifi_93 --json start.json

cold: the server has just started, and has no weights of the program. warm: it has run the program before. plain: the
same command on this machine alone, without edge_offload. The kinds take turns. Both ends share this machine, and
compute with one thread. weights: share of the link's rate at which they travelled, from .cuda() to the first result,
inference included. The figures are also printed as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from edge_offload.outputs import add_output
from edge_offload_benchmarks.processes import ONE_THREAD, Process, Server, edge_offload

#: Rate (Mbps) and round trip time (ms) of each link; None: there is none between the two.
LINKS: Dict[str, Optional[Tuple[float, float]]] = {"loopback": None, "wifi_93": (93.0, 2.6), "slow_20": (20.0, 40.0)}
#: Seconds after which a start has failed.
LONGEST_S = 300.0
STAGES = ("python", "torch", "built", "weights", "result")
PLAIN, COLD, WARM = "plain", "cold", "warm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--link", action="append", choices=sorted(LINKS), help="only this one (may be repeated)")
    parser.add_argument("--kind", action="append", choices=(PLAIN, COLD, WARM), help="only this one (may be repeated)")
    parser.add_argument("--starts", type=int, default=10, metavar="N", help="of each kind (10)")
    parser.add_argument("--blocks", type=int, default=9, metavar="N", help="of 2.4 MB of weights each (9)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the records start_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if args.starts < 1 or args.blocks < 1:
        raise BadInput("--starts and --blocks must be at least 1")
    kinds = args.kind or [PLAIN, COLD, WARM]
    starts: Dict[Tuple[str, str], List[Dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        bench = _Bench(pathlib.Path(folder), args.blocks)
        warm = stack.enter_context(bench.serve("warm")) if WARM in kinds else ""
        if warm:
            bench.start_program(warm)
        for _ in range(args.starts):
            if PLAIN in kinds:
                starts.setdefault(("", PLAIN), []).append(bench.start_program(""))
            for link in args.link or LINKS:
                if COLD in kinds:
                    with bench.serve("cold") as address, emulated(address, LINKS[link]) as front:
                        starts.setdefault((link, COLD), []).append(bench.start_program(front))
                if WARM in kinds:
                    with emulated(warm, LINKS[link]) as front:
                        starts.setdefault((link, WARM), []).append(bench.start_program(front))
        weights_bytes = bench.weights.stat().st_size
    rows = [_record(link, kind, weights_bytes, each) for (link, kind), each in starts.items()]
    for row in rows:
        print(line(row), file=sys.stderr)
    print(json.dumps(rows))
    if args.json is not None:
        records.write(args.json, "start_bench", rows)
    return 0


class _Bench:
    """The program and its servers in a folder of their own."""

    def __init__(self, folder: pathlib.Path, blocks: int) -> None:
        self.weights = folder / "weights.pt"
        self._folder, self._servers, self._digest = folder, 0, ""
        words = "import sys, torch; from edge_offload_benchmarks import start_robot as robot; "
        words += "torch.save(robot.make_network(int(sys.argv[1])).state_dict(), sys.argv[2])"
        subprocess.run([sys.executable, "-c", words, str(blocks), str(self.weights)], check=True)
        script = pathlib.Path(__file__).parents[1] / "start_robot.py"
        self._program = [sys.executable, str(script), str(blocks), str(self.weights)]

    @contextlib.contextmanager
    def serve(self, name: str) -> Iterator[str]:
        """Run a server that has no weights; its address."""
        self._servers += 1
        cache = self._folder / f"{name}{self._servers}"
        options = ("--keys", str(self._folder / "keys"), "--weights-cache", str(cache))
        with Server(*options) as server:
            yield server.address

    def start_program(self, address: str) -> Dict[str, float]:
        """Run the program once; seconds from its start to the end of each stage.

        Raises:
            RemoteError: it failed, or its result is another one than before.
        """
        from edge_offload.errors import RemoteError

        server = ("--server", address, "--keys", str(self._folder / "keys"), "--wait", str(LONGEST_S))
        command = [*edge_offload("exec", *server, "--"), *self._program] if address else self._program
        started_s = time.monotonic()
        with Process(command, {**ONE_THREAD, "CUDA_VISIBLE_DEVICES": "" if not address else "0"}) as program:
            code = program.end(LONGEST_S)
            if code != 0:
                raise RemoteError(f"the program ended with code {code}: {program.read_stderr()[-500:]}")
            answer: Dict[str, Any] = json.loads(program.lines[-1])
        self._digest = self._digest or answer["digest"]
        if answer["digest"] != self._digest:
            raise RemoteError("the program has another result than before")
        return {stage: answer["times"][stage] - started_s for stage in STAGES}


@contextlib.contextmanager
def emulated(address: str, link: Optional[Tuple[float, float]]) -> Iterator[str]:
    """Put a link in front of a server; the address of its other end."""
    from edge_offload_research.emulate.emulator import Emulator
    from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace

    if link is None:
        yield address
        return
    mbps, rtt_ms = link
    trace, delay_s = Trace.constant_trace(mbps * BYTES_PER_MBIT), rtt_ms / 2e3
    with Emulator("127.0.0.1:0", address, Link("bench", trace, trace, delay_s, delay_s)) as emulator:
        yield emulator.address


def _record(link: str, kind: str, weights_bytes: int, starts: Sequence[Dict[str, float]]) -> Dict[str, Any]:
    results = sorted(start["result"] for start in starts)
    row: Dict[str, Any] = {
        "kind": kind, "starts": len(starts), "weights_bytes": weights_bytes,
        "result_s": {"p50": statistics.median(results), "least": results[0], "most": results[-1]},
        "stages_s": {stage: statistics.median(start[stage] for start in starts) for stage in STAGES},
        "load_average": os.getloadavg()[0],
    }  # fmt: skip
    if kind != PLAIN:
        row["link"] = link
    terms = LINKS[link] if link else None
    if kind == COLD and terms is not None:
        spent_s = statistics.median(start["result"] - start["built"] for start in starts)
        row["weights_share"] = weights_bytes * 8e-6 / terms[0] / spent_s
    return row


def line(row: Dict[str, Any]) -> str:
    """One record as a line."""
    result, stages = row["result_s"], row["stages_s"]
    before = [0.0, *(stages[stage] for stage in STAGES)]
    spent = ", ".join(f"{stage} {after - earlier:.2f}" for stage, earlier, after in zip(STAGES, before, before[1:]))
    share = f"; weights at {row['weights_share']:.0%} of the link's rate" if "weights_share" in row else ""
    return (f"{row.get('link', ''):9} {row['kind']:6} first result {result['p50']:6.2f} s "
            f"({result['least']:.2f} to {result['most']:.2f}): {spent}{share}")  # fmt: skip
