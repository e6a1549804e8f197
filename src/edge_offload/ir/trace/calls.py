"""Operators bound to their kernels, and what they run on: storages, results, parameters of the host."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from edge_offload.errors import ProtocolError, Unsupported
from edge_offload.ir.operators import Arg, HostNumber, HostTensor, Layout, StorageRef, Symbol, View
from edge_offload.ir.schemas import enumerated_arguments
from edge_offload.ir.trace import composed
from edge_offload.ir.trace.allowlist import SUPPORTED_NUMBERS, resolve_operator
from edge_offload.ir.trace.checksums import appended_defaults
from edge_offload.ir.trace.keys import DTYPES, ITEM_BYTES, decode_key, integers_of

Buffer = Union[bytes, bytearray, memoryview]
#: Calls that are not operators: allocation, growth, copies from and to the host; a generator's seed, state, new state.
SPECIAL = ALLOC, RESIZE, UPLOAD, DOWNLOAD, SEED, STATE, RESTORE = (
    "edge::alloc", "edge::resize", "edge::upload", "edge::download", "edge::seed", "edge::state", "edge::restore",
)  # fmt: skip
#: Operators that write running averages though their schemas do not say so, and the argument that makes them.
WRITES_AVERAGES = {
    "aten::native_batch_norm": "training", "aten::batch_norm": "training", "aten::instance_norm": "use_input_stats",
}  # fmt: skip


class Described(NamedTuple):
    """Result as it is described on the wire; one that is no tensor has its kind only. See :class:`Result`."""

    kind: int
    ref: int = 0
    dtype: int = 0
    flags: int = 0
    sizes: Sequence[int] = ()
    strides: Sequence[int] = ()
    offset: int = 0
    storage_bytes: int = 0


NEW, ALIAS, ARGUMENT, UNDEFINED = range(4)


@dataclass
class Result:
    """One result of a call: its kind, and (if it owns a new storage) its layout. Out of ``native/cpp/state.h``."""

    kind: int
    ref: int = 0
    layout: Optional[Layout] = None
    storage_bytes: int = 0

    def to_wire(self) -> List[Any]:
        """Packs the result for msgpack."""
        if self.layout is None:
            return [3]
        lay = self.layout
        geometry = [list(lay.sizes), list(lay.strides), lay.offset, self.storage_bytes]
        return [self.kind, self.ref, lay.dtype, lay.flags, *geometry]


class BoundOperator:
    """An operator call bound to its kernel on ``device``, and once it has run, what its results look like.

    Args:
        name, key: the call; see :func:`~edge_offload.ir.trace.keys.decode_key`.
        device: where it runs.
        claimed: results as the robot has worked them out; None if the server says what they are.
        schema: checksum of the operator's schema on the robot; 0: not known.

    Attributes:
        offsets: in bytes, of the key's integers; see :attr:`integers`.
        views, hosts, numbers: leaves of these kinds, in order.
        storages: number of the storage of each reference, in order.
        written: positions of the references that it writes to.
        appended: values of arguments that the robot's torch does not have.
        random: whether it draws random numbers.
        refused: why it is not run; its kernel is not known then.
        results, fixed: what its results were, and whether they are so every time.

    Raises:
        ProtocolError: the key is malformed.
    """

    def __init__(
        self, name: str, key: bytes, device: torch.device, claimed: Optional[List[Any]] = None, schema: int = 0
    ) -> None:
        self.name = name
        self.key = key
        self.device = device
        self.results: Optional[List[Tuple[str, List[Result]]]] = None
        self.fixed = False
        self.claimed = claimed
        self.refused: Optional[Unsupported] = None
        self.written: List[int] = []
        self.appended: Tuple[Any, ...] = ()
        self.random = name in (SEED, RESTORE)
        self.overload: Optional[Callable[..., Any]] = None
        self.kernel: Callable[..., Any] = _no_kernel
        self._decode()
        dtypes = {view.layout.dtype for view in self.views}
        dtypes |= {leaf.dtype for leaf in self.hosts} | {leaf.dtype for leaf in self.numbers}
        if not dtypes <= DTYPES.keys():
            strange = min(dtypes - DTYPES.keys())
            self.refused = Unsupported(f"operator {name!r}: dtype number {strange} is not supported")
            return
        if name in SPECIAL:
            self._check_special()
            return
        try:
            self.overload = composed.OVERLOAD if name == composed.NAME else resolve_operator(name)
            self.kernel = getattr(self.overload, "_op", self.overload)  # what an overload calls in turn
            self.appended = appended_defaults(name, schema, len(self.operator.args))
        except Unsupported as error:
            self.refused = error
            return
        self._bind_schema()

    @property
    def integers(self) -> Tuple[int, ...]:
        """The integers of its key that sizes go into."""
        return integers_of(self.key, self.offsets)

    @property
    def references(self) -> int:
        """Number of the storages that it refers to."""
        return len(self.storages)

    @property
    def number_count(self) -> int:
        """Number of the host's numbers that come with it; a seed is one."""
        return len(self.numbers) + (self.name == SEED)

    def with_integers(self, changes: Sequence[Tuple[int, int]]) -> BoundOperator:
        """Copies the call with other integers, (offset, integer); what follows from the schema is reused.

        Raises:
            ProtocolError: there is no integer at an offset, or it may not be there.
        """
        key = bytearray(self.key)
        for offset, value in changes:
            if offset not in self.offsets:
                raise ProtocolError(f"{self.name}: more than integers of a call were to be changed")
            struct.pack_into("<q", key, offset, value)
        made = BoundOperator.__new__(BoundOperator)
        made.__dict__.update(self.__dict__)
        made.key = bytes(key)
        made.claimed, made.results, made.fixed = None, None, False
        made._decode()
        if self.name in SPECIAL:
            made._check_special()
        elif self.overload is not None:
            made._fill_arguments()
        return made

    def _decode(self) -> None:
        self.operator, self.offsets, operands = decode_key(self.name, self.key)
        self.views = [operand for operand in operands if isinstance(operand, View)]
        self.hosts = [operand for operand in operands if isinstance(operand, HostTensor)]
        self.numbers = [operand for operand in operands if isinstance(operand, HostNumber)]
        self.storages = [operand.storage for operand in operands if isinstance(operand, (View, StorageRef))]

    def _check_special(self) -> None:
        shapes = {
            ALLOC: lambda a: len(a) == 1 and isinstance(a[0], int),
            RESIZE: lambda a: len(a) == 2 and isinstance(a[0], (View, StorageRef)) and isinstance(a[1], int),
            UPLOAD: lambda a: len(a) == 2 and len(self.views) == 1 and len(self.hosts) == 1,
            DOWNLOAD: lambda a: len(a) == 1 and len(self.views) == 1,
            SEED: lambda a: len(a) == 1 and isinstance(a[0], int),
            STATE: lambda a: len(a) == 1 and isinstance(a[0], int),
            RESTORE: lambda a: len(a) == 2 and isinstance(a[0], int) and len(self.hosts) == 1,
        }
        if not shapes[self.name](self.operator.args):
            raise ProtocolError(f"malformed {self.name}")
        if self.name in (UPLOAD, RESIZE):
            self.written = [0]

    def _bind_schema(self) -> None:
        schema = self.overload._schema  # type: ignore[union-attr]
        arguments = (*self.operator.args, *self.appended)
        if len(arguments) != len(schema.arguments):
            raise ProtocolError(f"{self.name} takes {len(schema.arguments)} arguments, not {len(arguments)}")
        given = {argument.name: value for argument, value in zip(schema.arguments, arguments)}
        idle = given.get("train") is False or given.get("dropout_p") == 0.0  # dropout that is off draws nothing
        tags = self.overload.tags  # type: ignore[union-attr]
        self.random = torch.Tag.nondeterministic_seeded in tags and not idle
        self.positional = sum(not argument.kwarg_only for argument in schema.arguments)
        self.keywords = list(given)[self.positional :]
        for argument, value in zip(schema.arguments, arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for item in value if isinstance(value, tuple) else (value,):
                    if isinstance(item, View):
                        self.written.append(item.reference)
            if _is_generator(value):
                self.random = True
        if self.name in WRITES_AVERAGES and given[WRITES_AVERAGES[self.name]] is True:
            averages = (given["running_mean"], given["running_var"])
            self.written += [value.reference for value in averages if isinstance(value, View)]
        self._fill_arguments()

    def _fill_arguments(self) -> None:
        """The arguments as the kernel takes them, with leaves where operands go.

        Raises:
            Unsupported: a dtype, layout or memory format is not one that is used here.
        """
        arguments = (*self.operator.args, *self.appended)
        for position, named, kind in enumerated_arguments(self.overload):
            value = arguments[position]
            if type(value) is int and value not in SUPPORTED_NUMBERS[kind]:
                raise Unsupported(f"operator {self.name!r}: {named} number {value} is not supported")
        self.arguments = [self._plain_value(value) for value in arguments]
        for position, flag in _cudnn_flags(self.overload):
            self.arguments[position] = flag()
        self.direct = [(i, v) for i, v in enumerate(self.arguments) if isinstance(v, OPERANDS) or _is_generator(v)]
        self.nested = [
            (i, v)
            for i, v in enumerate(self.arguments)
            if isinstance(v, list) and any(isinstance(x, (*OPERANDS, list)) for x in v)
        ]

    def _plain_value(self, value: Arg) -> Any:
        if isinstance(value, tuple):
            return [self._plain_value(item) for item in value]
        return self.device if isinstance(value, Symbol) and value.kind == "device" else value


OPERANDS = (View, StorageRef, HostTensor, HostNumber)


#: Arguments that carry the caller's cuDNN flags, and the flags of the process that computes.
_CUDNN_FLAGS: Dict[str, Callable[[], bool]] = {
    "benchmark": lambda: bool(torch.backends.cudnn.benchmark),
    "deterministic": lambda: bool(torch.backends.cudnn.deterministic),
    "cudnn_enabled": lambda: bool(torch.backends.cudnn.enabled),
    "cudnn_enable": lambda: bool(torch.backends.cudnn.enabled),
    "allow_tf32": lambda: bool(torch.backends.cudnn.allow_tf32),
}


@functools.lru_cache(maxsize=None)
def _cudnn_flags(overload: Any) -> Tuple[Tuple[int, Callable[[], bool]], ...]:
    """Positions of arguments that carry cuDNN flags, and what reads each flag of this process."""
    return tuple(
        (position, _CUDNN_FLAGS[argument.name])
        for position, argument in enumerate(overload._schema.arguments)
        if argument.name in _CUDNN_FLAGS and str(argument.type) == "bool"
    )


def _is_generator(value: Any) -> bool:
    return isinstance(value, Symbol) and value.kind == "generator"


def _no_kernel(*arguments: Any, **named: Any) -> Any:
    raise ProtocolError("a call that is no operator has no kernel")


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor to the host, dense."""
    return tensor.resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()


def host_number(raw: Buffer, spec: HostNumber) -> Any:
    """The value of a parameter, which ``raw`` begins with: as the kernel takes it.

    Raises:
        ProtocolError: it is too short.
    """
    if len(raw) < 8:
        raise ProtocolError("a step lacks a number")
    plain = struct.unpack_from({"d": "<d", "i": "<q", "b": "<?7x"}[spec.kind], raw)[0]
    return plain if spec.wrapped else torch.tensor(plain, dtype=DTYPES[spec.dtype])


def host_tensor(hosts: Sequence[Buffer], spec: HostTensor) -> torch.Tensor:
    """The first of ``hosts`` as a tensor (of its own only if the caller copies it)."""
    dtype, sizes = DTYPES[spec.dtype], spec.sizes
    count = 1
    for size in sizes:
        count *= size
    if not hosts or memoryview(hosts[0]).nbytes != count * ITEM_BYTES[dtype]:
        raise ProtocolError(f"a host tensor of {sizes} {dtype} came with the wrong number of bytes")
    if not count:
        return torch.empty(sizes, dtype=dtype)
    buffer = hosts[0] if isinstance(hosts[0], bytearray) else bytearray(hosts[0])
    return torch.frombuffer(buffer, dtype=dtype).reshape(sizes)
