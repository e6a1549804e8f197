"""Messages of the virtual device and their answers, as buffers: the first is msgpack, the others raw bytes.

A message carries definitions, frees, the verdict on earlier speculation, and steps to run. The last steps may be
speculative. Its answer has one result per step that ran, and at most one error.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import msgpack
import torch

from edge_offload.errors import DeviceLost, Disagreement, EdgeOffloadError, OutOfMemory, ProtocolError, RemoteError
from edge_offload.ir.operators import HostTensor
from edge_offload.ir.trace.calls import Buffer, host_tensor
from edge_offload.ir.trace.keys import DTYPE_NUMBERS
from edge_offload.ir.trace.segments import SegmentStep, StepOutcome
from edge_offload.ir.trace.trace_graph import MOST_STORAGES, TraceGraph, TraceStep, parse_graph, parse_step
from edge_offload.memory import flat_bytes
from edge_offload.protocol.blobs import NamedBlobs

#: Payloads up to this many bytes share one buffer, which saves a buffer's header and copy each.
SMALL = 16 << 10


class _StepRow(NamedTuple):
    """A step in its wire format: see :class:`SegmentStep`; ``live`` and ``dead`` are packed u64."""

    segment: Any
    base: Any
    live: Any
    dead: Any
    numbers: Any
    payload_sizes: Any
    describe: Any


@dataclass
class DeviceMessage:
    """A client's request to its virtual device.

    Attributes:
        entries: new calls: name, key, results that the client inferred (or None), and checksum of the schema in the
            client's torch (0 for calls that are no operators).
        first_entry: number of the first new call.
        segments: new segments: number and encoding.
        freed: numbers of storages that the client has dropped.
        accepted: how many outstanding speculative steps the client performed; None: none were outstanding.
        steps: steps to run; those from ``speculative_from`` on are speculative.
        reset_tables: clear calls, segments and nodes before anything else.
        nodes: new nodes: number and node.
        graph: trace graph to run ahead after the steps.
        fetch: numbers of storages whose bytes, after the steps, belong in the answer.
    """

    entries: List[Tuple[str, bytes, Optional[List[Any]], int]] = field(default_factory=list)
    first_entry: int = 0
    segments: List[Tuple[int, bytes]] = field(default_factory=list)
    freed: List[int] = field(default_factory=list)
    accepted: Optional[int] = None
    steps: List[SegmentStep] = field(default_factory=list)
    speculative_from: int = 0
    reset_tables: bool = False
    nodes: List[Tuple[int, TraceStep]] = field(default_factory=list)
    graph: Optional[TraceGraph] = None
    fetch: List[int] = field(default_factory=list)

    def to_wire(self) -> List[Buffer]:
        """Encode as buffers: facts (msgpack), all small payloads in one, then each large payload.

        On the wire ``reset_tables`` is called ``forget``, and ``graph`` is called ``course``.
        """
        small: List[bytes] = []
        large: List[Buffer] = []
        steps = []

        def pack_payloads(payloads: Sequence[Optional[Buffer]]) -> List[Optional[int]]:
            sizes = [_payload_bytes(payload) for payload in payloads]
            for payload, size in zip(payloads, sizes):
                if payload is None or size is None:
                    continue
                if size <= SMALL:
                    small.append(bytes(payload))
                else:
                    large.append(payload)
            return sizes

        for step in self.steps:
            live = [value for pair in step.live for value in pair]
            sizes = pack_payloads(step.payloads)
            steps.append(
                _StepRow(
                    step.segment, step.base, _pack_u64(live), _pack_u64(step.dead), step.numbers, sizes, step.describe
                )
            )
        facts: Dict[str, Any] = {"steps": steps, "speculative_from": self.speculative_from}
        if self.entries:
            facts["entries"] = [list(entry) for entry in self.entries]
            facts["first_entry"] = self.first_entry
        if self.segments:
            facts["segments"] = [list(segment) for segment in self.segments]
        if self.freed:
            facts["freed"] = _encode_differences(self.freed)
        if self.fetch:
            facts["fetch"] = _pack_u64(self.fetch)
        if self.reset_tables:
            facts["forget"] = True
        if self.nodes:
            facts["nodes"] = [[number, node.to_wire()] for number, node in self.nodes]
        if self.graph is not None:
            facts["course"] = self.graph.to_wire()
            facts["course_sizes"] = pack_payloads(self.graph.payloads or ())
        if self.accepted is not None:
            facts["accepted"] = self.accepted
        return [msgpack.packb(facts, use_bin_type=True), b"".join(small), *large]

    def unused_storages(self) -> List[int]:
        """Return the freed storages to which no step and no fetch of this message refers."""
        named = {number for step in self.steps for _, number in step.live}.union(self.fetch)
        return [number for number in self.freed if number not in named]


@dataclass
class Answer:
    """A server's answer to one :class:`DeviceMessage`.

    Attributes:
        outcomes: one per step that ran.
        error: the error that stopped the other steps, if any.
        ran: steps that ran ahead, in order: index in the trace graph, first new storage, outcome.
        fetched: bytes of the requested storages.
        disagreed: operators whose results have another layout than the robot inferred.
        refused: reason why the message was rejected as a whole; empty: it was not. The session's state then differs
            from the client's.
    """

    outcomes: List[StepOutcome]
    error: Optional[Exception] = None
    ran: List[Tuple[int, int, StepOutcome]] = field(default_factory=list)
    fetched: List[Buffer] = field(default_factory=list)
    disagreed: List[str] = field(default_factory=list)
    refused: str = ""

    def extend(self, other: Answer) -> None:
        """Append a later part of the same answer."""
        self.outcomes += other.outcomes
        self.ran += other.ran
        self.fetched += other.fetched
        self.disagreed += other.disagreed
        self.error = self.error or other.error
        self.refused = self.refused or other.refused


def parse_message(buffers: Sequence[Buffer]) -> DeviceMessage:
    """Decode a message.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        if len(buffers) < 2:
            raise ProtocolError("a message lacks its first buffers")
        facts = _parse_facts(buffers[0])
        small, large = memoryview(buffers[1]), list(buffers[2:])
        message = DeviceMessage(speculative_from=_as_count(facts["speculative_from"]))
        if facts.get("accepted") is not None:
            message.accepted = _as_count(facts["accepted"])
        message.reset_tables = bool(facts.get("forget", False))
        for name, key, claimed, schema in facts.get("entries", ()):
            message.entries.append((_as_text(name), _as_bytes(key), claimed, _as_count(schema)))
        message.first_entry = _as_count(facts.get("first_entry", 0))
        message.segments = [(_as_count(number), _as_bytes(encoded)) for number, encoded in facts.get("segments", ())]
        message.freed = list(itertools.accumulate(map(_as_count, facts.get("freed", ()))))
        message.fetch = list(_unpack_u64(facts.get("fetch", b"")))
        message.nodes = [(_as_count(number), parse_step(node)) for number, node in facts.get("nodes", ())]
        used = 0

        def unpack_payloads(sizes: Any) -> List[Any]:
            nonlocal used
            payloads: List[Optional[Buffer]] = []
            for size in sizes:
                if size is None:
                    payloads.append(None)
                elif _as_count(size) > SMALL:
                    payloads.append(large.pop(0))
                else:
                    payloads.append(small[used : used + size])
                    used += size
            return payloads

        for row in itertools.starmap(_StepRow, facts["steps"]):
            pairs = _unpack_u64(row.live)
            if _as_count(row.base) >= MOST_STORAGES:
                raise ValueError("a step makes a storage of too high a number")
            live, dead = list(zip(pairs[::2], pairs[1::2])), _unpack_u64(row.dead)
            payloads = unpack_payloads(map(_as_count, row.payload_sizes))
            message.steps.append(
                SegmentStep(
                    _as_count(row.segment),
                    row.base,
                    live,
                    dead,
                    _as_bytes(row.numbers),
                    payloads,
                    bool(row.describe),
                )
            )
        if "course" in facts:
            message.graph, has_payloads = parse_graph(facts["course"])
            message.graph.payloads = unpack_payloads(facts["course_sizes"]) if has_payloads else None
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, struct.error, msgpack.UnpackException) as error:
        raise ProtocolError(f"malformed message: {type(error).__name__}: {error}") from None
    return message


