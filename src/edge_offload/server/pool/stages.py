"""A network as blocks of about equal time, cut where little is alive, and stages that run some of them (4.5.3).

A batch is recorded from the batched network, size by size: the operators are those of single frames, so that a block is
the same block at every size. Values that are alive at a cut are sent with their strides, which decide the next kernel,
and so the last bits.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

import torch
from torch import nn

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute import devices
from edge_offload.execute.module import Divided, as_tensors, fetch_outputs
from edge_offload.execute.sequence_runner import SequenceRunner, laid_out
from edge_offload.execute.tensors import Specs, TensorSpec
from edge_offload.ir import OperatorSequence
from edge_offload.ir.build import TracedProgram, from_module
from edge_offload.ir.liveness import last_use
from edge_offload.server.pool.graphs import GraphedStage, StageFunction, graph_backend
from edge_offload.server.pool.parcels import Parcel, pack_tensor, unpack_tensor
from edge_offload.split.runtime.tracing import alias_module

#: Limit of batch sizes.
MAX_BATCH = 64

Tensors = Tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Cuts:
    """Cuts of a network: equal on all members.

    Attributes:
        operators: digest of the operators' names, in order.
        bounds: first operator of each block, and the number of operators.
        inputs: of one frame.
    """

    operators: str
    bounds: Tuple[int, ...]
    inputs: Specs

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return len(self.bounds) - 1

    def to_dict(self) -> Dict[str, Any]:
        """Return a form for :meth:`parse`."""
        return {
            "operators": self.operators, "bounds": list(self.bounds), "inputs": [spec.to_dict() for spec in self.inputs]
        }  # fmt: skip

    @classmethod
    def parse(cls, raw: Any) -> Cuts:
        """Return the cuts of :meth:`to_dict`.

        Raises:
            BadInput: it is malformed.
        """
        try:
            bounds = tuple(int(bound) for bound in raw["bounds"])
            cuts = cls(str(raw["operators"]), bounds, tuple(TensorSpec.parse(spec) for spec in raw["inputs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                "these are no cuts of a network", remedy="measure with 'edge-offload pool profile'"
            ) from error
        if len(bounds) < 2 or bounds[0] != 0 or any(one >= other for one, other in zip(bounds, bounds[1:])):
            raise BadInput(f"cuts {bounds} do not rise from 0")
        return cuts


class _Batched(nn.Module):
    """Network with a batch as input and output."""

    def __init__(self, network: nn.Module, stacks: bool) -> None:
        super().__init__()
        self.network = network
        self._stacks = stacks

    def forward(self, *frames: torch.Tensor) -> Any:
        return self.network.batch(*frames) if self._stacks else self.network(*frames)  # type: ignore[operator]


class BatchedNetwork:
    """A module, recorded as one operator sequence for each size of batch, with its constants on a device.

    It is recorded from the module on the CPU, so that the operators are the same on every device.

    Args:
        module: the whole; the read-out of a :class:`~edge_offload.execute.module.Divided` one runs frame by frame. Its
            dense part has a method ``batch``, or else its inputs and outputs have a first dimension of frames.
        inputs: of one frame.
        device: a GPU has one copy of the constants, for all stages and sizes. A read-out that is no ``nn.Module`` is
            computed on the CPU.

    Raises:
        Unsupported: the module has neither.
    """

    def __init__(self, module: nn.Module, inputs: Specs, device: Union[str, torch.device] = "cpu") -> None:
        self.inputs = inputs
        self.device = devices.fix_kernel_choice(torch.device(device))
        network: nn.Module = alias_module(module.eval())
        self._read_out: Callable[..., object] = lambda *outputs: outputs
        if isinstance(network, Divided):
            network, self._read_out = network.dense_part()
            self._place_read_out()
        self._stacks = callable(getattr(network, "batch", None))
        if not self._stacks and any(spec.shape[:1] != (1,) for spec in inputs):
            raise Unsupported(
                f"{type(module).__name__} takes {', '.join(map(str, inputs))}: no batch of frames",
                remedy="give its dense part a method batch(), or inputs whose first dimension counts frames",
            )
        self._network = _Batched(network, self._stacks).eval()
        self._programs: Dict[int, TracedProgram] = {}
        self._runners: Dict[int, SequenceRunner] = {}
        self._constants: Dict[str, torch.Tensor] = {}

    def _place_read_out(self) -> None:
        if self.device.type == "cpu":
            return
        if isinstance(self._read_out, nn.Module):
            self._read_out = alias_module(self._read_out).to(self.device)
        else:
            on_cpu = self._read_out
            self._read_out = lambda *outputs: on_cpu(*fetch_outputs(outputs))

    def stack_frames(self, frames: Sequence[Sequence[torch.Tensor]]) -> Tensors:
        """Stack the inputs of frames to those of a batch."""
        join = torch.stack if self._stacks else torch.cat
        return tuple(join(list(column)) for column in zip(*frames))

    def program_for(self, batch: int) -> TracedProgram:
        """Return the sequence for a batch of this size.

        Raises:
            Unsupported: it cannot be recorded, or is another sequence than that of single frames.
        """
        if batch not in self._programs:
            program = from_module(self._network, self.stack_frames([[spec.zeros() for spec in self.inputs]] * batch))
            if program.sequence.rebinds or not program.sequence.is_functional:
                raise Unsupported("the network changes its own buffers", remedy="serve it without a pool")
            if batch > 1 and names_digest(program.sequence) != names_digest(self.program_for(1).sequence):
                raise Unsupported(f"a batch of {batch} has other operators than single frames", remedy="batches of 1")
            self._programs[batch] = program
        return self._programs[batch]

    def runner_for(self, batch: int) -> SequenceRunner:
        """Return the runner of the sequence for a batch of this size on the device.

        Raises:
            BadInput: the size is out of range.
            Unsupported: as :meth:`program_for`.
            OutOfMemory, DeviceLost: the GPU failed.
        """
        if batch not in self._runners:
            if not 1 <= batch <= MAX_BATCH:
                raise BadInput(f"a batch of {batch}", remedy=f"1 to {MAX_BATCH} frames")
            program = self.program_for(batch)
            with devices.gpu_failures():
                self._place_constants(program)
                self._runners[batch] = SequenceRunner(program.sequence, self._constants, str(self.device))
        return self._runners[batch]

    def _place_constants(self, program: TracedProgram) -> None:
        """Put constants that are not there yet on the device, with the strides that the program has for them."""
        for number, digest in program.sequence.constants.items():
            if digest not in self._constants:
                value = program.sequence.values[number]
                self._constants[digest] = laid_out(program.constants[digest], value, str(self.device))

    def split_outputs(self, outputs: Tensors, batch: int) -> List[Tensors]:
        """Return the module's outputs, frame by frame, from those of the sequence."""
        if any(len(tensor) != batch for tensor in outputs):
            raise Unsupported(f"the network does not keep its {batch} frames apart", remedy="batches of 1")
        parts = [tuple(tensor[at : at + 1] for tensor in outputs) for at in range(batch)]
        return [fetch_outputs(as_tensors(self._read_out(*part))) for part in parts]


