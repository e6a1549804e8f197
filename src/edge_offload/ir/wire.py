"""Encoding of operator sequences as msgpack, and decoding with checks. Decoding executes nothing.

Sizes are bounded before memory is allocated in proportion to them, and every list has a limit. Integers must fit 64
bits. Unknown keys and kinds and trailing bytes are refused. The result has passed ``OperatorSequence.validate``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

import msgpack

from edge_offload.errors import BadInput, ProtocolError
from edge_offload.ir.operators import MAX_DEPTH, Arg, Operator, Ref, Symbol
from edge_offload.ir.sequence import OperatorSequence
from edge_offload.ir.values import MAX_RANK, Kind, Value

FORMAT = 1
_KEYS = {"format", "values", "inputs", "constants", "operators", "outputs", "live_outs", "rebinds"}
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class SequenceLimits:
    """Upper bounds that a decoder accepts.

    Attributes:
        nbytes: bytes of the encoded sequence.
        values: values, and items of each list of values of the sequence.
        operators: operators.
        arguments: items of any one list of an operator.
    """

    nbytes: int = 64 << 20
    values: int = 500_000
    operators: int = 200_000
    arguments: int = 4096


class _ValueRow(NamedTuple):
    """Encoded :class:`Value`: a list of these fields, unchecked."""

    id: Any
    dtype: Any
    shape: Any
    kind: Any
    strides: Any
    offset: Any
    storage: Any


class _OperatorRow(NamedTuple):
    """Encoded :class:`Operator`: a list of these fields, unchecked."""

    name: Any
    args: Any
    kwargs: Any
    outputs: Any
    mutates: Any
    aliases: Any
    scope: Any


def encode(sequence: OperatorSequence) -> bytes:
    """Packs ``sequence`` as msgpack.

    Raises:
        BadInput: an integer argument does not fit 64 bits, or an argument is of another type than :data:`Arg`.
    """
    document = {
        "format": FORMAT,
        "values": [
            [value.id, value.dtype, list(value.shape), value.kind.value,
             None if value.strides is None else list(value.strides), value.offset, value.storage]
            for value in sequence.values.values()
        ],
        "inputs": list(sequence.inputs),
        "constants": [[number, bytes.fromhex(digest)] for number, digest in sequence.constants.items()],
        "operators": [
            [op.name, [_pack_arg(arg) for arg in op.args], [[key, _pack_arg(arg)] for key, arg in op.kwargs],
             list(op.outputs), list(op.mutates), [list(pair) for pair in op.aliases], op.scope]
            for op in sequence.operators
        ],
        "outputs": list(sequence.outputs),
        "live_outs": list(sequence.live_outs),
        "rebinds": [list(pair) for pair in sequence.rebinds],
    }  # fmt: skip
    packed: bytes = msgpack.packb(document, use_bin_type=True)
    return packed


def decode(data: bytes, limits: Optional[SequenceLimits] = None) -> OperatorSequence:
    """Unpacks and validates the sequence in ``data``.

    Raises:
        ProtocolError: the bytes are not a sequence, or exceed ``limits``.
    """
    limits = limits or SequenceLimits()
    if len(data) > limits.nbytes:
        _refuse(f"{len(data)} bytes, the limit is {limits.nbytes}")
    max_items = max(limits.values, limits.operators)
    try:
        document = msgpack.unpackb(
            data, raw=False, strict_map_key=True, use_list=True,
            max_str_len=4096, max_bin_len=64, max_array_len=max_items, max_map_len=16, max_ext_len=0,
        )  # fmt: skip
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        _refuse(f"not msgpack within the limits ({type(error).__name__}: {error})")
    if not isinstance(document, dict) or set(document) != _KEYS:
        _refuse("wrong keys")
    if document["format"] != FORMAT:
        _refuse(f"format {document['format']!r}, this side speaks {FORMAT}")
    try:
        return _read_sequence(document, limits).validate()
    except BadInput as error:
        _refuse(str(error))


def _read_sequence(document: Dict[str, Any], limits: SequenceLimits) -> OperatorSequence:
    values: Dict[int, Value] = {}
    for fields in itertools.starmap(_ValueRow, _read_rows(document["values"], len(_ValueRow._fields), limits.values)):
        value = Value(
            id=_read_integer(fields.id),
            dtype=_read_text(fields.dtype),
            shape=_read_integers(fields.shape, MAX_RANK),
            kind=_read_kind(fields.kind),
            strides=None if fields.strides is None else _read_integers(fields.strides, MAX_RANK),
            offset=_read_integer(fields.offset),
            storage=None if fields.storage is None else _read_integer(fields.storage),
        )
        if value.id in values:
            _refuse(f"value {value.id} is listed twice")
        values[value.id] = value
    constants: Dict[int, str] = {}
    for row in _read_rows(document["constants"], 2, limits.values):
        if not isinstance(row[1], bytes):
            _refuse("a digest is not bytes")
        constants[_read_integer(row[0])] = row[1].hex()
    operators: List[Operator] = []
    max_items = limits.arguments
    rows = _read_rows(document["operators"], len(_OperatorRow._fields), limits.operators)
    for op in itertools.starmap(_OperatorRow, rows):
        operators.append(
            Operator(
                name=_read_text(op.name),
                args=tuple(_read_argument(arg, limits) for arg in _read_list(op.args, max_items)),
                kwargs=tuple(
                    (_read_text(key), _read_argument(arg, limits)) for key, arg in _read_rows(op.kwargs, 2, max_items)
                ),
                outputs=tuple(
                    None if item is None else _read_integer(item) for item in _read_list(op.outputs, max_items)
                ),
                mutates=_read_integers(op.mutates, max_items),
                aliases=_read_pairs(op.aliases, max_items),
                scope=_read_text(op.scope),
            )
        )
    return OperatorSequence(
        values=values,
        inputs=_read_integers(document["inputs"], limits.values),
        constants=constants,
        operators=tuple(operators),
        outputs=_read_integers(document["outputs"], limits.values),
        live_outs=_read_integers(document["live_outs"], limits.values),
        rebinds=_read_pairs(document["rebinds"], limits.values),
    )


def _pack_arg(arg: Arg) -> Any:
    """Return an argument as msgpack data: a scalar as itself, anything else as a list that begins with a tag.

    Tags: ``v`` value (:class:`Ref`), ``y`` :class:`Symbol`, ``c`` complex number, ``l`` tuple.
    """
    if arg is None or isinstance(arg, (bool, float, str)):
        return arg
    if isinstance(arg, int):
        if arg not in _INT64:
            raise BadInput(f"integer argument {arg} does not fit 64 bits")
        return arg
    if isinstance(arg, Ref):
        return ["v", arg.id]
    if isinstance(arg, Symbol):
        return ["y", arg.kind, arg.name]
    if isinstance(arg, complex):
        return ["c", arg.real, arg.imag]
    if isinstance(arg, tuple):
        return ["l", [_pack_arg(item) for item in arg]]
    raise BadInput(f"an argument cannot be of type {type(arg).__name__}")


def _read_argument(item: Any, limits: SequenceLimits, depth: int = 0) -> Arg:
    """Decode what :func:`_pack_arg` made."""
    if depth > MAX_DEPTH:
        _refuse(f"arguments nested deeper than {MAX_DEPTH}")
    if item is None or isinstance(item, (bool, float, str)):
        return item
    if isinstance(item, int):
        return _read_integer(item)
    if isinstance(item, list) and len(item) == 2 and item[0] == "v":
        return Ref(_read_integer(item[1]))
    if isinstance(item, list) and len(item) == 3 and item[0] == "y":
        return Symbol(_read_text(item[1]), _read_text(item[2]))
    if isinstance(item, list) and len(item) == 3 and item[0] == "c":
        if not all(isinstance(part, float) for part in item[1:]):
            _refuse("a complex number is not made of two floats")
        return complex(item[1], item[2])
    if isinstance(item, list) and len(item) == 2 and item[0] == "l":
        return tuple(_read_argument(part, limits, depth + 1) for part in _read_list(item[1], limits.arguments))
    return _refuse("an argument has no known form")


def _refuse(why: str) -> NoReturn:
    raise ProtocolError(f"not an operator sequence: {why}")


def _read_integer(item: Any) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or item not in _INT64:
        _refuse(f"{item!r} where an integer of 64 bits belongs")
    return int(item)


def _read_text(item: Any) -> str:
    if not isinstance(item, str):
        _refuse(f"{type(item).__name__} where text belongs")
    return str(item)


def _read_kind(item: Any) -> Kind:
    try:
        return Kind(item)
    except ValueError:
        _refuse(f"unknown kind of value {item!r}")


def _read_list(item: Any, max_items: int) -> List[Any]:
    if not isinstance(item, list) or len(item) > max_items:
        _refuse(f"no list of at most {max_items}")
    return list(item)


def _read_integers(item: Any, max_items: int) -> Tuple[int, ...]:
    return tuple(_read_integer(part) for part in _read_list(item, max_items))


def _read_rows(item: Any, width: int, max_items: int) -> Sequence[List[Any]]:
    rows = _read_list(item, max_items)
    for row in rows:
        if not isinstance(row, list) or len(row) != width:
            _refuse(f"a row is not a list of {width}")
    return rows


def _read_pairs(item: Any, max_items: int) -> Tuple[Tuple[int, int], ...]:
    return tuple((_read_integer(row[0]), _read_integer(row[1])) for row in _read_rows(item, 2, max_items))
