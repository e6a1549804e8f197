"""What the server knows already: calls, segments and steps, by the numbers under which they were sent."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from edge_offload.ir.trace.calls import Buffer
from edge_offload.ir.trace.checksums import checksum
from edge_offload.ir.trace.keys import packed_words
from edge_offload.ir.trace.trace_graph import MAX_PAYLOAD, Edge
from edge_offload.protocol.messages import DeviceMessage
from edge_offload.replay.prediction.predict import Branches
from edge_offload.replay.prediction.step_models import StepPlan
from edge_offload.replay.signatures import Call, Definition, SignatureTable


class Definitions:
    """Puts into each message what the server has to know for it, once.

    Args:
        native: the extension module.

    Attributes:
        signatures: what calls and segments are made of.
        count: segments that were defined, in all.
    """

    def __init__(self, native: Any) -> None:
        self.signatures = SignatureTable(native)
        self.count = 0
        self._native = native
        self._segments: Set[int] = set()
        self._calls: Dict[int, int] = {}
        self._new: List[Call] = []
        self._session = object()
        self._branches: Optional[Branches] = None
        self._uploads: List[Optional[bytes]] = []

    def forget(self) -> None:
        """The server knows nothing (any more)."""
        self._segments.clear()
        self._calls.clear()
        self._new.clear()
        self._session = object()
        self._branches = None
        self._uploads = []

    def renumber(self) -> None:
        """Number the signatures anew."""
        self.signatures = SignatureTable(self._native)

    def call(self, call: Call) -> int:
        """The number of a call on the server; its definition goes with the next message."""
        found = self._calls.get(call.entry)
        if found is None:
            found = self._calls[call.entry] = len(self._calls)
            self._new.append(call)
        return found

    def segment(self, segment: int, message: DeviceMessage, definition: Optional[Definition] = None) -> bool:
        """Have a segment defined with ``message`` if it is not; says whether it was not."""
        if segment in self._segments:
            return False
        made = definition or self.signatures.definition(segment)
        words = [word for call, references in made.steps() for word in (self.call(call), *references)]
        self._segments.add(segment)
        message.segments.append((segment, packed_words(words)))
        self.count += 1
        return True

    def node(self, plan: StepPlan, message: DeviceMessage) -> int:
        """The number of a plan's trace step on the server; its definition goes with ``message`` if it is not there."""
        if plan.node.segment is not None:
            self.segment(plan.node.segment, message)
        if plan.sent is not self._session:
            plan.sent = self._session
            message.nodes.append((plan.slot, plan.node))
        return plan.slot

    def nodes(self, branches: Branches, message: DeviceMessage) -> Optional[List[Tuple[int, List[Edge]]]]:
        """The steps of a trace graph along ``branches``; None if they are those of the one before."""
        if branches is self._branches:
            return None
        self._branches = branches
        return [(self.node(plan, message), edges) for plan, edges in zip(branches.plans, branches.edges)]

    def uploads(self, payloads: Sequence[Buffer]) -> List[Optional[Buffer]]:
        """The payloads of a trace graph's first step, with None for what is as in the graph before."""
        known = self._uploads + [None] * len(payloads)
        short = [memoryview(payload).nbytes <= MAX_PAYLOAD for payload in payloads]
        self._uploads = [bytes(payload) if keep else None for payload, keep in zip(payloads, short)]
        return [None if own is not None and own == before else payload
                for payload, own, before in zip(payloads, self._uploads, known)]  # fmt: skip

    def complete(self, message: DeviceMessage) -> None:
        """Put in the calls that are new; the message is sent next."""
        message.first_entry = len(self._calls) - len(self._new)
        for call in self._new:
            message.entries.append((call.name, call.key, call.claimed, checksum(call.name)))
        self._new.clear()
