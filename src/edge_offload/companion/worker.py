"""Main program of the executor process: ``python -m edge_offload.companion.worker FD FD FD ... --device cuda``.

It serves its parent over inherited sockets and memory, until the parent closes them.
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

from edge_offload.companion.memory import Answer, SharedRegion, TensorChannel, Tensors
from edge_offload.companion.process import CHANNELS
from edge_offload.errors import LinkLost, Refused
from edge_offload.execute import devices, heap
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.execute.module import ModuleExecutor
from edge_offload.ir import sequence_hash, wire
from edge_offload.ir.build import TracedProgram
from edge_offload.models import registry
from edge_offload.protocol.channel import Channel
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side, SplitPlan
from edge_offload.split.runtime.half import PieceHalf
from edge_offload.split.runtime.places import GpuSplitDevice, place_of
from edge_offload.split.runtime.tables import MAX_PLANS, ReadyPlan, compile_ready
from edge_offload.split.runtime.tracing import locate_along, trace_module


class ModelHandler:
    """Handles requests about the open model; a method's docstring gives the facts of request → response."""

    def __init__(self, device: str) -> None:
        self._requested_device = device
        self._executor: Optional[ModuleExecutor] = None
        self.name = ""

    @property
    def device(self) -> torch.device:
        """Device that computes: the one that ``auto`` stands for here."""
        return devices.pick_device(self._requested_device)

    def describe_device(self, _: Tensors) -> Answer:
        """``{}`` → ``{device, fingerprint}``."""
        return {"device": str(self.device), "fingerprint": fingerprint_of(devices.fix_kernel_choice(self.device))}, ()

    def open_model(self, _: Tensors, name: str, options: Dict[str, Any], state_hash: str, engine: str) -> Answer:
        """``{name, options, state_hash, engine}`` → ``{engine, engine_facts}``: build and open a model.

        Raises:
            Refused: its weights differ from ``state_hash``.
        """
        module = registry.build_module(name, **options)
        if registry.state_hash(module) != state_hash:
            raise Refused(f"model {name!r} is built with other weights here", remedy="seed it, or use device cpu")
        self.name = name
        self._executor = ModuleExecutor(module, self.device, engine, spare=True)
        return {"engine": self.executor.engine, "engine_facts": self.executor.engine_facts()}, ()

    @property
    def executor(self) -> ModuleExecutor:
        """Executor of the open model.

        Raises:
            Refused: no model is open.
        """
        if self._executor is None:
            raise Refused("no model is open here")
        return self._executor

    def run(self, inputs: Tensors) -> Answer:
        """Inputs → ``{engine, note}`` and outputs: run one inference."""
        execution = self.executor.run_module(inputs)
        return {"engine": execution.engine, "note": execution.note}, execution.outputs

    def engine_state(self, _: Tensors) -> Answer:
        """``{}`` → ``{words, wrong}``: state of the engine in words, and true if somebody should look at it."""
        text, wrong = self.executor.engine_state()
        return {"words": text, "wrong": wrong}, ()

    def engine_ready(self, _: Tensors, timeout_s: float) -> Answer:
        """``{timeout_s}`` → ``{ready}``: wait for builds of engines."""
        return {"ready": self.executor.engine_ready(timeout_s)}, ()


