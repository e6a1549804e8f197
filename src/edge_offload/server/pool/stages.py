"""A network as blocks of about equal time, cut where little is alive, and stages that run some of them (4.5.3).

A batch is recorded from the batched network, size by size: the operators are those of single frames, so that a block is
the same block at every size. What is alive at a cut travels, with the strides that it has: they decide which kernel
runs next, and so the last bits.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.module import ALIGNMENT, Divided, as_tensors, fetched
from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.execute.tensors import Specs, TensorSpec
from edge_offload.ir import OperatorSequence
from edge_offload.ir.build import TracedProgram, from_module
from edge_offload.ir.liveness import last_use
from edge_offload.split.runtime.tracing import alias

#: Blocks of a network.
BLOCKS = 10
#: Batches that are tried.
MAX_BATCH = 64
#: A cut may lie by so much of a block's time beside its place, where less is alive.
AROUND = 0.45
#: Runs of which the median is taken.
REPEATS = 5

Tensors = Tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Cuts:
    """Where a network is cut: the same on all members, whoever measured.

    Attributes:
        operators: digest of the operators' names, in order.
        bounds: first operator of each block, and the number of operators.
        inputs: of one frame.
    """

    operators: str
    bounds: Tuple[int, ...]
    inputs: Specs

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.bounds) - 1

    def to_dict(self) -> Dict[str, Any]:
        """What :meth:`parse` reads."""
        return {
            "operators": self.operators, "bounds": list(self.bounds), "inputs": [spec.to_dict() for spec in self.inputs]
        }  # fmt: skip

    @classmethod
    def parse(cls, raw: Any) -> Cuts:
        """The cuts in what :meth:`to_dict` made.

        Raises:
            BadInput: it is something else.
        """
        try:
            bounds = tuple(int(bound) for bound in raw["bounds"])
            found = cls(str(raw["operators"]), bounds, tuple(TensorSpec.parse(spec) for spec in raw["inputs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                "these are no cuts of a network", remedy="measure with 'edge-offload pool profile'"
            ) from error
        if len(bounds) < 2 or bounds[0] != 0 or any(one >= other for one, other in zip(bounds, bounds[1:])):
            raise BadInput(f"cuts {bounds} do not rise from 0")
        return found


class _Batched(nn.Module):
    """A network that takes and gives a batch."""

    def __init__(self, network: nn.Module, stacks: bool) -> None:
        super().__init__()
        self.network = network
        self._stacks = stacks

    def forward(self, *frames: torch.Tensor) -> Any:
        return self.network.batch(*frames) if self._stacks else self.network(*frames)  # type: ignore[operator]


class BatchedNetwork:
    """A module, recorded as one operator sequence for each size of batch.

    Args:
        module: the whole; the read-out of a :class:`~edge_offload.execute.module.Divided` one runs frame by frame. Its
            dense part has a method ``batch``, or else its inputs and outputs have a first dimension of frames.
        inputs: of one frame.

    Raises:
        Unsupported: the module says neither.
    """

    def __init__(self, module: nn.Module, inputs: Specs) -> None:
        self.inputs = inputs
        network: nn.Module = alias(module.eval())
        self._read_out: Callable[..., object] = lambda *outputs: outputs
        if isinstance(network, Divided):
            network, self._read_out = network.dense_part()
        self._stacks = callable(getattr(network, "batch", None))
        if not self._stacks and any(spec.shape[:1] != (1,) for spec in inputs):
            raise Unsupported(
                f"{type(module).__name__} takes {', '.join(map(str, inputs))}: no batch of frames",
                remedy="give its dense part a method batch(), or inputs whose first dimension counts frames",
            )
        self._network = _Batched(network, self._stacks).eval()
        self._programs: Dict[int, TracedProgram] = {}

    def stack(self, frames: Sequence[Sequence[torch.Tensor]]) -> Tensors:
        """The inputs of frames as those of a batch."""
        join = torch.stack if self._stacks else torch.cat
        return tuple(join(list(column)) for column in zip(*frames))

    def program(self, batch: int) -> TracedProgram:
        """The sequence for a batch of this size.

        Raises:
            Unsupported: it cannot be recorded, or is another sequence than that of single frames.
        """
        if batch not in self._programs:
            program = from_module(self._network, self.stack([[spec.zeros() for spec in self.inputs]] * batch))
            if program.sequence.rebinds or not program.sequence.is_functional:
                raise Unsupported("the network changes its own buffers", remedy="serve it without a pool")
            if batch > 1 and names_digest(program.sequence) != names_digest(self.program(1).sequence):
                raise Unsupported(f"a batch of {batch} has other operators than single frames", remedy="batches of 1")
            self._programs[batch] = program
        return self._programs[batch]

    def read_out(self, outputs: Tensors, batch: int) -> List[Tensors]:
        """The module's outputs, frame by frame, of those of the sequence."""
        if any(len(tensor) != batch for tensor in outputs):
            raise Unsupported(f"the network does not keep its {batch} frames apart", remedy="batches of 1")
        parts = [tuple(tensor[at : at + 1] for tensor in outputs) for at in range(batch)]
        return [fetched(as_tensors(self._read_out(*part))) for part in parts]