class StageRunner:
    """Runs some blocks of a batched network, on the network's device.

    Args:
        network: recorded for each size in use.
        cuts: of the network.
        first, end: blocks; ``end`` is excluded.

    Raises:
        BadInput: the cuts are of another network.
    """

    def __init__(self, network: BatchedNetwork, cuts: Cuts, first: int, end: int) -> None:
        sequence = network.program_for(1).sequence
        if (
            names_digest(sequence) != cuts.operators
            or cuts.bounds[-1] != len(sequence)
            or cuts.inputs != network.inputs
        ):
            raise BadInput(
                "the plan is of another network, or of another release of torch",
                remedy="measure again with 'edge-offload pool profile', with the same versions everywhere",
            )
        if not 0 <= first < end <= cuts.block_count:
            raise BadInput(f"blocks {first} to {end} of {cuts.block_count}")
        self.network, self.cuts = network, cuts
        self.first, self.end = first, end
        self._stage = GraphedStage(f"stage {first}-{end}", self._stage_function, graph_backend(network.device))

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return self.network.device

    @torch.no_grad()
    def run(self, batch: int, arrays: Sequence[Parcel]) -> List[Parcel]:
        """Return the values that are alive behind this stage from those before it.

        The first stage receives the inputs of each frame, in a row; the last returns the outputs of each frame in a
        row.

        Raises:
            BadInput: sizes that are none of this network's.
            OutOfMemory, DeviceLost: the GPU failed.
        """
        with devices.gpu_failures():
            devices.select_device(self.device)  # of this thread
            return self._run_blocks(batch, arrays)

    def _run_blocks(self, batch: int, arrays: Sequence[Parcel]) -> List[Parcel]:
        runner = self.network.runner_for(batch)
        sequence = runner.sequence
        bounds = self.cuts.bounds
        tensors: Sequence[torch.Tensor] = [unpack_tensor(parcel, self.device) for parcel in arrays]
        numbers = sequence.inputs if self.first == 0 else alive_values(sequence, bounds[self.first])
        if len(arrays) != len(numbers) * (batch if self.first == 0 else 1):
            raise BadInput(f"{len(arrays)} tensors where {len(numbers)} are alive")
        if self.first == 0:
            tensors = self.network.stack_frames(
                [tensors[at : at + len(numbers)] for at in range(0, len(tensors), len(numbers))]
            )
        outputs = tuple(self._stage.run(batch, tensors))
        if self.end < self.cuts.block_count:
            return [pack_tensor(output) for output in outputs]
        return [pack_tensor(tensor) for frame in self.network.split_outputs(outputs, batch) for tensor in frame]

    def _stage_function(self, batch: int) -> StageFunction:
        """Return a function that computes the stage by calls, for batches of this size."""
        runner = self.network.runner_for(batch)
        sequence, (first, end) = runner.sequence, (self.cuts.bounds[self.first], self.cuts.bounds[self.end])
        numbers = sequence.inputs if self.first == 0 else alive_values(sequence, first)
        results = alive_values(sequence, end) if self.end < self.cuts.block_count else sequence.outputs

        def run(tensors: Sequence[torch.Tensor]) -> Tensors:
            values = runner.resume_inference(dict(zip(numbers, tensors)))
            runner.run_range(values, first, end)
            return tuple(values.whole(number) for number in results)

        return run

    def warm_up(self, batch: int) -> None:
        """Record and run once, on zeros: the first run is slow."""
        sequence = self.network.runner_for(batch).sequence
        if self.first == 0:
            self.run(batch, [pack_tensor(spec.zeros()) for spec in self.network.inputs] * batch)
            return
        values = [sequence.values[number] for number in alive_values(sequence, self.cuts.bounds[self.first])]
        self.run(batch, [pack_tensor(TensorSpec(value.dtype, value.shape).zeros()) for value in values])


