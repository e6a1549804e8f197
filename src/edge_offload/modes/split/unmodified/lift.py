"""A recorded segment that is a whole inference as an :class:`OperatorSequence`: what the program issued, as a function.

Uploads, and tensors of the host that travel with a call, are its inputs, storages that lived before are its constants,
the one download at its end is its output. Looks into storages become view operators (:mod:`edge_offload.passes.views`),
writes become new values. What is not a function of its uploads, or cannot be told to be, is refused in words; nothing
is guessed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch._C._functorch import is_functionaltensor
from torch.fx.experimental.proxy_tensor import make_fx

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, Unsupported
from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.build import TracedProgram, from_graph_module
from edge_offload.ir.device_guard import keep_device_guard
from edge_offload.ir.operators import HostNumber, HostTensor, Layout, StorageRef, View
from edge_offload.ir.trace.calls import ALLOC, DOWNLOAD, NEW, UPLOAD, BoundOperator, host_number
from edge_offload.ir.trace.keys import DTYPES, ITEM_BYTES
from edge_offload.ir.trace.segments import Segment, SegmentStep, StepOutcome
from edge_offload.ir.trace.storage import StorageBuffer
from edge_offload.passes.expansions import encoder_layer
from edge_offload.passes.folding import Folded, fold_constants
from edge_offload.passes.views import is_dense, laid_out, view_as
from edge_offload.protocol.messages import tensor_bytes
from edge_offload.replay.signatures import Definition, TableCall

FIRST_STORAGE = 1 << 60
"""Number of the first storage that a segment makes where it is run to see what it does."""
_COPY = "aten::copy_"
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}
"""Of the largest value: how far the sequence may be from what the device gave for the same input."""


@dataclass(frozen=True)
class CapturedInference:
    """An inference that was recorded.

    Attributes:
        program: sequence and constants; its inputs are the uploads in order, its outputs what is read.
        made: for each call, which number, in the segment, each storage has that it makes.
    """

    program: TracedProgram
    made: Tuple[Tuple[int, ...], ...]


class CallReader:
    """Reads segments; each distinct call once."""

    def __init__(self) -> None:
        self._operators: Dict[Tuple[str, bytes], BoundOperator] = {}

    def read_segment(self, definition: Definition) -> Segment:
        """The calls of a segment.

        Raises:
            EdgeOffloadError: one of them is malformed.
        """
        return Segment.from_calls(
            (self._bind_call(call), references) for call, references in definition.calls_with_storages()
        )

    def _bind_call(self, call: TableCall) -> BoundOperator:
        operator = self._operators.get((call.name, call.key))
        if operator is None:
            operator = self._operators[call.name, call.key] = BoundOperator(call.name, call.key, torch.device("cpu"))
        return operator


def unavailable_reason(segment: Segment, live: Sequence[Tuple[int, int]], reads: int = 1) -> Optional[str]:
    """Why a segment is no inference that could be split, in words, as far as its calls tell; None if it may be one.

    Args:
        segment: of an inference that is read several times, all of its segments.
        live: (number in it, storage) of what lived before.
        reads: how many there are.
    """
    calls = segment.calls
    names = [entry.name for entry, _, _ in calls]
    most = 20_000
    if len(calls) > most:
        return f"it has more than {most} calls"
    if UPLOAD not in names:
        return "nothing is uploaded in it"
    if names.count(DOWNLOAD) != reads or names[-1] != DOWNLOAD:
        return "it does not end in a read"
    if segment.written.intersection(canonical for canonical, _ in live):
        return "it changes a tensor that lived before"
    for entry, _, _ in calls:
        if entry.refused is not None:
            return str(entry.refused)
        if entry.overload is None:
            if entry.name not in (ALLOC, UPLOAD, DOWNLOAD):
                return f"it contains {entry.name.replace('edge::', 'a call to ')}"
        elif entry.random and not _is_deterministic(entry):
            return f"{entry.name} draws random numbers"
    return None


def capture_sequence(
    segment: Segment,
    live: Sequence[Tuple[int, int]],
    storages: Mapping[int, torch.UntypedStorage],
    numbers: bytes,
    payloads: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> CapturedInference:
    """The sequence of a segment, which is run here twice to see that it gives what the device gave.

    Args:
        segment: :func:`unavailable_reason` found none.
        live: (number in the segment, storage) of what lived before.
        storages: their bytes, by storage; they become the constants' memory.
        numbers: host numbers of the calls, which become constants.
        payloads: what was uploaded.
        expected: what was read, read by read.

    Raises:
        Unsupported: it cannot be told as a function, or does not give ``expected``.
    """
    made, folded, folded_storages = _run_twice(segment, live, storages, numbers, payloads, expected[-1])
    constants = {**{number: storages[storage] for number, storage in live}, **folded_storages}
    tracer = _Tracer(segment, constants, numbers, made, folded)
    keep_device_guard()
    try:
        with torch.no_grad():
            traced = make_fx(torch.func.functionalize(tracer, remove="mutations"), tracing_mode="fake",
                             _allow_non_fake_inputs=True)(*payloads)  # fmt: skip
        program = from_graph_module(traced)
        results = SequenceRunner(program.sequence, program.constants).run(list(payloads))
    except EdgeOffloadError:
        raise
    except Exception as error:  # whatever torch raises for what it cannot trace
        raise Unsupported(f"it cannot be traced: {type(error).__name__}: {str(error).strip()[:200]}") from error
    for result, expected_one in zip(results, expected):
        check_equal(result, expected_one, "the traced sequence")
    return CapturedInference(program, made)


def _is_deterministic(entry: BoundOperator) -> bool:
    """Return True if a call that may draw random numbers does not: dropout that is off."""
    assert entry.overload is not None
    arguments = dict(zip([a.name for a in entry.overload._schema.arguments], entry.arguments))  # type: ignore[attr-defined]
    return arguments.get("train") is False or arguments.get("dropout_p") == 0.0


def _run_twice(
    segment: Segment, live: Sequence[Tuple[int, int]], storages: Mapping[int, torch.UntypedStorage], numbers: bytes,
    payloads: Sequence[torch.Tensor], expected: torch.Tensor,
) -> Tuple[Tuple[Tuple[int, ...], ...], Folded, Dict[int, torch.UntypedStorage]]:  # fmt: skip
    """Run the segment as the executor does, and so learn what each result is.

    Args:
        segment: of an inference.
        live: (number in the segment, storage) of what lived before.
        storages: their bytes, by storage.
        numbers: host numbers of the calls.
        payloads: what was uploaded.
        expected: what was read last.

    Returns:
        Numbers of the storages each call makes; what is the same each time, and its storages.
    """
    older = {number for number, _ in live}
    names = range(max(call.least for call in segment.calls) + len(segment.calls) * 64)
    _, outcome = _run_segment(segment, live, storages, numbers, payloads, frozenset(names) - older)
    assert outcome.tensor is not None
    check_equal(outcome.tensor, expected, "the recorded inference, run here,")
    made: List[Tuple[int, ...]] = []
    following = segment.first_new
    for entry, _, least in segment.calls:
        following = max(following, least)
        count = sum(result.kind == NEW for _, known in entry.results or () for result in known)
        count += entry.name == ALLOC
        made.append(tuple(range(following, following + count)))
        following += count
    folded = fold_constants(segment, made, older)
    if not folded.storages:
        return tuple(made), folded, {}
    session, _ = _run_segment(segment, live, storages, numbers, payloads, frozenset(names) - older - folded.storages)
    places = {number: place for place, number in enumerate(number for call in made for number in call)}
    return (
        tuple(made),
        folded,
        {number: session.buffers[FIRST_STORAGE + places[number]].storage for number in folded.storages},
    )


def _run_segment(
    segment: Segment, live: Sequence[Tuple[int, int]], storages: Mapping[int, torch.UntypedStorage], numbers: bytes,
    payloads: Sequence[torch.Tensor], dead: FrozenSet[int],
) -> Tuple[DeviceSession, StepOutcome]:  # fmt: skip
    """Run a segment in a session of its own; of what it makes, ``dead`` is dropped after its last use."""
    session = DeviceSession("cpu")
    for _, storage in live:
        session.buffers[storage] = StorageBuffer(storages[storage])
    step = SegmentStep(0, FIRST_STORAGE, live, sorted(dead), numbers, [tensor_bytes(payload) for payload in payloads])
    return session, session.run(step, segment=segment)


def check_equal(result: torch.Tensor, expected: torch.Tensor, what: str, slack: float = 1.0) -> None:
    """See that two results are the same up to rounding (times ``slack``); integers to the last bit.

    Raises:
        Unsupported: they are not; ``what`` gave ``result``.
    """
    bound = slack * _TOLERANCE.get(expected.dtype, 0.0)
    alike = result.dtype == expected.dtype and result.shape == expected.shape
    if alike and not torch.equal(result, expected):
        scale = float(torch.nan_to_num(expected).abs().max()) if expected.numel() else 0.0
        alike = bound > 0 and torch.allclose(result, expected, rtol=0.0, atol=bound * scale, equal_nan=True)
    if not alike:
        raise Unsupported(f"{what} does not give what the device gave")


@dataclass
class _Cell:
    """A storage while the segment is traced: the tensor that fills it, and how that lies in it."""

    nbytes: int
    tensor: Optional[torch.Tensor] = None
    layout: Optional[Layout] = None


class _Tracer:
    """Issues the calls of a segment on whatever tensors stand for the uploads; called by torch's tracer."""

    def __init__(
        self, segment: Segment, storages: Mapping[int, torch.UntypedStorage], numbers: bytes,
        made: Sequence[Tuple[int, ...]], folded: Folded,
    ) -> None:  # fmt: skip
        self._segment = segment
        self._made, self._folded = made, folded
        self._storages = storages
        self._constants: Dict[Tuple[int, Layout], torch.Tensor] = {}
        self._scalars: Dict[Tuple[int, int], Any] = {}
        writes = Counter(references[at] for entry, references, _ in segment.calls for at in entry.written)
        self._rewritten = {canonical for canonical, count in writes.items() if count > 1}
        self._written_last = {
            references[at]: index for index, (entry, references, _) in enumerate(segment.calls) for at in entry.written
        }
        place = 0
        for index, (entry, references, _) in enumerate(segment.calls):
            for view in entry.views if index not in folded.calls else ():
                operand = (references[view.reference], view.layout)
                storage = storages.get(operand[0])
                if storage is not None and operand not in self._constants:
                    self._constants[operand] = StorageBuffer(storage).view(view.layout).clone()
            for leaf in entry.numbers:
                self._scalars[index, leaf.number] = host_number(numbers[16 * (place + leaf.number) :], leaf)
            place += entry.number_count

    def __call__(self, *payloads: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        cells: Dict[int, _Cell] = {}
        read: List[torch.Tensor] = []
        uploads = iter(payloads)
        following = self._segment.first_new
        for index, (entry, references, least) in enumerate(self._segment.calls):
            background.check()
            following = max(following, least)
            if index in self._folded.calls:
                following += len(self._made[index])
            elif entry.name == ALLOC:
                (size,) = entry.operator.args
                assert isinstance(size, int)
                cells[following] = _Cell(size)
                following += 1
            elif entry.name == UPLOAD:
                copies = references[0] in self._rewritten
                self._write_view(cells[references[0]], entry.views[0].layout, next(uploads), copies)
            elif entry.name == _COPY and len(entry.views) == 2:
                source_number = references[entry.views[1].reference]
                source = self._read_tensor(cells, source_number, entry.views[1].layout)
                copies = references[0] in self._rewritten or self._written_last.get(source_number, -1) > index
                self._write_view(cells[references[0]], entry.views[0].layout, source, copies)
            elif entry.name == DOWNLOAD:
                tensor_read = self._read_tensor(cells, references[0], entry.views[0].layout)
                written_later = self._written_last.get(references[0], -1) > index
                read.append(torch.ops.aten.clone.default(tensor_read) if written_later else tensor_read)
            else:
                hosts = [next(uploads) for _ in entry.hosts]
                for result, tensor in self._issue_call(cells, index, entry, references, hosts):
                    if self._written_last.get(following, -1) > index:
                        tensor = _make_writable(tensor, result.layout)
                    cells[following] = _Cell(result.storage_bytes, tensor, result.layout)
                    following += 1
        return tuple(read)

    def _write_view(self, cell: _Cell, layout: Layout, source: torch.Tensor, copies: bool) -> None:
        """Copy ``source`` into a view of a storage; one that fills all of it becomes what is in it.

        Args:
            cell: the storage.
            layout: of the view.
            source: of the same sizes, or of such as expand to them.
            copies: whether one of the two is written later, which the other must not see.
        """
        dtype = DTYPES[layout.dtype]
        fills_offset = layout.offset == 0 and not layout.flags and is_dense(layout)
        if not fills_offset or _count_elements(layout) * ITEM_BYTES[dtype] != cell.nbytes:
            self._view_cell(cell, layout).copy_(source)
            return
        converted = source if source.dtype == dtype else torch.ops.aten._to_copy.default(source, dtype=dtype)
        if tuple(converted.shape) != layout.sizes:
            converted = torch.ops.aten.expand.default(converted, list(layout.sizes))
        cell.tensor, cell.layout = laid_out(converted, layout), layout
        if copies and converted.dtype == source.dtype:
            cell.tensor = torch.ops.aten.clone.default(cell.tensor)

    def _read_tensor(self, cells: Mapping[int, _Cell], canonical: int, layout: Layout) -> torch.Tensor:
        constant = self._constants.get((canonical, layout))
        return constant if constant is not None else self._view_cell(cells[canonical], layout)

    @staticmethod
    def _view_cell(cell: _Cell, layout: Layout) -> torch.Tensor:
        if cell.tensor is None:  # nothing was written to it yet, and nobody can tell what is in it
            dtype = DTYPES[layout.dtype]
            if layout.flags or cell.nbytes % ITEM_BYTES[dtype]:
                raise Unsupported("fresh memory is viewed in a way that no tensor is")
            count = cell.nbytes // ITEM_BYTES[dtype]
            if layout.offset == 0 and is_dense(layout) and _count_elements(layout) == count:
                cell.tensor, cell.layout = laid_out(torch.zeros(layout.sizes, dtype=dtype), layout), layout
            else:
                cell.tensor = torch.zeros(count, dtype=dtype)
                cell.layout = Layout(layout.dtype, 0, (count,), (1,), 0)
        assert cell.layout is not None
        return view_as(cell.tensor, cell.layout, layout)

    def _issue_call(
        self, cells: Mapping[int, _Cell], index: int, entry: BoundOperator, references: Sequence[int],
        hosts: Sequence[torch.Tensor],
    ) -> Iterator[Any]:  # fmt: skip
        assert entry.overload is not None
        schema = entry.overload._schema  # type: ignore[attr-defined]
        arguments = [
            _convert_constant(argument, self._fill_argument(cells, index, entry, references, hosts, value))
            for argument, value in zip(schema.arguments, entry.arguments)
        ]
        named = dict(zip(entry.keywords, arguments[entry.positional :]))
        returned = _call_overload(entry, arguments[: entry.positional], named)
        returns = returned if isinstance(returned, tuple) else (returned,) if returned is not None else ()
        for (_, known), value in zip(entry.results or (), returns):
            for result, tensor in zip(known, value if isinstance(value, (list, tuple)) else (value,)):
                if result.kind != NEW:
                    continue
                assert result.layout is not None
                if tuple(tensor.shape) != result.layout.sizes:
                    raise Unsupported(f"{entry.name} gives another shape when it is traced")
                yield result, tensor

    def _fill_argument(
        self, cells: Mapping[int, _Cell], index: int, entry: BoundOperator, references: Sequence[int],
        hosts: Sequence[torch.Tensor], value: Any,
    ) -> Any:  # fmt: skip
        if isinstance(value, View):
            return self._read_tensor(cells, references[value.reference], value.layout)
        if isinstance(value, HostNumber):
            return self._scalars[index, value.number]
        if isinstance(value, HostTensor):
            return hosts[value.number]
        if isinstance(value, StorageRef):
            raise Unsupported(f"{entry.name} takes a storage")
        if isinstance(value, list):
            return [self._fill_argument(cells, index, entry, references, hosts, item) for item in value]
        return value


def _make_writable(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """What can be written to while it is traced: what was made of constants alone is not torch's to replace."""
    if is_functionaltensor(tensor):
        return tensor
    fresh = laid_out(torch.zeros(layout.sizes, dtype=tensor.dtype), layout)
    return fresh.copy_(tensor)


def _call_overload(entry: BoundOperator, arguments: List[Any], named: Dict[str, Any]) -> Any:
    """Issue a call under the name that modules are traced under; the kernel is the same."""
    aten = torch.ops.aten
    if entry.name == "aten::_convolution":
        return aten.convolution.default(*arguments[:9])
    if entry.name in ("aten::native_batch_norm", "aten::batch_norm"):
        overload: Any = entry.overload
        by_name = dict(zip([argument.name for argument in overload._schema.arguments], arguments))
        if by_name.pop("training") is False:
            by_name.pop("cudnn_enabled", None)
            normalized = aten._native_batch_norm_legit_no_training.default(*by_name.values())
            return normalized if entry.name == "aten::native_batch_norm" else normalized[0]
    if entry.name == "aten::_transformer_encoder_layer_fwd":
        return encoder_layer(*arguments)
    assert entry.overload is not None
    return entry.overload(*arguments, **named)


def _convert_constant(argument: Any, value: Any) -> Any:
    """Convert torch's numbers for dtypes, layouts and memory formats."""
    if type(value) is not int:
        return value
    kind = str(argument.real_type)
    if "ScalarType" in kind:
        return DTYPES[value]
    if "MemoryFormat" in kind:
        return _FORMATS[value]
    if "Layout" in kind:
        return torch.strided
    return value


def _count_elements(layout: Layout) -> int:
    total = 1
    for size in layout.sizes:
        total *= size
    return total