def answer_to_wire(
    outcomes: Sequence[StepOutcome],
    ran: Sequence[Tuple[int, int, StepOutcome]],
    fetched: Sequence[Buffer] = (),
    error: Optional[Dict[str, Any]] = None,
    disagreed: Sequence[str] = (),
) -> List[Buffer]:
    """Encode an :class:`Answer` as buffers: facts (msgpack), tensors that steps read, then fetched storages."""
    facts: Dict[str, Any] = {"outcomes": []}
    replies: List[Buffer] = []
    if ran:
        facts["ran"] = [[index, base] for index, base, _ in ran]
    for outcome in [*outcomes, *(outcome for _, _, outcome in ran)]:
        item: Dict[str, Any] = {}
        if outcome.described:
            item["described"] = [[call, results] for call, results in outcome.described.items()]
        if outcome.tensor is not None:
            item["dtype"] = DTYPE_NUMBERS[outcome.tensor.dtype]
            item["sizes"] = list(outcome.tensor.shape)
            replies.append(tensor_bytes(outcome.tensor))
        if outcome.results is not None:
            item["results"] = outcome.results
        facts["outcomes"].append(item)
    if fetched:
        facts["fetched"] = len(fetched)
    if disagreed:
        facts["disagreed"] = list(disagreed)
    if error is not None:
        facts["error"] = error
    return [msgpack.packb(facts, use_bin_type=True), *replies, *fetched]


