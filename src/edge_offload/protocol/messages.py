"""One message of the virtual device and its answer, as buffers: the first is msgpack, the others raw bytes.

A message carries definitions, frees, the verdict on earlier speculation, and steps to run, of which the last few may be
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
from edge_offload.protocol.blobs import Named

#: Payloads up to this many bytes share one buffer.
SMALL = 16 << 10


class _StepRow(NamedTuple):
    """A step as it travels."""

    segment: Any
    base: Any
    live: Any
    dead: Any
    numbers: Any
    payload_sizes: Any
    describe: Any


@dataclass
class Message:
    """What the client has to say.

    Attributes:
        entries: new calls: name, key, results that the client worked out by itself (or None), checksum of the schema
            that the client's torch has for it (0 for calls that are not operators).
        first_entry: number of the first of them.
        segments: new segments: number and words.
        freed: storages that the client has dropped.
        accepted: how many of the outstanding speculative steps it did; None when there are none outstanding.
        steps: what to run; those from ``speculative_from`` on are speculative.
        forget: whether calls, segments and nodes are to be forgotten first.
        nodes: new nodes: number and node.
        graph: what to run ahead once the steps are done.
        fetch: storages whose bytes are wanted, as they are after the steps.
    """

    entries: List[Tuple[str, bytes, Optional[List[Any]], int]] = field(default_factory=list)
    first_entry: int = 0
    segments: List[Tuple[int, bytes]] = field(default_factory=list)
    freed: List[int] = field(default_factory=list)
    accepted: Optional[int] = None
    steps: List[SegmentStep] = field(default_factory=list)
    speculative_from: int = 0
    forget: bool = False
    nodes: List[Tuple[int, TraceStep]] = field(default_factory=list)
    graph: Optional[TraceGraph] = None
    fetch: List[int] = field(default_factory=list)

    def to_wire(self) -> List[Buffer]:
        """As buffers: facts (msgpack), the small payloads in a row, then each large payload."""
        small: List[bytes] = []
        large: List[Buffer] = []
        steps = []

        def pack(payloads: Sequence[Optional[Buffer]]) -> List[Optional[int]]:
            sizes = [_size(payload) for payload in payloads]
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
            sizes = pack(step.payloads)
            steps.append(
                _StepRow(step.segment, step.base, _packed(live), _packed(step.dead), step.numbers, sizes, step.describe)
            )
        facts: Dict[str, Any] = {"steps": steps, "speculative_from": self.speculative_from}
        if self.entries:
            facts["entries"] = [list(entry) for entry in self.entries]
            facts["first_entry"] = self.first_entry
        if self.segments:
            facts["segments"] = [list(segment) for segment in self.segments]
        if self.freed:
            facts["freed"] = _steps_of(self.freed)
        if self.fetch:
            facts["fetch"] = _packed(self.fetch)
        if self.forget:
            facts["forget"] = True
        if self.nodes:
            facts["nodes"] = [[number, node.to_wire()] for number, node in self.nodes]
        if self.graph is not None:
            facts["course"] = self.graph.to_wire()
            facts["course_sizes"] = pack(self.graph.payloads or ())
        if self.accepted is not None:
            facts["accepted"] = self.accepted
        return [msgpack.packb(facts, use_bin_type=True), b"".join(small), *large]

    def unused(self) -> List[int]:
        """Storages that the client has dropped and that nothing of the message names."""
        named = {number for step in self.steps for _, number in step.live}.union(self.fetch)
        return [number for number in self.freed if number not in named]


@dataclass
class Answer:
    """What came back: one outcome per step that ran, what stopped the others, and what ran ahead.

    ``ran``: index of a step of the trace graph, its first new storage, and its outcome, in the order in which they ran.
    ``fetched``: bytes of the storages that were wanted.
    ``disagreed``: operators whose results lie otherwise than the robot has worked out.
    ``refused``: why nothing of the message was done: from then on the session is not what the client takes it to be.
    """

    outcomes: List[StepOutcome]
    error: Optional[Exception] = None
    ran: List[Tuple[int, int, StepOutcome]] = field(default_factory=list)
    fetched: List[Buffer] = field(default_factory=list)
    disagreed: List[str] = field(default_factory=list)
    refused: str = ""

    def extend(self, other: Answer) -> None:
        """Add what came later."""
        self.outcomes += other.outcomes
        self.ran += other.ran
        self.fetched += other.fetched
        self.disagreed += other.disagreed
        self.error = self.error or other.error
        self.refused = self.refused or other.refused


def parse_message(buffers: Sequence[Buffer]) -> Message:
    """Read a message off the wire.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        if len(buffers) < 2:
            raise ProtocolError("a message lacks its first buffers")
        facts = _facts(buffers[0])
        small, large = memoryview(buffers[1]), list(buffers[2:])
        message = Message(speculative_from=_count(facts["speculative_from"]))
        if facts.get("accepted") is not None:
            message.accepted = _count(facts["accepted"])
        message.forget = bool(facts.get("forget", False))
        for name, key, claimed, schema in facts.get("entries", ()):
            message.entries.append((_text(name), _raw(key), claimed, _count(schema)))
        message.first_entry = _count(facts.get("first_entry", 0))
        message.segments = [(_count(number), _raw(words)) for number, words in facts.get("segments", ())]
        message.freed = list(itertools.accumulate(map(_count, facts.get("freed", ()))))
        message.fetch = list(_words(facts.get("fetch", b"")))
        message.nodes = [(_count(number), parse_step(node)) for number, node in facts.get("nodes", ())]
        used = 0

        def unpack(sizes: Any) -> List[Any]:
            nonlocal used
            payloads: List[Optional[Buffer]] = []
            for size in sizes:
                if size is None:
                    payloads.append(None)
                elif _count(size) > SMALL:
                    payloads.append(large.pop(0))
                else:
                    payloads.append(small[used : used + size])
                    used += size
            return payloads

        for read in itertools.starmap(_StepRow, facts["steps"]):
            pairs = _words(read.live)
            if _count(read.base) >= MOST_STORAGES:
                raise ValueError("a step makes a storage of too high a number")
            live, dead = list(zip(pairs[::2], pairs[1::2])), _words(read.dead)
            payloads = unpack(map(_count, read.payload_sizes))
            message.steps.append(
                SegmentStep(
                    _count(read.segment), read.base, live, dead, _raw(read.numbers), payloads, bool(read.describe)
                )
            )
        if "course" in facts:
            message.graph, own = parse_graph(facts["course"])
            message.graph.payloads = unpack(facts["course_sizes"]) if own else None
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
    """An answer as buffers: facts (msgpack), what was read, then what was fetched."""
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
    """Read an answer off the wire; the error, if any, is of the class that eager execution would have raised.

    Raises:
        ProtocolError: it is malformed.
    """
    answer = Answer([])
    used = 1
    try:
        facts = _facts(buffers[0])
        for item in map(_map, facts["outcomes"]):
            outcome = StepOutcome(results=item.get("results"))
            outcome.described = {_count(call): results for call, results in item.get("described", ())}
            if "dtype" in item:
                sizes = tuple(_count(size) for size in item["sizes"])
                outcome.tensor = host_tensor(buffers[used : used + 1], HostTensor(0, item["dtype"], sizes))
                used += 1
            answer.outcomes.append(outcome)
        ran = facts.get("ran", ())
        first = len(answer.outcomes) - len(ran)
        if first < 0:
            raise ProtocolError("more steps ran ahead than have outcomes")
        for (index, base), outcome in zip(ran, answer.outcomes[first:]):
            answer.ran.append((_count(index), _count(base), outcome))
        del answer.outcomes[first:]
        answer.fetched = list(buffers[used : used + _count(facts.get("fetched", 0))])
        answer.disagreed = [_text(name) for name in facts.get("disagreed", ())]
        if "error" in facts:
            error = _map(facts["error"])
            answer.error = _exception(error)
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
#: What releases of torch from 2.8 on raise where CUDA refuses a call; a RuntimeError before.
_EAGER_ERRORS["AcceleratorError"] = getattr(torch, "AcceleratorError", RuntimeError)


