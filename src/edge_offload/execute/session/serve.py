"""Serving one message by a session: define, settle, run, run ahead, and answer."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from edge_offload.errors import DeviceLost, EdgeOffloadError, ProtocolError
from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.calls import Buffer
from edge_offload.ir.trace.segments import CallFailed, StepOutcome
from edge_offload.protocol.messages import DeviceMessage, answer_to_wire, parse_message, refusal_to_wire, storage_bytes

#: Of one answer, what is sent in parts ahead of the rest: it is kept for a repetition until the answer is acknowledged.
MAX_FLUSHED_BYTES = 256 << 20


def serve_message(
    session: DeviceSession, buffers: Sequence[Buffer], ahead: Optional[Callable[[List[Buffer]], None]] = None
) -> List[Buffer]:
    """Do what one message asks; returns the buffers of the answer. Errors of the session become part of it.

    One that the session cannot take in is refused as a whole: the client goes on with another session then.

    What the client has dropped is there until the next message, or :meth:`DeviceSession.sweep`.

    ``ahead`` is given parts of the answer while the rest is computed, up to MAX_FLUSHED_BYTES of what is read; what is
    returned is what they lack.

    Raises:
        DeviceLost: the GPU failed: the session is over, and so is what this process can do with that GPU.
    """
    outcomes: List[StepOutcome] = []
    ran: List[Tuple[int, int, StepOutcome]] = []

    flushed = 0

    def flush() -> None:
        nonlocal flushed
        read = [outcome.tensor for outcome in (*outcomes, *(item[-1] for item in ran))]
        size = sum(tensor.nbytes for tensor in read if tensor is not None)
        if ahead is not None and flushed + size <= MAX_FLUSHED_BYTES:
            flushed += size
            ahead(answer_to_wire(outcomes, ran))
            del outcomes[:], ran[:]

    session.free_leaving()
    session.returned = 0
    error: Optional[Dict[str, Any]] = None
    fetched: List[Buffer] = []
    try:
        message = parse_message(buffers)
        with gpu_failures():
            _take_in(session, message)
    except DeviceLost:
        raise
    except EdgeOffloadError as failure:
        return refusal_to_wire(failure)
    session.unused = message.unused_storages
    try:
        with gpu_failures():
            for index, step in enumerate(message.steps):
                outcomes.append(session.run(step, speculative=index >= message.speculative_from))
            if message.graph is not None:
                before = (message.steps[-1], outcomes[-1]) if outcomes else None
                with torch.inference_mode():
                    for item in session.ahead.run(message.graph, before, flush):
                        ran.append(item)
            for number in message.fetch:
                storage = session.buffer_of(number).storage
                session.bring_back(storage.nbytes())
                fetched.append(storage_bytes(storage))
    except DeviceLost:
        raise
    except CallFailed as failure:
        error = {"operator": failure.operator, "kind": failure.kind, "text": failure.text}
    except EdgeOffloadError as failure:
        error = {"operator": "", "kind": type(failure).__name__, "text": str(failure)}
    session.unused = tuple
    session.leaving = message.freed  # not yet: a storage may be dropped after its last use in these very steps
    disagreed, session.disagreed = session.disagreed, []
    return answer_to_wire(outcomes, ran, fetched, error, sorted(set(disagreed)))


def _take_in(session: DeviceSession, message: DeviceMessage) -> None:
    """Settle and define what a message says before any of its steps is run.

    Raises:
        EdgeOffloadError: the message and the session do not belong together.
    """
    if message.accepted is not None:
        session.settle_speculation(message.accepted)
    if message.reset_tables:
        session.drop_definitions()
    if message.entries and message.first_entry != len(session.operators):
        raise ProtocolError(f"calls from {message.first_entry} are defined, but {len(session.operators)} are known")
    for entry in message.entries:
        session.define_operator(*entry)
    for number, codes in message.segments:
        session.define_segment(number, codes)
    for number, node in message.nodes:
        session.ahead.define_step(number, node)
    if message.graph is not None:
        session.ahead.take_graph(message.graph)
