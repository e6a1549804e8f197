"""One byte string per meaning: canonical numbering, 128-bit hash, structural equality.

Two recordings of the same inference differ in the numbers that the recorder happened to give. Canonical form numbers
inputs first, then constants and intermediates in order of first use, and storages likewise. The encoding is
injective and typed (``1``, ``1.0`` and ``True`` differ; so do ``0.0`` and ``-0.0``), so that equal bytes mean
equal sequences, and a hash collision is caught by comparing the bytes.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Dict, List, Sequence

from edge_offload.errors import BadInput
from edge_offload.ir.operators import Arg, Operator, Ref, Symbol
from edge_offload.ir.sequence import OperatorSequence
from edge_offload.ir.values import Value, contiguous_strides

_PREFIX = b"edge-offload sequence 1\n"


def canonicalise(sequence: OperatorSequence) -> OperatorSequence:
    """Copies a sequence with canonical value and storage numbers, and explicit strides only where not contiguous."""
    names: Dict[int, int] = {}

    def rename(number: int) -> int:
        return names.setdefault(number, len(names))

    for number in sequence.inputs:
        rename(number)
    for operator in sequence.operators:
        for number in operator.input_ids():
            rename(number)
        for number in operator.output_ids():
            rename(number)
    for number in (*sequence.retained_ids(), *sorted(sequence.values)):
        rename(number)

    shared: Dict[int, int] = {}
    for value in sequence.values.values():
        if value.storage is not None:
            shared[value.storage] = shared.get(value.storage, 0) + 1
    storages: Dict[int, int] = {}
    values: Dict[int, Value] = {}
    for number in sorted(sequence.values, key=lambda key: names[key]):
        value = sequence.values[number]
        storage = None
        if value.storage is not None and shared[value.storage] > 1:
            storage = storages.setdefault(value.storage, len(storages))
        strides = value.strides
        if strides is not None and value.is_static and strides == contiguous_strides(value.shape):
            strides = None
        values[names[number]] = replace(value, id=names[number], storage=storage, strides=strides)
    return OperatorSequence(
        values=values,
        inputs=tuple(rename(number) for number in sequence.inputs),
        constants={names[number]: digest for number, digest in
                   sorted(sequence.constants.items(), key=lambda item: names[item[0]])},
        operators=tuple(operator.renumber_values(rename) for operator in sequence.operators),
        outputs=tuple(rename(number) for number in sequence.outputs),
        live_outs=tuple(rename(number) for number in sequence.live_outs),
        rebinds=tuple((rename(state), rename(number)) for state, number in sequence.rebinds),
    )  # fmt: skip


def canonical_bytes(sequence: OperatorSequence) -> bytes:
    """Injective encoding of the canonical form. Equal bytes, equal meaning; scopes are left out."""
    canonical = canonicalise(sequence)
    parts: List[bytes] = [_PREFIX]
    _write_numbers(parts, canonical.inputs)
    _write_numbers(parts, canonical.outputs)
    _write_numbers(parts, canonical.live_outs)
    _write_numbers(parts, [number for pair in canonical.rebinds for number in pair])
    parts.append(struct.pack("<q", len(canonical.values)))
    for number, value in canonical.values.items():
        parts.append(struct.pack("<q", number))
        _write_text(parts, value.dtype)
        _write_text(parts, value.kind.value)
        _write_numbers(parts, value.shape)
        _write_numbers(parts, (1,) if value.strides is None else (0, *value.strides))
        _write_numbers(parts, (value.offset, -1 if value.storage is None else value.storage))
        _write_text(parts, canonical.constants.get(number, ""))
    parts.append(struct.pack("<q", len(canonical.operators)))
    for operator in canonical.operators:
        _write_operator(parts, operator)
    return b"".join(parts)


def sequence_hash(sequence: OperatorSequence) -> str:
    """32 hexadecimal digits: BLAKE2b-128 of :func:`canonical_bytes`. Weights take part through their digests."""
    return hashlib.blake2b(canonical_bytes(sequence), digest_size=16).hexdigest()


def _write_operator(parts: List[bytes], operator: Operator) -> None:
    _write_text(parts, operator.name)
    _write_argument(parts, operator.args)
    parts.append(struct.pack("<q", len(operator.kwargs)))
    for key, arg in operator.kwargs:
        _write_text(parts, key)
        _write_argument(parts, arg)
    _write_numbers(parts, [-1 if number is None else number for number in operator.outputs])
    _write_numbers(parts, operator.mutates)
    _write_numbers(parts, [number for pair in operator.aliases for number in pair])


def _write_numbers(parts: List[bytes], numbers: Sequence[int]) -> None:
    parts.append(struct.pack(f"<q{len(numbers)}q", len(numbers), *numbers))


def _write_text(parts: List[bytes], text: str) -> None:
    data = text.encode("utf-8")
    parts.append(struct.pack("<q", len(data)))
    parts.append(data)


def _write_argument(parts: List[bytes], arg: Arg) -> None:
    if arg is None:
        parts.append(b"n")
    elif isinstance(arg, bool):  # before int: True is an int in Python
        parts.append(b"t" if arg else b"f")
    elif isinstance(arg, int):
        parts.append(b"i")
        _write_text(parts, str(arg))
    elif isinstance(arg, float):
        parts.append(b"d" + struct.pack("<d", arg))
    elif isinstance(arg, complex):
        parts.append(b"c" + struct.pack("<dd", arg.real, arg.imag))
    elif isinstance(arg, str):
        parts.append(b"s")
        _write_text(parts, arg)
    elif isinstance(arg, Ref):
        parts.append(b"v" + struct.pack("<q", arg.id))
    elif isinstance(arg, Symbol):
        parts.append(b"y")
        _write_text(parts, arg.kind)
        _write_text(parts, arg.name)
    elif isinstance(arg, tuple):
        parts.append(b"(" + struct.pack("<q", len(arg)))
        for item in arg:
            _write_argument(parts, item)
    else:
        raise BadInput(f"an argument cannot be of type {type(arg).__name__}")