def parse_answer(buffers: Sequence[Buffer]) -> Answer:
    """Decode an answer; its error, if any, has the class that eager execution would have raised.

    Raises:
        ProtocolError: it is malformed.
    """
    answer = Answer([])
    used = 1
    try:
        facts = _parse_facts(buffers[0])
        for item in map(_as_map, facts["outcomes"]):
            outcome = StepOutcome(results=item.get("results"))
            outcome.described = {_as_count(call): results for call, results in item.get("described", ())}
            if "dtype" in item:
                sizes = tuple(_as_count(size) for size in item["sizes"])
                outcome.tensor = host_tensor(buffers[used : used + 1], HostTensor(0, item["dtype"], sizes))
                used += 1
            answer.outcomes.append(outcome)
        ran = facts.get("ran", ())
        first = len(answer.outcomes) - len(ran)
        if first < 0:
            raise ProtocolError("more steps ran ahead than have outcomes")
        for (index, base), outcome in zip(ran, answer.outcomes[first:]):
            answer.ran.append((_as_count(index), _as_count(base), outcome))
        del answer.outcomes[first:]
        answer.fetched = list(buffers[used : used + _as_count(facts.get("fetched", 0))])
        answer.disagreed = [_as_text(name) for name in facts.get("disagreed", ())]
        if "error" in facts:
            error = _as_map(facts["error"])
            answer.error = _rebuild_exception(error)
            answer.refused = str(error["text"]) if error.get("refused") else ""
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"malformed answer: {error}") from None
    return answer


_EAGER_ERRORS = {
    error.__name__: error
    for error in (
        RuntimeError,
        IndexError,
        ValueError,
        TypeError,
        NotImplementedError,
        ZeroDivisionError,
        OverflowError,
        torch.cuda.OutOfMemoryError,
        torch.linalg.LinAlgError,  # type: ignore[attr-defined]
    )
}
#: torch 2.8 and later raise this where CUDA rejects a call; earlier releases raise RuntimeError.
_EAGER_ERRORS["AcceleratorError"] = getattr(torch, "AcceleratorError", RuntimeError)


def _rebuild_exception(error: Mapping[str, Any]) -> Exception:
    """Return the exception that a program gets for the error of an answer."""
    text, operator = str(error["text"]), str(error["operator"])
    if operator and error["kind"] in _EAGER_ERRORS:
        return _EAGER_ERRORS[error["kind"]](text)
    if error["kind"] == OutOfMemory.__name__:
        return torch.cuda.OutOfMemoryError(text)
    if error["kind"] == DeviceLost.__name__:
        return DeviceLost(str(error.get("cause", text)), str(error.get("remedy", "")))
    if error["kind"] == "Unsupported":
        return NotImplementedError(f"{text} (edge_offload)")
    raised = Disagreement if error["kind"] == Disagreement.__name__ else RemoteError
    return raised(f"{operator}: {text}" if operator else text)


def refusal_to_wire(error: EdgeOffloadError) -> List[Buffer]:
    """Encode the answer to a message that was rejected as a whole or could not be decoded, because of ``error``."""
    facts = {
        "operator": "", "kind": type(error).__name__, "text": str(error), "cause": error.cause, "remedy": error.remedy,
        "refused": True,
    }  # fmt: skip
    return [msgpack.packb({"outcomes": [], "error": facts}, use_bin_type=True)]


#: dtypes that NumPy has: their buffers carry format and shape, which the payload codecs use.
_NUMBERS = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool)
)


def tensor_bytes(tensor: torch.Tensor) -> Buffer:
    """Return the bytes of a contiguous host tensor, without a copy."""
    if tensor.numel() == 0:
        return b""
    with torch.inference_mode():
        if tensor.dtype in _NUMBERS:
            return tensor.detach().numpy().data
        return flat_bytes(tensor).numpy().data


def storage_bytes(storage: torch.UntypedStorage) -> Buffer:
    """Return the bytes of a storage, copied to the host if it is elsewhere."""
    return tensor_bytes(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu())


def _payload_bytes(payload: Optional[Buffer]) -> Optional[int]:
    if payload is None:
        return None
    return payload.nbytes if isinstance(payload, NamedBlobs) else memoryview(payload).nbytes


def _encode_differences(values: Sequence[int]) -> List[int]:
    """Sort ``values`` and return the first, then the differences, which mostly take one byte each in msgpack."""
    rising = sorted(values)
    return [value - before for before, value in zip([0, *rising], rising)]


def _pack_u64(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _unpack_u64(data: Any) -> Tuple[int, ...]:
    raw = _as_bytes(data)
    return struct.unpack(f"<{len(raw) // 8}Q", raw)


def _parse_facts(buffer: Buffer) -> Dict[str, Any]:
    return _as_map(msgpack.unpackb(bytes(buffer), raw=False, strict_map_key=False))


def _as_map(value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a map was expected")
    return value


def _as_bytes(value: Any) -> bytes:
    """Return ``value`` if it is bytes; ``bytes(number)`` would allocate as many zeros."""
    if not isinstance(value, bytes):
        raise ValueError("bytes were expected")
    return value


def _as_count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value
