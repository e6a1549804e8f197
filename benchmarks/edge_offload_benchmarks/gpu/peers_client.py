"""A program that computes on a GPU, the same for plain CUDA, a remoting peer and the virtual device.

Usage: python -m edge_offload_benchmarks.gpu.peers_client --device cuda --out FILE

Reads a line of JSON per task (``program``, ``frames``, ``seconds``), and answers each with its number and a line of
JSON. The results of the last frames are in ``FILE.PROGRAM.pt``.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import pathlib
import sys
import time
from typing import Any, Callable, Dict, List

import torch
from torch import nn

from edge_offload_benchmarks.gpu.networks import BUILDERS, build_network, fix_numerics, make_inputs, outputs_of
from edge_offload_benchmarks.gpu.programs import draw_numbers, make_seeded
from edge_offload_benchmarks.gpu.results import spread_ms

#: Different inputs of each program.
INPUTS = 8
WIDTH, TOKENS, VOCABULARY = 128, 8, 512
#: The variable that has Lupine's client count its requests and waits, in a file.
LUPINE_STATS = "LUPINE_RPC_STATS"
#: A program on a device: the results of the frame with this number, on the host.
Frame = Callable[[int], List[torch.Tensor]]


class Decoder(nn.Module):
    """Four layers of a transformer, and logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [N, length, VOCABULARY]."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens), mask))
        return logits


def make_transformer(at: torch.device) -> Frame:
    """Four layers of a transformer without a mask: one result per frame."""
    decoder: Any = make_seeded(Decoder)
    net = decoder.layers.to(at)
    return lambda number: [net(draw_numbers(number % INPUTS, 1, 32, WIDTH).to(at)).cpu()]


def make_greedy(at: torch.device) -> Frame:
    """A greedy loop: the program reads each token before it computes the next one."""
    net = make_seeded(Decoder).to(at)

    def generate(number: int) -> List[torch.Tensor]:
        draw = torch.Generator().manual_seed(number % INPUTS)
        tokens = torch.randint(0, VOCABULARY, (1, 8), generator=draw).to(at)
        for _ in range(TOKENS):
            best = int(net(tokens)[0, -1].argmax())
            tokens = torch.cat([tokens, torch.tensor([[best]]).to(at)], 1)
        return [tokens.cpu()]

    return generate


def make_network(at: torch.device, name: str) -> Frame:
    """A network of :mod:`edge_offload_benchmarks.gpu.networks`."""
    net, given = build_network(name).to(at), make_inputs(name, INPUTS)
    return lambda number: [each.cpu() for each in outputs_of(net(*[each.to(at) for each in given[number % INPUTS]]))]


def make_program(name: str, at: torch.device) -> Frame:
    """A program by its name."""
    if name in BUILDERS:
        return make_network(at, name)
    return {"transformer": make_transformer, "greedy": make_greedy}[name](at)


def count_trips() -> Dict[str, int]:
    """Round trips and requests of this process so far, as far as what computes for it counts them."""
    installation = sys.modules.get("edge_offload.device.installation")
    device: Any = installation.current_installation() if installation is not None else None
    if device is not None:
        return {"trips": device.recorder.counters.round_trips}
    if "rgpu" in sys.modules:
        stats = sys.modules["rgpu"].stats()
        return {"trips": stats["waits"], "requests": stats["messages"]}
    if LUPINE_STATS in os.environ:
        return count_lupine(pathlib.Path(os.environ[LUPINE_STATS]))
    return {}


def count_lupine(path: pathlib.Path) -> Dict[str, int]:
    """Waits and requests as Lupine's client writes them: operation (-1: every wait), requests, waits, nanoseconds."""
    try:
        ctypes.CDLL("libcuda.so.1").lupine_write_stats()
    except (OSError, AttributeError):
        return {}
    rows = [[int(value) for value in line.split()] for line in path.read_text(encoding="utf-8").splitlines()]
    return {"trips": sum(row[2] for row in rows if row[0] == -1), "requests": sum(row[1] for row in rows)}


class Client:
    """What the tasks of this process have in common.

    Args:
        at: the device.
        out: start of the result files' names.
    """

    def __init__(self, at: torch.device, out: str) -> None:
        self._at, self._out = at, out
        self._programs: Dict[str, Frame] = {}
        self._results: Dict[str, Dict[int, List[torch.Tensor]]] = {}

    @torch.no_grad()
    def run_frames(self, program: str, frames: int, seconds: float) -> Dict[str, Any]:
        """Run frames of a program within ``seconds``, and save their results."""
        started_at = time.monotonic()
        if program not in self._programs:
            self._programs[program] = make_program(program, self._at)
        before, durations = count_trips(), []
        results = self._results.setdefault(program, {})
        for number in range(frames):
            at = time.perf_counter()
            results[number % INPUTS] = self._programs[program](number)
            durations.append(time.perf_counter() - at)
            if time.monotonic() - started_at > seconds:
                break
        after = count_trips()
        torch.save(results, f"{self._out}.{program}.pt")
        counts = {key: round((value - before.get(key, 0)) / len(durations), 2) for key, value in after.items()}
        return {"wall": spread_ms(durations), "first_s": durations[0], "frames": len(durations), **counts}


def main() -> None:
    """Do tasks until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--needs", help="a package that registers the device")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    fix_numerics()
    if args.needs:
        importlib.import_module(args.needs)
    client = Client(torch.device(args.device), args.out)
    for number, line in enumerate(sys.stdin):
        task = json.loads(line)
        try:
            facts = client.run_frames(task["program"], task["frames"], task["seconds"])
        except Exception as error:
            facts = {"failed": f"{type(error).__name__}: {str(error)[:400]}"}
        print(f"{number} {json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    main()