class PlanHandler:
    """Handles requests about the robot's half of split plans, one inference at a time."""

    def __init__(self, models: ModelHandler) -> None:
        self._models = models
        self._place = place_of(models.device)
        self._traced: Dict[str, TracedNetwork] = {}
        self._shared: Dict[str, Any] = {}
        self._plans: Dict[int, ReadyPlan] = {}
        self._half: Optional[PieceHalf] = None
        self._ready: Optional[ReadyPlan] = None
        self._next_block = self._run = 0

    def profile_network(self, _: Tensors, sequence: str, repeats: int) -> Answer:
        """``{sequence, repeats}`` → ``{profile}``: time a network that this process has."""
        return {"profile": self._place.measure_profile(self._traced[sequence], repeats).to_record()}, ()

    def copy_to_device(self, tensors: Tensors) -> Answer:
        """Copy rows to the device and drop them, so that the parent can time copies."""
        if isinstance(self._place, GpuSplitDevice):
            self._place.copy_in(tensors[0])
        return {}, ()

    def copy_from_device(self, _: Tensors, nbytes: int) -> Answer:
        """``{nbytes}`` → that many bytes, copied from the device so that the parent can time copies."""
        return {}, [
            self._place.copy_out(nbytes)
            if isinstance(self._place, GpuSplitDevice)
            else torch.zeros(nbytes, dtype=torch.uint8)
        ]

    def trace_model(self, examples: Tensors, sequence: str) -> Answer:
        """``{sequence}`` and inputs: trace the open model.

        Raises:
            Refused: the traced sequence has another hash than ``sequence``.
        """
        examples = [tensor.clone() for tensor in examples]
        network = trace_module(self._models.name, self._models.executor.module, examples)
        if sequence_hash(network.program.sequence) != sequence:
            raise Refused("the model is traced differently in the executor process")
        self._traced[sequence], self._shared[sequence] = network, self._place.share_values(network)
        return {}, ()

    def add_record(self, tensors: Tensors, sequence: str, name: str, digests: List[str]) -> Answer:
        """``{sequence, name, digests}`` with the encoded sequence, inputs and constants: add a recorded network."""
        encoded, *rest = [tensor.clone() for tensor in tensors]
        inputs, constants = rest[: len(rest) - len(digests)], rest[len(rest) - len(digests) :]
        program = TracedProgram(wire.decode(encoded.numpy().tobytes()), dict(zip(digests, constants)))
        network = TracedNetwork(name, program, locate_along(name, program.sequence, None), tuple(inputs))
        self._traced[sequence], self._shared[sequence] = network, self._place.share_values(network)
        return {}, ()

    def add_plan(self, _: Tensors, number: int, sequence: str, text: str) -> Answer:
        """``{number, sequence, text}`` → ``{known}``: add a plan; false: this process has no such network."""
        if sequence not in self._traced:
            return {"known": False}, ()
        if len(self._plans) >= 4 * MAX_PLANS:
            self._plans.clear()
        self._plans[number] = compile_ready(SplitPlan.from_json(text), self._traced[sequence].located, sequence)
        return {"known": True}, ()

    def begin_inference(self, _: Tensors, number: int, sequence: str, run: int) -> Answer:
        """``{number, sequence, run}`` → ``{known}``: start an inference in place of the previous one.

        ``known`` is false if this process has no such plan.
        """
        self._ready = self._plans.get(number)
        if self._ready is None:
            return {"known": False}, ()
        located, shared = self._traced[sequence].located, self._shared[sequence]
        self._half, self._next_block = self._place.make_half(self._ready, Side.ROBOT, located, shared), 0
        self._run = run
        return {"known": True}, ()

    def current_half(self, run: int) -> PieceHalf:
        """Return the half of the current inference.

        Raises:
            Refused: the current inference is not ``run``.
        """
        half = self._half
        if half is None or run != self._run:
            raise Refused("another inference is under way in the executor process")
        return half

    def take_rows(self, tensors: Tensors, run: int, number: int, low: int) -> Answer:
        """``{run, number, low}`` and rows: store them as rows of value ``number``, from row ``low`` on."""
        self.current_half(run).take_rows(number, low, tensors[0])
        return {}, ()

    def advance_block(self, _: Tensors, run: int) -> Answer:
        """``{run}``: compute the next block."""
        half = self.current_half(run)
        assert self._ready is not None
        robot_plan = self._ready.sides[Side.ROBOT]
        block = robot_plan.blocks[self._next_block]
        steps = slice(block.first, block.last + 1)
        with torch.no_grad():
            half.run_block(self._ready.plan.steps_of(Side.ROBOT)[steps], robot_plan.dead[steps])
        self._next_block += 1
        return {}, ()

    def catch_up(self, _: Tensors, run: int) -> Answer:
        """``{run}`` → ``{seconds}``: wait for all blocks; ``seconds`` that the device has computed so far."""
        half = self.current_half(run)
        half.wait_blocks()
        return {"seconds": half.device_seconds()}, ()

    def fetch_rows(self, _: Tensors, run: int, number: int, low: int, high: int, blocks: int) -> Answer:
        """``{run, number, low, high, blocks}`` → ``{seconds}`` and rows [low, high) of value ``number``.

        The first ``blocks`` blocks compute these rows; ``seconds``: see :meth:`catch_up`.
        """
        half = self.current_half(run)
        with torch.no_grad():
            rows = half.fetch_rows(number, low, high, blocks)
        return {"seconds": half.device_seconds()}, [rows]


def serve_channels(channels: Dict[str, TensorChannel], device: str) -> None:
    """Answer requests on every channel until the parent closes them."""
    models = ModelHandler(device)
    handlers: Dict[str, Dict[str, Any]] = {name: {} for name in CHANNELS}
    handlers["module"] = {
        "device": models.describe_device, "open": models.open_model, "run": models.run, "state": models.engine_state,
        "ready": models.engine_ready,
    }  # fmt: skip
    try:
        plans = PlanHandler(models)
    except Exception:  # the request "device" fails likewise and reports the cause
        pass
    else:
        handlers["take"] = {"take": plans.take_rows, "copy": plans.copy_to_device}
        handlers["advance"] = {
            "trace": plans.trace_model, "record": plans.add_record, "profile": plans.profile_network,
            "plan": plans.add_plan, "begin": plans.begin_inference, "advance": plans.advance_block,
            "catch_up": plans.catch_up,
        }  # fmt: skip
        handlers["fetch"] = {"fetch": plans.fetch_rows, "copy": plans.copy_from_device}

    def serve_channel(name: str) -> None:
        try:
            channels[name].serve_requests(handlers[name])
        except LinkLost:
            os._exit(0)

    threads = [threading.Thread(target=serve_channel, args=(name,), name=f"edge-offload-{name}") for name in CHANNELS]
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too; the parent ends it
    heap.retain_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    channels = {}
    for name, fd, inbound, outbound in zip(CHANNELS, args.fds[::3], args.fds[1::3], args.fds[2::3]):
        channels[name] = TensorChannel(Channel(socket.socket(fileno=fd)), SharedRegion(outbound), SharedRegion(inbound))
    serve_channels(channels, args.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
