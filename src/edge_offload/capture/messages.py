"""One message of the virtual device and its answer, as plain maps and buffers (for msgpack and raw frames).

A message carries definitions, frees, the verdict on earlier speculation, and steps to run, of which the last few may be
speculative. Its answer has one result per step that ran, and at most one error.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.capture.entries import Buffer, host_tensor
from edge_offload.capture.executor import CallFailed, DeviceSession, Outcome, Step
from edge_offload.capture.keys import DTYPE_NUMBERS, DTYPES
from edge_offload.errors import EdgeOffloadError, ProtocolError, RemoteError

KIND = "device.run"


@dataclass
class Message:
    """What the client has to say.

    Attributes:
        entries: new calls: name, key, and results that the client worked out by itself (or None).
        segments: new segments: number and words.
        freed: storages that the client has dropped.
        accepted: how many of the outstanding speculative steps it did; None when there are none outstanding.
        steps: what to run; those from ``speculative_from`` on are speculative.
        forget: whether calls and segments are to be forgotten first.
    """

    entries: List[Tuple[str, bytes, Optional[List[Any]]]] = field(default_factory=list)
    segments: List[Tuple[int, bytes]] = field(default_factory=list)
    freed: List[int] = field(default_factory=list)
    accepted: Optional[int] = None
    steps: List[Step] = field(default_factory=list)
    speculative_from: int = 0
    forget: bool = False

    def to_wire(self) -> Tuple[Dict[str, Any], List[Buffer]]:
        """Body and buffers."""
        buffers: List[Buffer] = []
        steps = []
        for step in self.steps:
            live = [value for pair in step.live for value in pair]
            steps.append(
                [
                    step.segment,
                    step.base,
                    struct.pack(f"<{len(live)}Q", *live),
                    list(step.dead),
                    step.numbers,
                    len(step.payloads),
                    step.describe,
                ]
            )
            buffers += step.payloads
        body: Dict[str, Any] = {"steps": steps, "speculative_from": self.speculative_from}
        if self.entries:
            body["entries"] = [list(entry) for entry in self.entries]
        if self.segments:
            body["segments"] = [list(segment) for segment in self.segments]
        if self.freed:
            body["freed"] = struct.pack(f"<{len(self.freed)}Q", *self.freed)
        if self.forget:
            body["forget"] = True
        if self.accepted is not None:
            body["accepted"] = self.accepted
        return body, buffers


@dataclass
class Answer:
    """What came back: one outcome per step that ran, and what stopped the others."""

    outcomes: List[Outcome]
    error: Optional[Exception] = None


def parse_message(body: Mapping[str, Any], buffers: Sequence[Buffer]) -> Message:
    """Read a message off the wire.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        message = Message(accepted=body.get("accepted"), speculative_from=int(body["speculative_from"]))
        message.forget = bool(body.get("forget", False))
        message.entries = [(_text(name), bytes(key), claimed) for name, key, claimed in body.get("entries", ())]
        message.segments = [(_count(number), bytes(words)) for number, words in body.get("segments", ())]
        message.freed = list(_words(body.get("freed", b"")))
        used = 0
        for segment, base, live, dead, numbers, payloads, describe in body["steps"]:
            pairs = _words(live)
            stop = used + _count(payloads)
            if stop > len(buffers):
                raise ProtocolError("a step lacks its payloads")
            message.steps.append(
                Step(
                    _count(segment),
                    _count(base),
                    list(zip(pairs[::2], pairs[1::2])),
                    [_count(d) for d in dead],
                    bytes(numbers),
                    list(buffers[used:stop]),
                    bool(describe),
                )
            )
            used = stop
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ProtocolError(f"malformed message: {error}") from None
    return message


def serve(
    session: DeviceSession, body: Mapping[str, Any], buffers: Sequence[Buffer]
) -> Tuple[Dict[str, Any], List[Buffer]]:
    """Do what one message asks; returns body and buffers of the answer. Errors of the session become part of it."""
    outcomes: List[Outcome] = []
    error: Optional[Dict[str, Any]] = None
    freed: List[int] = []
    try:
        message = parse_message(body, buffers)
        freed = message.freed
        if message.accepted is not None:
            session.settle(_count(message.accepted))
        if message.forget:
            session.forget()
        for name, key, claimed in message.entries:
            session.define_entry(name, key, claimed)
        for number, words in message.segments:
            session.define_segment(number, words)
        for index, step in enumerate(message.steps):
            outcomes.append(session.run(step, speculative=index >= message.speculative_from))
    except CallFailed as failure:
        error = {"operator": failure.operator, "kind": failure.kind, "text": failure.text}
    except EdgeOffloadError as failure:
        error = {"operator": "", "kind": type(failure).__name__, "text": str(failure)}
    session.free(freed)  # only now: a storage may be dropped after its last use in these very steps
    answer: Dict[str, Any] = {"outcomes": []}
    replies: List[Buffer] = []
    for outcome in outcomes:
        item: Dict[str, Any] = {}
        if outcome.tensor is not None:
            item["dtype"] = DTYPE_NUMBERS[outcome.tensor.dtype]
            item["sizes"] = list(outcome.tensor.shape)
            replies.append(tensor_bytes(outcome.tensor))
        if outcome.results is not None:
            item["results"] = outcome.results
        answer["outcomes"].append(item)
    if error is not None:
        answer["error"] = error
    return answer, replies


def parse_answer(body: Mapping[str, Any], buffers: Sequence[Buffer]) -> Answer:
    """Read an answer off the wire; the error, if any, is of the class that eager execution would have raised.

    Raises:
        ProtocolError: it is malformed.
    """
    answer = Answer([])
    used = 0
    try:
        for item in body["outcomes"]:
            outcome = Outcome(results=item.get("results"))
            if "dtype" in item:
                sizes = tuple(_count(size) for size in item["sizes"])
                outcome.tensor = host_tensor(buffers[used : used + 1], DTYPES[item["dtype"]], sizes)
                used += 1
            answer.outcomes.append(outcome)
        if "error" in body:
            answer.error = _exception(body["error"])
    except (KeyError, TypeError, ValueError) as error:
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
    )
}


def _exception(error: Mapping[str, Any]) -> Exception:
    text, operator = str(error["text"]), str(error["operator"])
    if operator and error["kind"] in _EAGER_ERRORS:
        return _EAGER_ERRORS[error["kind"]](text)
    if error["kind"] == "Unsupported":
        return NotImplementedError(f"{text} (edge_offload)")
    return RemoteError(f"{operator}: {text}" if operator else text)


def tensor_bytes(tensor: torch.Tensor) -> Buffer:
    """The bytes of a contiguous host tensor, without a copy."""
    if tensor.numel() == 0:
        return b""
    with torch.inference_mode():
        return tensor.reshape(-1).view(torch.uint8).numpy().data


def _words(data: Any) -> Tuple[int, ...]:
    raw = bytes(data)
    return struct.unpack(f"<{len(raw) // 8}Q", raw)


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a number of things")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value