def _exception(error: Mapping[str, Any]) -> Exception:
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


def refusal(error: EdgeOffloadError) -> List[Buffer]:
    """The answer to a message that could not be read, or of which nothing was done."""
    facts = {
        "operator": "", "kind": type(error).__name__, "text": str(error), "cause": error.cause, "remedy": error.remedy,
        "refused": True,
    }  # fmt: skip
    return [msgpack.packb({"outcomes": [], "error": facts}, use_bin_type=True)]


#: Those whose buffers carry their format and shape, which a payload codec makes use of.
_NUMBERS = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool)
)


def tensor_bytes(tensor: torch.Tensor) -> Buffer:
    """The bytes of a contiguous host tensor, without a copy."""
    if tensor.numel() == 0:
        return b""
    with torch.inference_mode():
        if tensor.dtype in _NUMBERS:
            return tensor.detach().numpy().data
        return flat_bytes(tensor).numpy().data


def storage_bytes(storage: torch.UntypedStorage) -> Buffer:
    """The bytes of a storage, on the host."""
    return tensor_bytes(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu())


def _size(payload: Optional[Buffer]) -> Optional[int]:
    if payload is None:
        return None
    return payload.nbytes if isinstance(payload, Named) else memoryview(payload).nbytes


def _steps_of(values: Sequence[int]) -> List[int]:
    """The first of ``values`` when they rise, and how far each is from the one before: mostly a byte each."""
    rising = sorted(values)
    return [value - before for before, value in zip([0, *rising], rising)]


def _packed(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _words(data: Any) -> Tuple[int, ...]:
    raw = _raw(data)
    return struct.unpack(f"<{len(raw) // 8}Q", raw)


def _facts(buffer: Buffer) -> Dict[str, Any]:
    return _map(msgpack.unpackb(bytes(buffer), raw=False, strict_map_key=False))


def _map(value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a map was expected")
    return value


def _raw(value: Any) -> bytes:
    """``value`` if it is bytes: of a number, ``bytes`` would make as many zeros."""
    if not isinstance(value, bytes):
        raise ValueError("bytes were expected")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a number of things")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value