def names_digest(sequence: OperatorSequence) -> str:
    """Hash the operators' names, which tells sequences apart."""
    return hashlib.sha256("\n".join(operator.name for operator in sequence.operators).encode()).hexdigest()


def alive_values(sequence: OperatorSequence, at: int) -> Tuple[int, ...]:
    """Return values, constants aside, that exist before operator ``at`` and are needed from there on; ascending."""
    last = last_use(sequence)
    produced = {number for operator in sequence.operators[:at] for number in operator.output_ids()} | set(
        sequence.inputs
    )
    return tuple(sorted(number for number in produced if last[number] >= at))


def alive_bytes(sequence: OperatorSequence, at: int) -> int:
    """Return the bytes of :func:`alive_values`."""
    return sum(sequence.values[number].nbytes for number in alive_values(sequence, at))


#: File of a profile's folder with the cuts of networks.
CUTS_FILE = "blocks.json"


@dataclass(frozen=True)
class PoolModel:
    """Model of members: one of the registry, and its cuts.

    Attributes:
        name, options: of the registry.
        state_hash: of its weights.
        cuts: of its network.
        devices: label of the device on which each class was measured, by class; by default the CPU.
    """

    name: str
    options: Mapping[str, Any]
    state_hash: str
    cuts: Cuts
    devices: Mapping[str, str] = field(default_factory=dict)


def load_models(folder: pathlib.Path) -> Dict[str, PoolModel]:
    """Load models of a profile's folder, by name.

    Raises:
        BadInput: the file is missing or malformed.
    """
    path = folder / CUTS_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): PoolModel(
                str(name),
                dict(entry["options"]),
                str(entry["state_hash"]),
                Cuts.parse(entry["cuts"]),
                {str(gpu): str(label) for gpu, label in entry.get("devices", {}).items()},
            )
            for name, entry in raw.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"cannot read {path}: {error}", remedy="measure with 'edge-offload pool profile'") from error


def save_models(folder: pathlib.Path, models: Mapping[str, PoolModel]) -> None:
    """Write the file of :func:`load_models`."""
    raw = {
        name: {
            "options": dict(model.options),
            "state_hash": model.state_hash,
            "cuts": model.cuts.to_dict(),
            "devices": dict(model.devices),
        }
        for name, model in models.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CUTS_FILE).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def parse_inputs(text: str) -> Specs:
    """Parse specs like ``uint8[3,448,640]``, several with semicolons.

    Raises:
        BadInput: it is not of that form.
    """
    specs = []
    for part in text.split(";"):
        dtype, bracket, rest = part.strip().partition("[")
        sizes = rest.rstrip("]").split(",")
        if not bracket or not all(size.strip().isdigit() for size in sizes):
            raise BadInput(f"--input {text!r}", remedy="write 'uint8[3,448,640]'")
        specs.append(TensorSpec.parse({"dtype": dtype, "shape": [int(size) for size in sizes]}))
    return tuple(specs)
