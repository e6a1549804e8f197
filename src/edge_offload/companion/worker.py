"""What the executor process does: ``python -m edge_offload.companion.worker FD FD FD ... --device cuda``.

It serves the program that started it, over the sockets and the memory that it inherited, until that hangs up.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from typing import Any, Dict, List, Optional

import torch

from edge_offload.companion.memory import Answer, Lane, Region, Tensors
from edge_offload.companion.process import LANES
from edge_offload.errors import LinkLost, Refused
from edge_offload.execute import devices, heap
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.execute.module import ModuleExecutor
from edge_offload.ir import sequence_hash, wire
from edge_offload.ir.build import TracedProgram
from edge_offload.models import registry
from edge_offload.protocol.channel import Channel
from edge_offload.split.model.network import Network
from edge_offload.split.model.plan import Plan, Side
from edge_offload.split.runtime.half import PieceHalf
from edge_offload.split.runtime.places import GpuPlace, place_of
from edge_offload.split.runtime.tables import MAX_PLANS, ReadyPlan, ready
from edge_offload.split.runtime.tracing import located_along, trace


class Networks:
    """The network that is computed here."""

    def __init__(self, device: str) -> None:
        self._asked = device
        self._executor: Optional[ModuleExecutor] = None
        self.name = ""

    @property
    def device(self) -> torch.device:
        """What computes."""
        return devices.pick_device(self._asked)

    def tell_device(self, _: Tensors) -> Answer:
        """``{}`` → ``{device, fingerprint}``."""
        return {"device": str(self.device), "fingerprint": fingerprint_of(devices.fix_kernel_choice(self.device))}, ()

    def open(self, _: Tensors, name: str, options: Dict[str, Any], state_hash: str, engine: str) -> Answer:
        """``{name, options, state_hash, engine}`` → ``{engine, engine_facts}``: build a model."""
        module = registry.build_module(name, **options)
        if registry.state_hash(module) != state_hash:
            raise Refused(f"model {name!r} is built with other weights here", remedy="seed it, or use device cpu")
        self.name = name
        self._executor = ModuleExecutor(module, self.device, engine, spare=True)
        return {"engine": self.executor.engine, "engine_facts": self.executor.engine_facts()}, ()

    @property
    def executor(self) -> ModuleExecutor:
        """Of the model that is open."""
        if self._executor is None:
            raise Refused("no model is open here")
        return self._executor

    def run(self, inputs: Tensors) -> Answer:
        """Inputs → ``{engine, note}`` and outputs."""
        execution = self.executor.run(inputs)
        return {"engine": execution.engine, "note": execution.note}, execution.outputs

    def state(self, _: Tensors) -> Answer:
        """``{}`` → ``{words, wrong}``."""
        words, wrong = self.executor.engine_state()
        return {"words": words, "wrong": wrong}, ()

    def ready(self, _: Tensors, timeout_s: float) -> Answer:
        """``{timeout_s}`` → ``{ready}``."""
        return {"ready": self.executor.engine_ready(timeout_s)}, ()


class Halves:
    """The robot's half of plans for the network that is open; one inference at a time."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._place = place_of(networks.device)
        self._traced: Dict[str, Network] = {}
        self._shared: Dict[str, Any] = {}
        self._plans: Dict[int, ReadyPlan] = {}
        self._half: Optional[PieceHalf] = None
        self._ready: Optional[ReadyPlan] = None
        self._blocks = self._run = 0

    def profile(self, _: Tensors, sequence: str, repeats: int) -> Answer:
        """``{sequence, repeats}`` → ``{profile}``: time a network that was traced here."""
        return {"profile": self._place.measure(self._traced[sequence], repeats).to_record()}, ()

    def copy_there(self, tensors: Tensors) -> Answer:
        """Rows, to be copied to the device and no more."""
        if isinstance(self._place, GpuPlace):
            self._place.take(tensors[0])
        return {}, ()

    def copy_back(self, _: Tensors, nbytes: int) -> Answer:
        """``{nbytes}`` → so many from the device."""
        return {}, [
            self._place.give(nbytes) if isinstance(self._place, GpuPlace) else torch.zeros(nbytes, dtype=torch.uint8)
        ]

    def trace(self, examples: Tensors, sequence: str) -> Answer:
        """``{sequence}`` and inputs: trace the model, with the same result as the program."""
        examples = [tensor.clone() for tensor in examples]
        network = trace(self._networks.name, self._networks.executor.module, examples)
        if sequence_hash(network.program.sequence) != sequence:
            raise Refused("the model is traced differently in the executor process")
        self._traced[sequence], self._shared[sequence] = network, self._place.shared(network)
        return {}, ()

    def record(self, tensors: Tensors, sequence: str, name: str, digests: List[str]) -> Answer:
        """``{sequence, name, digests}``; the sequence, its inputs and its constants: an inference that was recorded."""
        encoded, *rest = [tensor.clone() for tensor in tensors]
        inputs, constants = rest[: len(rest) - len(digests)], rest[len(rest) - len(digests) :]
        program = TracedProgram(wire.decode(encoded.numpy().tobytes()), dict(zip(digests, constants)))
        network = Network(name, program, located_along(name, program.sequence, None), tuple(inputs))
        self._traced[sequence], self._shared[sequence] = network, self._place.shared(network)
        return {}, ()

    def plan(self, _: Tensors, number: int, sequence: str, text: str) -> Answer:
        """``{number, sequence, text}`` → ``{known}``: a plan, to be begun by its number."""
        if sequence not in self._traced:
            return {"known": False}, ()
        if len(self._plans) >= 4 * MAX_PLANS:
            self._plans.clear()
        self._plans[number] = ready(Plan.from_json(text), self._traced[sequence].located, sequence)
        return {"known": True}, ()

    def begin(self, _: Tensors, number: int, sequence: str, run: int) -> Answer:
        """``{number, sequence, run}`` → ``{known}``: an inference; it takes the place of the one before."""
        self._ready = self._plans.get(number)
        if self._ready is None:
            return {"known": False}, ()
        located, shared = self._traced[sequence].located, self._shared[sequence]
        self._half, self._blocks = self._place.half(self._ready, Side.ROBOT, located, shared), 0
        self._run = run
        return {"known": True}, ()

    def half(self, run: int) -> PieceHalf:
        """Of the inference that is under way.

        Raises:
            Refused: that is another one.
        """
        half = self._half
        if half is None or run != self._run:
            raise Refused("another inference is under way in the executor process")
        return half

    def take(self, tensors: Tensors, run: int, number: int, low: int) -> Answer:
        """``{run, number, low}`` and rows."""
        self.half(run).take(number, low, tensors[0])
        return {}, ()

    def advance(self, _: Tensors, run: int) -> Answer:
        """``{run}``: the next block."""
        half = self.half(run)
        assert self._ready is not None
        mine = self._ready.sides[Side.ROBOT]
        block = mine.blocks[self._blocks]
        places = slice(block.first, block.last + 1)
        with torch.no_grad():
            half.advance(self._ready.plan.steps(Side.ROBOT)[places], mine.dead[places])
        self._blocks += 1
        return {}, ()

    def catch_up(self, _: Tensors, run: int) -> Answer:
        """``{run}`` → ``{seconds}``."""
        half = self.half(run)
        half.catch_up()
        return {"seconds": half.seconds()}, ()

    def fetch(self, _: Tensors, run: int, number: int, low: int, high: int, blocks: int) -> Answer:
        """``{run, number, low, high, blocks}`` → ``{seconds}`` and rows."""
        half = self.half(run)
        with torch.no_grad():
            rows = half.fetch(number, low, high, blocks)
        return {"seconds": half.seconds()}, [rows]


