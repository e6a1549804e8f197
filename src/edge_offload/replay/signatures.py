"""Signatures of steps: the calls between two host reads, without their integers.

For the device, calls with other sizes are other segments. A segment also ends at a result whose shape is not known. A
signature abstracts from both. Two steps have the same signature if they make the same calls, and storages connect
these in the same way. The integers of the calls must also agree in which of them are 0, 1 or more; they are kept apart
from the signature.
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.errors import Disagreement
from edge_offload.ir.operators import Operator, StorageRef, View
from edge_offload.ir.trace.keys import calls_in, decode_key, integers_of, unpack_codes
from edge_offload.ir.trace.symbols import BranchKey
from edge_offload.ir.trace.trace_graph import MAX_PAYLOAD
from edge_offload.protocol.messages import tensor_bytes
from edge_offload.replay.flushed import FlushedSegment

#: Entries of each cache.
MAX_CACHED = 1 << 12
#: The shapes of a step's uploads are recorded up to this number of them; more uploads are weights.
MAX_SHAPED = 16
Integers = Tuple[Tuple[int, ...], ...]

_NONE: FrozenSet[int] = frozenset()
_ZERO = bytes(8)


@dataclass(frozen=True)
class TableCall:
    """An entry of the device's table of calls, as signatures compare it.

    Attributes:
        entry: number in the table.
        name, key, claimed: see :class:`~edge_offload.ir.trace.calls.BoundOperator`.
        skeleton: number of the call without its integers (its name and the rest of its key).
        integers, offsets: integers of the key, and their byte offsets in it.
        references: number of operands that refer to a storage.
    """

    entry: int
    name: str
    key: bytes
    claimed: Optional[List[Any]]
    skeleton: int
    integers: Tuple[int, ...]
    offsets: Tuple[int, ...]
    references: int

    @property
    def is_special(self) -> bool:
        """True for calls that are not torch operators: the server does not describe their results."""
        return self.name.startswith("edge::")

    @functools.cached_property
    def operator(self) -> Operator:
        """The call itself."""
        return decode_key(self.name, self.key).operator


@dataclass(frozen=True)
class Definition:
    """Definition of a segment: its codes as the device writes them, and its calls."""

    codes: Tuple[int, ...]
    calls: Tuple[TableCall, ...]

    def calls_with_storages(self) -> Iterator[Tuple[TableCall, Tuple[int, ...]]]:
        """Yield each call with the numbers of the storages that it refers to."""
        calls = iter(self.calls)
        return calls_in(self.codes, lambda _: next(calls))


@dataclass
class SegmentInvocation:
    """One use of a segment by the program, with its storages, numbers and payloads.

    Attributes:
        segment: number of the segment.
        base: number of its first new storage.
        live: (canonical number, storage) of each storage that existed before.
        dead: canonical numbers of new storages that are freed already.
        numbers, payloads, reason: see :class:`~edge_offload.replay.flushed.FlushedSegment`.
        definition: of the segment; None: not read from the device yet.
        calls: number of calls of its step up to its end, over the invocations whose definition was read.
    """

    segment: int
    base: int
    live: Tuple[Tuple[int, int], ...]
    dead: FrozenSet[int]
    numbers: bytes
    payloads: List[torch.Tensor]
    reason: int
    definition: Optional[Definition] = None
    calls: int = 0

    @staticmethod
    def from_flushed(flushed: FlushedSegment) -> SegmentInvocation:
        """Make the invocation of a segment that the device has flushed."""
        numbers = iter(flushed.live)
        live = tuple(zip(numbers, numbers))
        dead = frozenset(flushed.dead) if flushed.dead else _NONE
        return SegmentInvocation(
            flushed.segment, flushed.base, live, dead, flushed.numbers, flushed.payloads, flushed.reason
        )


@dataclass(frozen=True)
class SegmentSignature:
    """Signature and integers of all steps that consist of the same segments.

    Attributes:
        number: number of the signature.
        entries: number of each call in the device's table.
        integers: integers of each call's key.
    """

    number: int
    entries: Tuple[int, ...]
    integers: Integers


@dataclass
class CompletedStep:
    """A step that the program has issued completely.

    Attributes:
        signature: its signature, and the integers of its calls.
        segment: its segment; None: it consists of several.
        canonicals: canonical numbers, in ``segment``, of the storages in ``live``.
        base: number of its first new storage.
        live: storages that existed before, in the order of their first use.
        dead: freed ones of its new storages, counted from ``base``.
        numbers: 16 bytes for each host number.
        payloads: bytes of each upload; None for more than :data:`MAX_PAYLOAD` bytes.
        reason: why it ended (:mod:`edge_offload.replay.flushed`).
        opens: whether an inference begins with it, as far as is known (:meth:`Predictor.begin_step`).
        integers, kind: integers and branch key of its outcome.
        upload_sizes: see :func:`upload_sizes`.
    """

    signature: SegmentSignature
    segment: Optional[int]
    canonicals: Tuple[int, ...]
    base: int
    live: Tuple[int, ...]
    dead: FrozenSet[int]
    numbers: bytes
    payloads: Tuple[Optional[bytes], ...]
    reason: int
    opens: bool = False
    integers: Tuple[int, ...] = ()
    kind: BranchKey = ()
    upload_sizes: Tuple[int, ...] = ()


@dataclass
class SignatureTable:
    """Numbers the signatures; caches facts of calls and segments. ``native``: the extension module."""

    native: Any
    _skeletons: Dict[Tuple[str, bytes], int] = field(default_factory=dict)
    _calls: Dict[int, TableCall] = field(default_factory=dict)
    _invocations: Dict[int, Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]] = field(default_factory=dict)
    _signatures: Dict[Tuple[int, int], SegmentSignature] = field(default_factory=dict)
    _numbers: Dict[Any, int] = field(default_factory=dict)
    _dead: Dict[int, Tuple[FrozenSet[int], FrozenSet[int]]] = field(default_factory=dict)
    _skeleton_lists: List[Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._numbers)

    def skeletons_of(self, signature: int) -> Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]:
        """Return each call's skeleton and storages: new ones from 0 on, others −1, −2, … by their first use."""
        return self._skeleton_lists[signature]

    def call_of(self, entry: int) -> TableCall:
        """Return entry ``entry`` of the device's table of calls."""
        call = self._calls.get(entry)
        if call is None:
            name, key, claimed = self.native.entry(entry)
            _, offsets, operands = decode_key(name, key)
            references = sum(isinstance(operand, (View, StorageRef)) for operand in operands)
            bare = bytearray(key)
            for offset in offsets:
                bare[offset : offset + 8] = _ZERO
            skeleton = self._skeletons.setdefault((name, bytes(bare)), len(self._skeletons))
            call = TableCall(entry, name, key, claimed, skeleton, integers_of(key, offsets), offsets, references)
            self._calls[entry] = call
            _bound_cache(self._calls)
        return call

    def expect_results(self, calls: Sequence[Tuple[TableCall, bytes, Tuple[int, ...], List[Any]]]) -> None:
        """Report the results of expected calls to the device.

        Args:
            calls: for each, a known call that differs from it in integers only, its key, its integers, its results.

        Raises:
            Disagreement: the device has computed other results.
        """
        try:
            numbers = self.native.foretell([(like.entry, key, results) for like, key, _, results in calls])
        except ValueError as error:
            cause = f"{error}: robot and server disagree on its result"
            raise Disagreement(cause, remedy="do it again: the server is asked from now on") from None
        for number, (like, key, integers, _) in zip(numbers, calls):
            if number not in self._calls:
                facts = (number, like.name, key, None, like.skeleton, integers, like.offsets, like.references)
                self._calls[number] = TableCall(*facts)
        _bound_cache(self._calls)

    def definition_of(self, segment: int) -> Definition:
        """Return the definition of a segment, read from the device."""
        codes = unpack_codes(self.native.segment_code(segment))
        return Definition(codes, tuple([call for call, _ in calls_in(codes, self.call_of)]))

    def beginning_of(self, invocation: SegmentInvocation) -> Tuple[List[TableCall], Tuple[Tuple[int, ...], ...]]:
        """Return the calls of a step's first invocation, and their storages numbered as in :meth:`skeletons_of`."""
        entries, references = self._storages_of(invocation)
        return [self.call_of(entry) for entry in entries], references

    def complete_step(self, invocations: Sequence[SegmentInvocation], freed: Sequence[int]) -> CompletedStep:
        """Return the step that consists of ``invocations``; ``freed``: storages freed since its first invocation."""
        last = invocations[-1]
        first = invocations[0]
        if len(invocations) == 1:
            canonicals, live = tuple(zip(*last.live)) or ((), ())
            dead = self.freed_ordinals(last)
            signature = self._signatures.get((last.segment, last.reason))
            if signature is None:
                signature = self._signature_of(*self._storages_of(last), last.reason)
                self._signatures[last.segment, last.reason] = signature
                _bound_cache(self._signatures)
            segment: Optional[int] = last.segment
            numbers = last.numbers
        else:
            entries: List[int] = []
            references: List[Tuple[int, ...]] = []
            order: Dict[int, int] = {}
            freed_numbers: Set[int] = set()
            for invocation in invocations:
                own_entries, own_references = self._storages_of(invocation)
                storage_numbers = [storage for _, storage in invocation.live]
                for entry, used in zip(own_entries, own_references):
                    entries.append(entry)
                    storages = [invocation.base + name if name >= 0 else storage_numbers[-1 - name] for name in used]
                    references.append(
                        tuple(
                            number - first.base if number >= first.base else -1 - order.setdefault(number, len(order))
                            for number in storages
                        )
                    )
                freed_numbers.update(invocation.base + number for number in self.freed_ordinals(invocation))
            freed_numbers.update(number for number in freed if number >= first.base)
            dead = frozenset(number - first.base for number in freed_numbers)
            signature = self._signature_of(tuple(entries), tuple(references), last.reason)
            segment, canonicals, live = None, (), tuple(order)
            numbers = b"".join(invocation.numbers for invocation in invocations)
        payloads = [payload for invocation in invocations for payload in invocation.payloads]
        short = tuple([_short_bytes(payload) for payload in payloads])
        sizes = upload_sizes(payloads)
        return CompletedStep(
            signature, segment, canonicals, first.base, live, dead, numbers, short, last.reason, upload_sizes=sizes
        )

    def freed_ordinals(self, invocation: SegmentInvocation) -> FrozenSet[int]:
        """Return the freed ones of an invocation's new storages, numbered from 0 on."""
        if not invocation.dead:
            return invocation.dead
        before, after = self._dead.get(invocation.segment, (_NONE, _NONE))
        if before != invocation.dead:
            older = [number for number, _ in invocation.live]
            after = frozenset(number - bisect.bisect_left(older, number) for number in invocation.dead)
            self._dead[invocation.segment] = (invocation.dead, after)
            _bound_cache(self._dead)
        return after

    def _storages_of(self, invocation: SegmentInvocation) -> Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]:
        """Return the calls of an invocation, and their storages numbered as in :meth:`skeletons_of`."""
        numbered = self._invocations.get(invocation.segment)
        if numbered is None:
            definition = invocation.definition or self.definition_of(invocation.segment)
            references = []
            older = [number for number, _ in invocation.live]
            place = {number: -1 - index for index, number in enumerate(older)}
            for _, numbers in definition.calls_with_storages():
                for number in numbers:
                    if number not in place:
                        place[number] = number - bisect.bisect_left(older, number)
                references.append(tuple([place[number] for number in numbers]))
            entries = tuple(call.entry for call in definition.calls)
            numbered = self._invocations[invocation.segment] = (entries, tuple(references))
            _bound_cache(self._invocations)
        return numbered

    def _signature_of(
        self, entries: Tuple[int, ...], references: Tuple[Tuple[int, ...], ...], reason: int
    ) -> SegmentSignature:
        """Return the signature of calls, storages and end reason; number it if it is new."""
        calls = [self.call_of(entry) for entry in entries]
        skeletons = tuple(call.skeleton for call in calls)
        signature = self._numbers.setdefault((skeletons, references, reason), len(self._numbers))
        if signature == len(self._skeleton_lists):
            self._skeleton_lists.append((skeletons, references))
        return SegmentSignature(signature, entries, tuple(call.integers for call in calls))


def upload_sizes(payloads: Sequence[torch.Tensor], assumed: Sequence[bytes] = ()) -> Tuple[int, ...]:
    """Return sizes of a step's uploads, as integers of which formulas may be learned.

    These are the bytes of each upload, ``payloads`` before ``assumed``, then all dimensions of ``payloads``. The
    dimensions are left out for more than :data:`MAX_SHAPED` uploads.
    """
    sizes = [payload.nbytes for payload in payloads] + [len(item) for item in assumed]
    shaped = payloads if len(sizes) <= MAX_SHAPED else ()
    return (*sizes, *(size for payload in shaped for size in payload.shape))


def _short_bytes(payload: torch.Tensor) -> Optional[bytes]:
    """Return the bytes of an upload; None for more than :data:`.MAX_PAYLOAD`."""
    return bytes(memoryview(tensor_bytes(payload)).cast("B")) if payload.nbytes <= MAX_PAYLOAD else None


def _bound_cache(cache: Dict[Any, Any]) -> None:
    if len(cache) > MAX_CACHED:
        cache.clear()
