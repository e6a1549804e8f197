"""Whether an operator is the same one in two versions of torch: checksums of schemas, compared at the handshake.

A call carries every argument of its operator, so defaults do not matter; names, kinds and order of arguments, what is
written or aliased, and the results do. Where the server's torch has appended arguments with defaults, as torch extends
an operator, a call without them is taken with these.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, Dict, List, Mapping, Optional, Tuple

import msgpack
import torch

from edge_offload.errors import ProtocolError, Unsupported

MAX_NAMES = 20_000
MAX_BYTES = 4 << 20


def canonical(schema: Any, count: Optional[int] = None) -> str:
    """What a schema promises, as text that does not depend on how a version of torch prints it.

    Args:
        schema: of an operator.
        count: of arguments that there are; all, if not given.
    """
    arguments = [_argument(argument) + ("*" if argument.kwarg_only else "") for argument in schema.arguments[:count]]
    return f"{schema.name}.{schema.overload_name}({', '.join(arguments)}) -> {', '.join(map(_result, schema.returns))}"


def _argument(argument: Any) -> str:
    return f"{argument.name}: {_result(argument)}"


def _result(argument: Any) -> str:
    alias = argument.alias_info
    mark = "" if alias is None else "!" if alias.is_write else "&"
    return f"{argument.type}{mark}"


def checksum(name: str) -> int:
    """A number that differs when two versions of torch give the operator another schema; 0 for what is none."""
    if name.startswith("edge::"):
        return 0
    return _number(_schema(name))


def prefix_checksum(name: str, count: int) -> int:
    """The checksum of an operator without the arguments behind the first ``count``; 0 where one has no default."""
    schema = _schema(name)
    if not 0 <= count < len(schema.arguments):
        return 0
    if not all(argument.has_default_value() for argument in schema.arguments[count:]):
        return 0
    return _number(schema, count)


def appended(name: str, number: int, count: int) -> Tuple[Any, ...]:
    """Values of the arguments that this torch has appended to an operator that had ``count``; () where it has none.

    Raises:
        Unsupported: the operator of that checksum is another one.
    """
    if not number or number == checksum(name):
        return ()
    if number == prefix_checksum(name, count):
        return tuple(argument.default_value for argument in _schema(name).arguments[count:])
    raise Unsupported(
        f"operator {name!r} is another one in the robot's torch than in the server's {torch.__version__}",
        remedy="use the same torch on both",
    )


def _schema(name: str) -> Any:
    operator, _, overload = name.partition(".")
    return torch._C._get_schema(operator, overload)


def _number(schema: Any, count: Optional[int] = None) -> int:
    return zlib.crc32(canonical(schema, count).encode()) or 1


@functools.lru_cache(maxsize=1)
def table() -> Dict[str, int]:
    """The checksum of every operator of this torch (those called ``aten::…``), by name."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
            found[name] = _number(schema)
    return found


def prefixes(asked: object) -> Dict[str, int]:
    """The checksums of operators with fewer arguments, for a robot that names each with how many it has there.

    Raises:
        ProtocolError: it does not.
    """
    if not isinstance(asked, dict) or len(asked) > MAX_NAMES:
        raise ProtocolError("operators are asked for by name, with a number of arguments")
    ours = table()
    known = {name: count for name, count in asked.items() if name in ours and type(count) is int}
    return {name: prefix_checksum(name, count) for name, count in known.items()}


def pack(checksums: Mapping[str, int]) -> bytes:
    """A table for the wire."""
    packed: bytes = msgpack.packb(dict(checksums), use_bin_type=True)
    return packed


def unpack(data: bytes) -> Dict[str, int]:
    """Read a table off the wire.

    Raises:
        ProtocolError: it is malformed or too large.
    """
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes")
        found = msgpack.unpackb(data, raw=False, max_map_len=MAX_NAMES)
        if not isinstance(found, dict) or not all(type(k) is str and type(v) is int for k, v in found.items()):
            raise ValueError("not a table of numbers")
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"malformed table of operators: {error}") from None
    return found


def refused(ours: Mapping[str, int], theirs: Mapping[str, int], there: str) -> Dict[str, str]:
    """The operators that must not be sent to a server whose torch is ``there``, each with the reason.

    >>> refused({"aten::a": 1, "aten::b": 2, "aten::c": 3}, {"aten::a": 1, "aten::b": 5}, "2.13")["aten::b"]
    "operator 'aten::b' takes other arguments in the robot's torch than in the server's 2.13"
    """
    found = {}
    for name, number in ours.items():
        if name not in theirs:
            found[name] = f"operator {name!r} does not exist in the server's torch {there}"
        elif theirs[name] != number:
            found[name] = f"operator {name!r} takes other arguments in the robot's torch than in the server's {there}"
    return found


def differing(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Dict[str, int]:
    """How many arguments those have here that the other side has, but otherwise."""
    names = [name for name, number in ours.items() if name in theirs and theirs[name] != number]
    return {name: len(_schema(name).arguments) for name in names}


def common(ours: Mapping[str, int], theirs: Mapping[str, int]) -> List[str]:
    """The operators that both sides have with the same schema."""
    return sorted(name for name, number in ours.items() if theirs.get(name) == number)
