"""Definitions on the server: calls, segments and steps, by the numbers under which they were sent."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from edge_offload.ir.trace.calls import Buffer
from edge_offload.ir.trace.checksums import schema_checksum
from edge_offload.ir.trace.keys import pack_codes
from edge_offload.ir.trace.trace_graph import MAX_PAYLOAD, Edge
from edge_offload.protocol.messages import DeviceMessage
from edge_offload.replay.prediction.predict import Branches
from edge_offload.replay.prediction.step_models import StepPlan
from edge_offload.replay.signatures import Definition, SignatureTable, TableCall


class Definitions:
    """Puts into each message what the server has to know for it, once.

    Args:
        native: the extension module.

    Attributes:
        signatures: what calls and segments are made of.
        segment_count: segments that were defined, in all.
    """

    def __init__(self, native: Any) -> None:
        self.signatures = SignatureTable(native)
        self.segment_count = 0
        self._native = native
        self._segments: Set[int] = set()
        self._calls: Dict[int, int] = {}
        self._new: List[TableCall] = []
        self._session = object()
        self._branches: Optional[Branches] = None
        self._uploads: List[Optional[bytes]] = []

    def reset(self) -> None:
        """Starts with a server that knows no definitions."""
        self._segments.clear()
        self._calls.clear()
        self._new.clear()
        self._session = object()
        self._branches = None
        self._uploads = []

    def renumber(self) -> None:
        """Number the signatures anew."""
        self.signatures = SignatureTable(self._native)

    def call_number(self, call: TableCall) -> int:
        """Number of a call on the server; its definition goes with the next message."""
        number = self._calls.get(call.entry)
        if number is None:
            number = self._calls[call.entry] = len(self._calls)
            self._new.append(call)
        return number

    def define_segment(self, segment: int, message: DeviceMessage, definition: Optional[Definition] = None) -> bool:
        """Have a segment defined with ``message`` if it is not; says whether it was not."""
        if segment in self._segments:
            return False
        parts = definition or self.signatures.definition_of(segment)
        codes = [
            word for call, references in parts.calls_with_storages() for word in (self.call_number(call), *references)
        ]
        self._segments.add(segment)
        message.segments.append((segment, pack_codes(codes)))
        self.segment_count += 1
        return True

    def step_number(self, plan: StepPlan, message: DeviceMessage) -> int:
        """The number of a plan's trace step on the server; its definition goes with ``message`` if it is not there."""
        if plan.node.segment is not None:
            self.define_segment(plan.node.segment, message)
        if plan.sent is not self._session:
            plan.sent = self._session
            message.nodes.append((plan.definition_number, plan.node))
        return plan.definition_number

    def step_numbers(self, branches: Branches, message: DeviceMessage) -> Optional[List[Tuple[int, List[Edge]]]]:
        """The steps of a trace graph along ``branches``; None if they are those of the one before."""
        if branches is self._branches:
            return None
        self._branches = branches
        return [(self.step_number(plan, message), edges) for plan, edges in zip(branches.plans, branches.edges)]

    def changed_uploads(self, payloads: Sequence[Buffer]) -> List[Optional[Buffer]]:
        """Payloads of a trace graph's first step, with None for each that is as in the graph before."""
        uploads_before = self._uploads + [None] * len(payloads)
        short = [memoryview(payload).nbytes <= MAX_PAYLOAD for payload in payloads]
        self._uploads = [bytes(payload) if is_short else None for payload, is_short in zip(payloads, short)]
        return [None if current is not None and current == before else payload
                for payload, current, before in zip(payloads, self._uploads, uploads_before)]  # fmt: skip

    def add_new_calls(self, message: DeviceMessage) -> None:
        """Put in the calls that are new; the message is sent next."""
        message.first_entry = len(self._calls) - len(self._new)
        for call in self._new:
            message.entries.append((call.name, call.key, call.claimed, schema_checksum(call.name)))
        self._new.clear()
