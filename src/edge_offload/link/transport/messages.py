"""The wire format: what one message between robot and server is, and what is refused before it is believed.

A message is a ZeroMQ multipart: one msgpack header, then raw payload parts (tensor bytes, blob chunks). The header is

    ["edge_offload", version, type, epoch, id, name, body, times]

of which the first three elements keep their place in every version, so that two peers of different versions can name
both versions. ``epoch`` is drawn afresh by the client for every connection and echoed by the server: an answer of an
earlier connection can never complete a newer request. ``times`` are seconds on the sender's monotonic clock.

Nothing is unpickled. Sizes, types, nesting and part counts are checked before use; what fails raises
:class:`~edge_offload.errors.ProtocolError`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import msgpack

from edge_offload import errors
from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Refused, RemoteError

PROTOCOL_VERSION = 2
MAGIC = "edge_offload"

# client to server: hello, request, notify, ping; server to client: welcome, refused, part, reply, error, notify, pong
TYPES = frozenset({"hello", "welcome", "refused", "request", "part", "reply", "error", "notify", "ping", "pong"})
_NAMED = frozenset({"request", "notify"})
_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")
#: The request that a listener answers by itself: ``{down: bytes}`` and a payload up.
PROBE = "link.probe"

Buffer = Union[bytes, bytearray, memoryview]


@dataclass(frozen=True)
class Limits:
    """Bounds on what a peer may send. A message beyond them is dropped, its sender told, and the event counted.

    Attributes:
        max_message_bytes: header and payload of one message, bytes.
        max_header_bytes: the msgpack header alone, bytes; anything large belongs in a payload part.
        max_parts: payload parts of one message.
        max_depth: nesting of lists and dicts in the header.
    """

    max_message_bytes: int = 64 << 20
    max_header_bytes: int = 1 << 20
    max_parts: int = 1024
    max_depth: int = 16


DEFAULT_LIMITS = Limits()


class VersionMismatch(Refused):
    """The peer speaks another version of the protocol; the message names both."""


@dataclass
class Message:
    """One decoded message.

    Attributes:
        type: one of :data:`TYPES`.
        epoch: the connection that the message belongs to (drawn by the client).
        id: number of the request, 0 where there is none.
        name: what is asked for (``request`` and ``notify`` only): lower-case words, ``[a-z][a-z0-9_.]*``.
        body: small facts: None, bool, int, float, str, bytes, lists and dicts with string keys.
        times: seconds on the sender's clocks; their meaning depends on the type.
        buffers: payload parts. Received ones are views of ZeroMQ's own memory: no copy is made.
    """

    type: str
    epoch: int = 0
    id: int = 0
    name: str = ""
    body: Dict[str, Any] = field(default_factory=dict)
    times: Tuple[float, ...] = ()
    buffers: List[memoryview] = field(default_factory=list)


def check_name(name: str) -> str:
    """``name`` if it can name a request.

    Raises:
        BadInput: it cannot.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot name a request", remedy="use lower-case letters, digits, _ and ., up to 64")
    return name