class Stage:
    """Runs some blocks of a batched network.

    Args:
        network: recorded here for each size that comes.
        cuts: of the network.
        first, end: blocks; ``end`` is excluded.

    Raises:
        BadInput: the cuts are of another network.
    """

    def __init__(self, network: BatchedNetwork, cuts: Cuts, first: int, end: int) -> None:
        sequence = network.program(1).sequence
        if (
            names_digest(sequence) != cuts.operators
            or cuts.bounds[-1] != len(sequence)
            or cuts.inputs != network.inputs
        ):
            raise BadInput(
                "the plan is of another network, or of another release of torch",
                remedy="measure again with 'edge-offload pool profile', with the same versions everywhere",
            )
        if not 0 <= first < end <= cuts.blocks:
            raise BadInput(f"blocks {first} to {end} of {cuts.blocks}")
        self.network, self.cuts = network, cuts
        self.first, self.end = first, end
        self._runners: Dict[int, SequenceRunner] = {}

    @torch.no_grad()
    def run(self, batch: int, arrays: Sequence[Parcel]) -> List[Parcel]:
        """What is alive behind this stage, of what was alive before it.

        The first stage takes the inputs of each frame, in a row; the last gives the outputs of each frame so.

        Raises:
            BadInput: sizes that are none of this network's.
        """
        runner = self._runner(batch)
        sequence = runner.sequence
        bounds = self.cuts.bounds
        tensors: Sequence[torch.Tensor] = [unpacked(parcel) for parcel in arrays]
        numbers = sequence.inputs if self.first == 0 else alive(sequence, bounds[self.first])
        if len(arrays) != len(numbers) * (batch if self.first == 0 else 1):
            raise BadInput(f"{len(arrays)} tensors where {len(numbers)} are alive")
        if self.first == 0:
            tensors = self.network.stack(
                [tensors[at : at + len(numbers)] for at in range(0, len(tensors), len(numbers))]
            )
        values = runner.resume(dict(zip(numbers, tensors)))
        runner.run_range(values, bounds[self.first], bounds[self.end])
        if self.end < self.cuts.blocks:
            return [packed(values.whole(number)) for number in alive(sequence, bounds[self.end])]
        outputs = tuple(values.whole(number) for number in sequence.outputs)
        return [packed(tensor) for frame in self.network.read_out(outputs, batch) for tensor in frame]

    def warm_up(self, batch: int) -> None:
        """Record and run once, on zeros: the first run is slow."""
        sequence = self._runner(batch).sequence
        if self.first == 0:
            self.run(batch, [packed(spec.zeros()) for spec in self.network.inputs] * batch)
            return
        values = [sequence.values[number] for number in alive(sequence, self.cuts.bounds[self.first])]
        self.run(batch, [packed(TensorSpec(value.dtype, value.shape).zeros()) for value in values])

    def _runner(self, batch: int) -> SequenceRunner:
        if batch not in self._runners:
            if not 1 <= batch <= MAX_BATCH:
                raise BadInput(f"a batch of {batch}")
            program = self.network.program(batch)
            self._runners[batch] = SequenceRunner(program.sequence, program.constants)
        return self._runners[batch]


#: A tensor on its way: dtype, shape and order of its dimensions in memory, and its bytes.
Parcel = Tuple[str, Tuple[int, ...], Tuple[int, ...], Array]


def packed(tensor: torch.Tensor) -> Parcel:
    """A tensor with the order in which its dimensions lie in memory; copied only where there are gaps."""
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))
    dense = tensor.detach().permute(order).contiguous()
    raw = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
    return TensorSpec.of(tensor).dtype, tuple(tensor.shape), order, raw


def unpacked(parcel: Parcel) -> torch.Tensor:
    """The tensor of :func:`packed`, in memory as it was; its bytes are shared, and not to be written.

    Raises:
        BadInput: its bytes are not those of its shape.
    """
    dtype, shape, order, raw = parcel
    spec = TensorSpec(dtype, tuple(shape))
    if raw.dtype != np.uint8 or raw.size != spec.nbytes or sorted(order) != list(range(len(shape))):
        raise BadInput(f"{raw.size} bytes for {spec}", remedy="all members have one release of edge_offload")
    if raw.size == 0:
        return spec.zeros()
    if raw.ctypes.data % ALIGNMENT:
        flat = torch.empty(raw.size, dtype=torch.uint8)
        flat.numpy()[:] = raw
    else:
        with warnings.catch_warnings():  # nothing writes: sequences are functional
            warnings.simplefilter("ignore")
            flat = torch.from_numpy(raw)
    inverse = [order.index(dim) for dim in range(len(shape))]
    return flat.view(spec.torch_dtype).reshape([shape[dim] for dim in order]).permute(inverse)


def names_digest(sequence: OperatorSequence) -> str:
    """Tells sequences with other operators apart."""
    return hashlib.sha256("\n".join(operator.name for operator in sequence.operators).encode()).hexdigest()


