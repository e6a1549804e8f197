"""Checksums of operator schemas, compared at the handshake: they tell operators of two versions of torch apart.

A call carries every argument of its operator, so defaults do not matter; names, kinds and order of arguments, what is
written or aliased, and the results do. Where the server's torch has appended arguments with defaults, as torch extends
an operator, a call without them is taken with these.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, Dict, Mapping, Optional, Tuple

import msgpack
import torch

from edge_offload.errors import ProtocolError, Unsupported

MAX_NAMES = 20_000


def canonical_schema(schema: Any, count: Optional[int] = None) -> str:
    """Renders a schema as text that does not depend on how a version of torch prints it.

    Args:
        schema: of an operator.
        count: of arguments that there are; all, if not given.
    """
    arguments = [
        _argument_text(argument) + ("*" if argument.kwarg_only else "") for argument in schema.arguments[:count]
    ]
    results = ", ".join(map(_result_text, schema.returns))
    return f"{schema.name}.{schema.overload_name}({', '.join(arguments)}) -> {results}"


def _argument_text(argument: Any) -> str:
    return f"{argument.name}: {_result_text(argument)}"


def _result_text(argument: Any) -> str:
    alias = argument.alias_info
    mark = "" if alias is None else "!" if alias.is_write else "&"
    return f"{argument.type}{mark}"


def schema_checksum(name: str) -> int:
    """CRC-32 of an operator's schema, never 0; 0 for a call that is no operator."""
    if name.startswith("edge::"):
        return 0
    return _schema_crc(_find_schema(name))


def prefix_checksum(name: str, count: int) -> int:
    """CRC-32 of a schema without the arguments behind the first ``count``; 0 if one of these has no default."""
    schema = _find_schema(name)
    if not 0 <= count < len(schema.arguments):
        return 0
    if not all(argument.has_default_value() for argument in schema.arguments[count:]):
        return 0
    return _schema_crc(schema, count)


def appended_defaults(name: str, number: int, count: int) -> Tuple[Any, ...]:
    """Values of the arguments that this torch has appended to an operator that had ``count``; () where it has none.

    Raises:
        Unsupported: the operator of that checksum is another one.
    """
    if not number or number == schema_checksum(name):
        return ()
    if number == prefix_checksum(name, count):
        return tuple(argument.default_value for argument in _find_schema(name).arguments[count:])
    raise Unsupported(
        f"operator {name!r} is another one in the robot's torch than in the server's {torch.__version__}",
        remedy="use the same torch on both",
    )


def _find_schema(name: str) -> Any:
    operator, _, overload = name.partition(".")
    return torch._C._get_schema(operator, overload)


def _schema_crc(schema: Any, count: Optional[int] = None) -> int:
    return zlib.crc32(canonical_schema(schema, count).encode()) or 1


@functools.lru_cache(maxsize=1)
def checksum_table() -> Dict[str, int]:
    """The checksum of every operator of this torch (those called ``aten::…``), by name."""
    checksums = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
            checksums[name] = _schema_crc(schema)
    return checksums


def prefix_checksums(requested: object) -> Dict[str, int]:
    """The checksums of operators with fewer arguments, for a robot that names each with how many it has there.

    Raises:
        ProtocolError: it does not.
    """
    if not isinstance(requested, dict) or len(requested) > MAX_NAMES:
        raise ProtocolError("operators are asked for by name, with a number of arguments")
    ours = checksum_table()
    counts = {name: count for name, count in requested.items() if name in ours and type(count) is int}
    return {name: prefix_checksum(name, count) for name, count in counts.items()}


def pack_table(checksums: Mapping[str, int]) -> bytes:
    """Packs a table of checksums for the wire."""
    packed: bytes = msgpack.packb(dict(checksums), use_bin_type=True)
    return packed


def unpack_table(data: bytes) -> Dict[str, int]:
    """Read a table off the wire.

    Raises:
        ProtocolError: it is malformed or too large.
    """
    try:
        if len(data) > 4 << 20:
            raise ValueError(f"{len(data)} bytes")
        checksums = msgpack.unpackb(data, raw=False, max_map_len=MAX_NAMES)
        if not isinstance(checksums, dict) or not all(type(k) is str and type(v) is int for k, v in checksums.items()):
            raise ValueError("not a table of numbers")
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"malformed table of operators: {error}") from None
    return checksums


def refused_operators(ours: Mapping[str, int], theirs: Mapping[str, int], server_torch: str) -> Dict[str, str]:
    """The operators that must not be sent to a server whose torch is ``server_torch``, each with the reason.

    >>> refused({"aten::a": 1, "aten::b": 2, "aten::c": 3}, {"aten::a": 1, "aten::b": 5}, "2.13")["aten::b"]
    "operator 'aten::b' takes other arguments in the robot's torch than in the server's 2.13; use the same torch on \
both"
    """
    reasons = {}
    for name, number in ours.items():
        if name not in theirs:
            reason = f"operator {name!r} does not exist in the server's torch {server_torch}"
        elif theirs[name] != number:
            reason = f"operator {name!r} takes other arguments in the robot's torch than in the server's {server_torch}"
        else:
            continue
        reasons[name] = f"{reason}; use the same torch on both"
    return reasons


def differing_operators(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Dict[str, int]:
    """Operators that the other side has with another schema, each with its number of arguments here."""
    names = [name for name, number in ours.items() if name in theirs and theirs[name] != number]
    return {name: len(_find_schema(name).arguments) for name in names}