def pack_header(message: Message, limits: Limits = DEFAULT_LIMITS, version: int = PROTOCOL_VERSION) -> bytes:
    """The first part of ``message`` on the wire.

    Raises:
        BadInput: the body holds something that cannot travel, or is too large.
    """
    fields = [MAGIC, version, message.type, message.epoch, message.id, message.name, message.body, list(message.times)]
    try:
        packed: bytes = msgpack.packb(fields, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(
            f"the body of a {message.type} cannot be sent: {error}",
            remedy="use None, bool, int, float, str, bytes, lists and dicts; arrays travel as buffers",
        ) from error
    if len(packed) > limits.max_header_bytes:
        raise BadInput(
            f"the body of a {message.type} takes {len(packed)} bytes, the limit is {limits.max_header_bytes}",
            remedy="send what is large as a buffer",
        )
    return packed


def unpack_header(header: Buffer, limits: Limits = DEFAULT_LIMITS) -> Message:
    """Decode the first part of a message; ``buffers`` of the result is empty.

    Raises:
        ProtocolError: it is not a well-formed header within the limits.
        VersionMismatch: it is one of another version.
    """
    size = len(header)
    if size > limits.max_header_bytes:
        raise ProtocolError(f"header of {size} bytes, the limit is {limits.max_header_bytes}")
    try:
        fields = msgpack.unpackb(
            header,
            raw=False,
            strict_map_key=True,
            use_list=True,
            ext_hook=_no_extension,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=size,
            max_map_len=size,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        # msgpack's own exceptions (ExtraData, FormatError, StackError, OutOfData) are ValueError or UnpackException
        raise ProtocolError(f"header is not msgpack: {type(error).__name__}") from error
    if not isinstance(fields, list) or len(fields) < 3 or fields[0] != MAGIC or not _is_count(fields[1]):
        raise ProtocolError("not an edge_offload message")
    if fields[1] != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the peer speaks protocol version {fields[1]}, this side speaks version {PROTOCOL_VERSION}",
            remedy="install the same release of edge_offload on robot and server",
        )
    if len(fields) != 8:
        raise ProtocolError(f"header has {len(fields)} fields, version {PROTOCOL_VERSION} has 8")
    read = Message(*fields[2:])
    kind, times = read.type, read.times
    if not isinstance(kind, str) or kind not in TYPES:
        raise ProtocolError("unknown message type")
    if not (_is_count(read.epoch) and _is_count(read.id)):
        raise ProtocolError(f"{kind}: epoch and id must be counts")
    if not isinstance(read.name, str) or (not _NAME.fullmatch(read.name) if kind in _NAMED else read.name != ""):
        raise ProtocolError(f"{kind}: malformed name")
    if not isinstance(read.body, dict):
        raise ProtocolError(f"{kind}: body must be a map")
    _check_tree(read.body, limits.max_depth)
    if not isinstance(times, list) or len(times) > 4 or not all(type(t) is float and math.isfinite(t) for t in times):
        raise ProtocolError(f"{kind}: times must be at most four finite numbers")
    return replace(read, times=tuple(times))


def wire_bytes(sizes: Sequence[int]) -> int:
    """Bytes that the parts of one message occupy on a CURVE connection (ZMTP 3.1 framing, nonce, authenticator)."""
    total = 0
    for size in sizes:
        framed = size + 33
        total += framed + (2 if framed <= 255 else 9)
    return total


def byte_views(buffers: Sequence[Any]) -> List[memoryview]:
    """Flat byte views of C-contiguous buffers (bytes, numpy arrays, memoryviews), without copying.

    Raises:
        BadInput: one is not a contiguous buffer.
    """
    views = []
    for buffer in buffers:
        try:
            view = memoryview(buffer)
            if view.nbytes == 0:
                view = memoryview(b"")
            views.append(view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B"))
        except TypeError as error:
            raise BadInput(
                f"cannot send a {type(buffer).__name__}: {error}", remedy="make it contiguous (numpy.ascontiguousarray)"
            ) from error
    return views


def error_body(error: BaseException) -> Dict[str, Any]:
    """``error`` as the body of an ``error`` or ``refused`` message; only errors raised on purpose keep their words."""
    if isinstance(error, EdgeOffloadError):
        kind = type(error).__name__ if hasattr(errors, type(error).__name__) else type(error).__mro__[1].__name__
        return {"type": kind, "cause": error.cause[:2000], "remedy": error.remedy[:2000]}
    return {"type": "RemoteError", "cause": f"{type(error).__name__}: {error}"[:2000], "remedy": ""}


def error_from(body: Dict[str, Any]) -> EdgeOffloadError:
    """The exception that an ``error`` or ``refused`` body stands for; RemoteError if it names none of ours."""
    kind = getattr(errors, str(body.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, EdgeOffloadError)):
        kind = RemoteError
    return kind(str(body.get("cause", "no cause given")), remedy=str(body.get("remedy", "")))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= (1 << 63) - 1


def _no_extension(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _check_tree(root: Dict[str, Any], max_depth: int) -> None:
    """Bound the nesting and allow only plain types (msgpack's timestamp type gets past ``ext_hook``)."""
    level: List[Any] = [root]
    for _ in range(max_depth):
        below: List[Any] = []
        for node in level:
            if type(node) is dict:
                if not set(map(type, node)) <= {str}:
                    raise ProtocolError("map keys must be strings")
                children: Any = node.values()
            else:
                children = node
            kinds = set(map(type, children))
            if kinds <= _PLAIN:
                continue
            for kind in kinds - _PLAIN - _NESTED:
                raise ProtocolError(f"a {kind.__name__} is not allowed in a header")
            below += [child for child in children if type(child) in _NESTED]
        if not below:
            return
        level = below
    raise ProtocolError(f"header nests deeper than {max_depth}")


_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})
_NESTED = frozenset({dict, list})


def first_over(sizes: Sequence[int], limits: Limits) -> Optional[str]:
    """Explain why a message of these part sizes (header first) is too large; None when it is not."""
    if len(sizes) - 1 > limits.max_parts:
        return f"message of {len(sizes) - 1} payload parts, the limit is {limits.max_parts}"
    if sum(sizes) > limits.max_message_bytes:
        return f"message of {sum(sizes)} bytes, the limit is {limits.max_message_bytes}"
    return None