def alive(sequence: OperatorSequence, at: int) -> Tuple[int, ...]:
    """Values, constants aside, that exist before operator ``at`` and are needed from there on; ascending."""
    last = last_use(sequence)
    made = {number for operator in sequence.operators[:at] for number in operator.makes()} | set(sequence.inputs)
    return tuple(sorted(number for number in made if last[number] >= at))


def alive_bytes(sequence: OperatorSequence, at: int) -> int:
    """Bytes of :func:`alive`."""
    return sum(sequence.values[number].nbytes for number in alive(sequence, at))


def cut(network: BatchedNetwork, blocks: int = BLOCKS) -> Cuts:
    """Blocks of about equal time on this machine, with little alive between them."""
    program = network.program(1)
    sequence = program.sequence
    ends = np.cumsum(operator_seconds(program, network))
    sizes = [alive_bytes(sequence, at) for at in range(len(sequence) + 1)]
    own = ends[-1] / blocks
    bounds = [0]
    for block in range(1, blocks):
        place = block * own
        near = [at for at in range(bounds[-1] + 1, len(sequence)) if abs(float(ends[at - 1]) - place) <= AROUND * own]
        if near:
            bounds.append(min(near, key=lambda at: (sizes[at], abs(float(ends[at - 1]) - place))))
    return Cuts(names_digest(sequence), (*bounds, len(sequence)), network.inputs)


@torch.no_grad()
def operator_seconds(program: TracedProgram, network: BatchedNetwork) -> Array:
    """Seconds of each operator of single frames, the least of some runs."""
    runner = SequenceRunner(program.sequence, program.constants)
    found = np.full((REPEATS, len(program.sequence)), np.inf)
    for turn in range(REPEATS):
        values = runner.begin(network.stack([[spec.zeros() for spec in network.inputs]]))
        for index in range(len(program.sequence)):
            began = time.perf_counter()
            runner.run_range(values, index, index + 1)
            found[turn, index] = time.perf_counter() - began
    least: Array = found.min(axis=0)
    return least


def measure(network: BatchedNetwork, cuts: Cuts, largest: int, progress: Callable[[str], None]) -> Tuple[Array, Array]:
    """Seconds [blocks, batch - 1] on this machine, and bytes of one frame after each block but the last."""
    taken = np.zeros((cuts.blocks, largest))
    for batch in range(1, largest + 1):
        stages = [Stage(network, cuts, block, block + 1) for block in range(cuts.blocks)]
        runs: List[List[float]] = [[] for _ in stages]
        for _ in range(REPEATS + 1):
            arrays = [packed(spec.zeros()) for spec in network.inputs] * batch
            for block, stage in enumerate(stages):
                began = time.perf_counter()
                arrays = stage.run(batch, arrays)
                runs[block].append(time.perf_counter() - began)
        taken[:, batch - 1] = [statistics.median(of[1:]) for of in runs]  # kernels are chosen in the first
        progress(f"batch {batch}: {1e3 * float(taken[:, batch - 1].sum()):.1f} ms in {cuts.blocks} blocks")
    sequence = network.program(1).sequence
    return taken, np.array([alive_bytes(sequence, bound) for bound in cuts.bounds[1:-1]], float)


#: File of a profile's folder that says where networks are cut.
CUTS_FILE = "blocks.json"


@dataclass(frozen=True)
class Model:
    """What members build: a model of the registry, and its cuts.

    Attributes:
        name, options: of the registry.
        state_hash: of its weights.
        cuts: of its network.
    """

    name: str
    options: Mapping[str, Any]
    state_hash: str
    cuts: Cuts


def load_models(folder: pathlib.Path) -> Dict[str, Model]:
    """Models of a profile's folder, by name.

    Raises:
        BadInput: the file is missing or malformed.
    """
    path = folder / CUTS_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): Model(str(name), dict(of["options"]), str(of["state_hash"]), Cuts.parse(of["cuts"]))
            for name, of in raw.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"cannot read {path}: {error}", remedy="measure with 'edge-offload pool profile'") from error


def save_models(folder: pathlib.Path, models: Mapping[str, Model]) -> None:
    """Write what :func:`load_models` reads."""
    raw = {
        name: {"options": dict(model.options), "state_hash": model.state_hash, "cuts": model.cuts.to_dict()}
        for name, model in models.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CUTS_FILE).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def inputs_of(text: str) -> Specs:
    """``uint8[3,448,640]`` as specs, several with semicolons.

    Raises:
        BadInput: it is not of that form.
    """
    found = []
    for part in text.split(";"):
        dtype, bracket, rest = part.strip().partition("[")
        sizes = rest.rstrip("]").split(",")
        if not bracket or not all(size.strip().isdigit() for size in sizes):
            raise BadInput(f"--input {text!r}", remedy="write 'uint8[3,448,640]'")
        found.append(TensorSpec.parse({"dtype": dtype, "shape": [int(size) for size in sizes]}))
    return tuple(found)