def serve(lanes: Dict[str, Lane], device: str) -> None:
    """Answer on every lane until the program hangs up."""
    networks = Networks(device)
    handlers: Dict[str, Dict[str, Any]] = {name: {} for name in LANES}
    handlers["module"] = {
        "device": networks.tell_device, "open": networks.open, "run": networks.run, "state": networks.state,
        "ready": networks.ready,
    }  # fmt: skip
    try:
        halves = Halves(networks)
    except Exception:  # asking for the device says why
        pass
    else:
        handlers["take"] = {"take": halves.take, "copy": halves.copy_there}
        handlers["advance"] = {
            "trace": halves.trace, "record": halves.record, "profile": halves.profile, "plan": halves.plan,
            "begin": halves.begin, "advance": halves.advance, "catch_up": halves.catch_up,
        }  # fmt: skip
        handlers["fetch"] = {"fetch": halves.fetch, "copy": halves.copy_back}

    def work(name: str) -> None:
        try:
            lanes[name].serve(handlers[name])
        except LinkLost:
            os._exit(0)

    threads = [threading.Thread(target=work, args=(name,), name=f"edge-offload-{name}") for name in LANES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(argv: Optional[List[str]] = None) -> int:
    """Parse the command line of the process and serve."""
    parser = argparse.ArgumentParser(prog="edge_offload.companion.worker", description=__doc__)
    parser.add_argument("fds", type=int, nargs="+", help="inherited: socket and two regions of each lane")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:n")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's choice")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides when it ends
    heap.retain_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    lanes = {}
    for name, fd, theirs, ours in zip(LANES, args.fds[::3], args.fds[1::3], args.fds[2::3]):
        lanes[name] = Lane(Channel(socket.socket(fileno=fd)), Region(ours), Region(theirs))
    serve(lanes, args.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
