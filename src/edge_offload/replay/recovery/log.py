"""What puts a session that knows nothing where the one before was: uploads, and the segments that made the rest.

Of each storage that the program holds on the device, either all that was ever written to it came from the host, or
something was computed there. Uploads are remembered: small ones as they are, large ones (weights) by the checksums of
their bytes. What was computed is computed again, by the segments that made it and those that made what they read, in
their order: those are kept as long as somebody holds what came of them, and bounded. A random generator counts as a
storage that every session has. Whatever is not certain to be the same counts as lost.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Set

from edge_offload.ir.trace.calls import ALLOC, UPLOAD, Buffer
from edge_offload.ir.trace.checksums import schema_checksum
from edge_offload.ir.trace.keys import pack_codes
from edge_offload.ir.trace.segments import SegmentStep
from edge_offload.protocol.blobs import NamedBlobs, digest, split_blobs
from edge_offload.protocol.messages import SMALL, DeviceMessage, tensor_bytes
from edge_offload.replay.recovery.effects import Effects, SegmentUse
from edge_offload.replay.signatures import SegmentInvocation, SignatureTable

#: Small uploads that are remembered, all together; what comes after them is not.
MAX_SMALL_BYTES = 64 << 20
#: Payloads put back with one message: the server holds them until it runs.
MESSAGE_BYTES = 32 << 20
#: Uploads to one storage that are remembered; a program that goes on writing to it from the host has state there.
MAX_UPLOADS = 8
#: Segments of which it is known what they do.
MAX_USES = 1 << 14
#: Segments that are kept because what they computed is held, and the bytes of their uploads.
MAX_SEGMENTS = 1024
MAX_PAYLOAD_BYTES = 64 << 20
#: So many segments, or bytes of their uploads, are looked through at a time for what nobody holds any more.
PRUNE_SEGMENTS = 64
PRUNE_BYTES = 32 << 20
PRUNE_FREED = 1 << 14
#: A number above all others.
NEVER = 1 << 62
#: Has a large payload kept, under its name, and says whether it is.
StoreUpload = Callable[[NamedBlobs, memoryview], bool]


@dataclass
class _Contents:
    """A storage that was filled from the host.

    Attributes:
        alloc: key of its allocation.
        uploads: of each upload the key, and the bytes or what they are called.
        written: number of the segment with the last of them; ``previous``: of the one before it that had some.
        computed: number of the segment that computed something into it, from which on segments tell what it holds.
        freed: whether the program has dropped it.
    """

    alloc: bytes
    uploads: Dict[bytes, object] = field(default_factory=dict)
    written: int = 0
    previous: int = 0
    computed: int = NEVER
    freed: bool = False

    def note_fill(self, number: int) -> None:
        """Segment ``number`` has filled it."""
        if self.written != number:
            self.written, self.previous = number, self.written


@dataclass
class _Done:
    """A segment that the program has run.

    Attributes:
        number: they are counted from 1.
        lost: whether it cannot be run again with the same effects.
        generators: those whose state it uses.
        dead: its new storages that were dropped in it, counted from 0.
        makes: existing storages and generators that it changes, and, once they are known, its new storages.
    """

    number: int
    invocation: SegmentInvocation
    use: SegmentUse
    lost: bool
    generators: List[int]
    dead: FrozenSet[int]
    makes: List[int]

    @property
    def needed(self) -> List[int]:
        """Storages and generators that must exist before it runs."""
        return [storage for _, storage in self.invocation.live] + self.generators

    def uploads_late(self, storage: int) -> bool:
        """True if it fills ``storage`` after it has used it."""
        return any(canonical in self.use.late for canonical, number in self.invocation.live if number == storage)

    def end_segment(self, following: int) -> None:
        """The first storage after its own is ``following``."""
        base = self.invocation.base
        if following - base > len(self.dead):
            self.makes += [base + new for new in set(range(following - base)) - self.dead]


class RecoveryLog:
    """Follows what the program does on the device, segment by segment.

    Attributes:
        rerun_count: segments that :meth:`restore_messages` had run.
    """

    def __init__(self) -> None:
        self._contents: Dict[int, _Contents] = {}
        self._uses: Dict[int, SegmentUse] = {}
        self._effects: Optional[Effects] = None
        self._small_bytes = 0
        self._done: List[_Done] = []
        self._open: Optional[_Done] = None
        self._number = self._payload_bytes = 0
        self._prune_at, self._prune_bytes = PRUNE_SEGMENTS, PRUNE_BYTES
        self._freed: Set[int] = set()
        self._lost: Set[int] = set()
        self.rerun_count = 0

    def __contains__(self, storage: int) -> bool:
        return storage in self._contents and self._is_plain(storage)

    @property
    def is_complete(self) -> bool:
        """True if everything that the program holds could be restored elsewhere."""
        return not self._lost and not (self._open is not None and self._open.lost)

    def reset_segments(self) -> None:
        """The device has forgotten its segments; storages stay."""
        self._uses.clear()

    def use_of(self, invocation: SegmentInvocation, signatures: SignatureTable) -> SegmentUse:
        """Effects of ``invocation`` on storages and generators."""
        use = self._uses.get(invocation.segment)
        if use is None:
            if self._effects is None or self._effects.signatures is not signatures:
                self._effects = Effects(signatures)
            if len(self._uses) >= MAX_USES:
                self._uses.clear()
            use = SegmentUse.of_definition(signatures.definition_of(invocation.segment), self._effects)
            self._uses[invocation.segment] = use
        return use

    # -- what the program does

    def note_segment(
        self,
        invocation: SegmentInvocation,
        signatures: SignatureTable,
        store: Optional[StoreUpload] = None,
        failed: bool = False,
    ) -> None:
        """Notes that the program has done ``invocation``.

        Args:
            invocation: what was done.
            signatures: what knows its segment.
            store: has large payloads kept, and says whether they are; None: they are not.
            failed: something in it raised, so that it is not known how far it came.
        """
        self._end_segment(invocation.base)
        self._number += 1
        use = self.use_of(invocation, signatures)
        generators = [number for number, set_first in use.generators.items() if not set_first]
        done = _Done(
            self._number, invocation, use, failed, generators, signatures.freed_ordinals(invocation), [*use.generators]
        )
        if self._lost and not self._lost.isdisjoint(done.needed):
            done.lost = True
        self._open = done
        if not (use.computed or use.uploads or use.made):
            return
        live = dict(invocation.live)
        written = {*use.computed, *(canonical for canonical, _, _ in use.uploads)} if failed else use.computed
        for canonical in written:
            if canonical in live:
                done.makes.append(live[canonical])
                self._mark_computed(live[canonical])
        if not failed:
            self._note_uploads(done, live, store)

    def _note_uploads(self, done: _Done, live: Dict[int, int], store: Optional[StoreUpload]) -> None:
        invocation, storages = done.invocation, dict(live)
        older = [canonical for canonical, _ in invocation.live]  # in ascending order
        for canonical, key in done.use.made.items():
            if canonical not in invocation.dead and canonical not in done.use.computed:
                storage = invocation.base + canonical - bisect.bisect_left(older, canonical)
                storages[canonical] = storage
                self._contents[storage] = _Contents(key, written=done.number)
        for canonical, key, number in done.use.uploads:
            storage = storages.get(canonical, NEVER)
            if canonical in live:
                done.makes.append(storage)
            contents = self._contents.get(storage)
            if contents is None or contents.computed != NEVER:
                continue
            if self._store_payload(contents, key, tensor_bytes(invocation.payloads[number]), store):
                contents.note_fill(done.number)
            elif canonical in live:
                contents.computed = done.number
            else:  # the segment makes it, and fills it
                self._remove_contents(storage)

    def free_storages(self, storages: Iterable[int]) -> None:
        """The program has dropped them."""
        for storage in storages:
            if storage in self._contents:
                self._contents[storage].freed = True
            self._freed.add(storage)
            self._lost.discard(storage)
        if len(self._freed) > PRUNE_FREED:
            self._prune_segments()

    def _mark_computed(self, storage: int) -> None:
        """Marks a storage as computed: from now on segments restore its contents."""
        contents = self._contents.get(storage)
        if contents is not None:
            contents.computed = min(contents.computed, self._number)

    def _store_payload(self, contents: _Contents, key: bytes, payload: Buffer, store: Optional[StoreUpload]) -> bool:
        view = memoryview(payload)
        data = view.cast("B") if view.nbytes else memoryview(b"")
        if data.nbytes > SMALL:
            if store is None:
                return False
            named = NamedBlobs(data.nbytes, tuple(map(digest, split_blobs(data))))
            if not store(named, data):
                return False
            self._small_bytes -= _bytes_in_memory(contents.uploads.pop(key, b""))
            contents.uploads[key] = named
            return True
        grown = self._small_bytes - _bytes_in_memory(contents.uploads.get(key, b"")) + data.nbytes
        if grown > MAX_SMALL_BYTES or (len(contents.uploads) >= MAX_UPLOADS and key not in contents.uploads):
            return False
        contents.uploads.pop(key, None)
        contents.uploads[key] = bytes(data)
        self._small_bytes = grown
        return True

    def _remove_contents(self, storage: int) -> None:
        contents = self._contents.pop(storage)
        self._small_bytes -= sum(_bytes_in_memory(data) for data in contents.uploads.values())

    def _is_plain(self, storage: int) -> bool:
        """True if uploads alone restore its contents."""
        contents = self._contents.get(storage)
        return contents is not None and contents.computed == NEVER

    # -- which segments are kept

    def _end_segment(self, following: int) -> None:
        """The last segment has made no storage from ``following`` on."""
        done, self._open = self._open, None
        if done is None:
            return
        done.end_segment(following)
        if done.lost:
            self._mark_lost(done)
            return
        if self._lost:
            self._lost.difference_update(number for number in done.makes if number < 0)
        if any(storage not in self._freed and not self._is_plain(storage) for storage in done.makes):
            self._done.append(done)
            self._payload_bytes += _payload_bytes(done)
            if len(self._done) >= self._prune_at or self._payload_bytes >= self._prune_bytes:
                self._prune_segments()

    def _mark_lost(self, done: _Done) -> None:
        """Marks what ``done`` made, uploads apart, as lost: it cannot be run again."""
        for number in done.makes:
            if self._is_plain(number):
                continue
            if number in self._contents:
                self._remove_contents(number)
            if number not in self._freed:
                self._lost.add(number)

    def _prune_segments(self) -> None:
        """Drops segments whose results are all freed; if too many remain, the results of the oldest are lost."""
        needed = {number for done in self._done for number in done.makes if number < 0}
        retained: List[_Done] = []
        for done in reversed(self._done):
            if any(
                (number in needed or (number >= 0 and number not in self._freed)) and not self._is_plain(number)
                for number in done.makes
            ):
                retained.append(done)
                needed.difference_update(number for number in done.makes if number < 0)
                needed.update(done.needed)
        retained.reverse()
        size = sum(map(_payload_bytes, retained))
        self._done = []
        broken: Set[int] = set()
        for number, done in enumerate(retained):
            too_many = len(retained) - number > MAX_SEGMENTS or size > MAX_PAYLOAD_BYTES
            if too_many or not broken.isdisjoint(done.needed):
                size -= _payload_bytes(done)
                broken.update(made for made in done.makes if not self._is_plain(made))
                self._mark_lost(done)
            else:
                broken.difference_update(made for made in done.makes if made < 0)
                self._done.append(done)
        self._payload_bytes = sum(map(_payload_bytes, self._done))
        self._prune_at = max(PRUNE_SEGMENTS, 2 * len(self._done))
        self._prune_bytes = max(PRUNE_BYTES, 2 * self._payload_bytes)
        under_way = [self._open] if self._open is not None else []
        used = {number for done in (*self._done, *under_way) for number in (*done.needed, *done.makes)}
        first = under_way[0].invocation.base if under_way else NEVER
        self._freed = {storage for storage in self._freed if storage in used or storage >= first}
        for storage in [number for number, contents in self._contents.items() if contents.freed and number not in used]:
            self._remove_contents(storage)

    # -- a session that knows nothing

    def restore_messages(
        self, before: int, payload: Optional[Callable[[NamedBlobs], Buffer]] = None, restored: Optional[Set[int]] = None
    ) -> Iterator[DeviceMessage]:
        """Messages that restore the storages with numbers less than ``before`` in an empty session.

        The session drops the calls and segments in them afterwards.

        Args:
            before: storages from here on belong to what is still to be done.
            payload: gives the bytes of a large upload; None: it is sent by name.
            restored: filled with the storages and generators that will be there.
        """
        self._end_segment(before)
        self._prune_segments()
        present = restored if restored is not None else set()
        batch = _MessageBatch(payload)
        made = {number for done in self._done for number in done.makes if number >= done.invocation.base}
        for storage, contents in self._contents.items():
            if storage < before and storage not in made:
                present.add(storage)
                yield from batch.add_storage(storage, contents)
        present |= {number for done in self._done for number in done.generators}
        state: Dict[int, int] = {}
        rerun: List[_Done] = []
        for done in self._done:
            if all(number in present and self._as_it_was(number, done, state) for number in done.needed):
                rerun.append(done)
                yield from batch.add_segment(done)
                present.update(done.makes)
                state.update(dict.fromkeys(done.makes, done.number))
                continue
            for number in done.makes:
                if not self._is_plain(number):
                    present.discard(number)
                    self._lost |= {number} - self._freed
                elif number not in present:
                    present.add(number)
                    yield from batch.add_storage(number, self._contents[number])
        for storage, number in state.items():
            if self._is_plain(storage) and self._contents[storage].written != number:
                yield from batch.add_storage(storage, self._contents[storage], exists=True)
        yield from batch.flush()
        present -= self._lost
        self._done = rerun
        self.rerun_count = len(rerun)

    def dropped_storages(self, restored: Set[int]) -> List[int]:
        """Storages among ``restored`` that the program does not hold any more."""
        freed = {storage for storage, contents in self._contents.items() if contents.freed}
        return sorted(number for number in restored if number >= 0 and (number in self._freed or number in freed))

    @property
    def lost_storages(self) -> int:
        """Number of the program's storages that cannot be restored."""
        return sum(number >= 0 for number in self._lost)

    @property
    def lost_generators(self) -> Set[int]:
        """Random generators, as −1, −2, …, whose state cannot be restored."""
        return {number for number in self._lost if number < 0}

    def _as_it_was(self, storage: int, done: _Done, state: Dict[int, int]) -> bool:
        """True if a storage holds what ``done`` read there, when the segments before it have run again."""
        contents = self._contents.get(storage)
        if contents is None:
            return True
        now = state.get(storage, contents.written)
        if contents.written < done.number:
            return now == contents.written or now >= contents.computed
        if contents.written > done.number:
            return False
        return now == contents.previous or (now == contents.written and not done.uploads_late(storage))


class _MessageBatch:
    """Messages under way: as many steps in each as may be."""

    def __init__(self, payload: Optional[Callable[[NamedBlobs], Buffer]]) -> None:
        self._payload = payload
        self._message, self._bytes = DeviceMessage(), 0
        self._calls: Dict[object, int] = {}

    def add_storage(self, storage: int, contents: _Contents, exists: bool = False) -> Iterator[DeviceMessage]:
        """Make a storage if it does not exist, and fill it."""
        codes = [] if exists else [self._call_number(ALLOC, contents.alloc)]
        for key in contents.uploads:
            codes += [self._call_number(UPLOAD, key), 0]
        payloads = [
            self._payload(data) if self._payload is not None and isinstance(data, NamedBlobs) else data
            for data in contents.uploads.values()
        ]
        live = [(0, storage)] if exists else []
        size = sum(
            data.nbytes if isinstance(data, NamedBlobs) else _bytes_in_memory(data)
            for data in contents.uploads.values()
        )
        yield from self._add_step(codes, SegmentStep(0, storage, live, [], b"", payloads), size)  # type: ignore[arg-type]

    def add_segment(self, done: _Done) -> Iterator[DeviceMessage]:
        """Run a segment again."""
        made, use = done.invocation, done.use
        codes = []
        for call, references in use.definition.calls_with_storages():
            codes += [self._call_number(call.name, call.key, call.claimed), *references]
        payloads: List[Buffer] = [tensor_bytes(payload) for payload in made.payloads]
        step = SegmentStep(0, made.base, list(made.live), sorted(made.dead), made.numbers, payloads)
        yield from self._add_step(codes, step, _payload_bytes(done))

    def flush(self) -> Iterator[DeviceMessage]:
        """Gives out the message that has not been sent."""
        if self._message.steps:
            message, self._message, self._bytes = self._message, DeviceMessage(), 0
            self._calls.clear()
            message.reset_tables = True
            message.speculative_from = len(message.steps)
            yield message

    def _call_number(self, name: str, key: bytes, claimed: Optional[List[object]] = None) -> int:
        number = self._calls.setdefault((name, key), len(self._calls))
        if number == len(self._message.entries):
            self._message.entries.append((name, key, claimed, schema_checksum(name)))
        return number

    def _add_step(self, codes: List[int], step: SegmentStep, size: int) -> Iterator[DeviceMessage]:
        step.segment = len(self._message.segments)
        self._message.segments.append((step.segment, pack_codes(codes)))
        self._message.steps.append(step)
        self._bytes += size
        if self._bytes >= MESSAGE_BYTES:
            yield from self.flush()


def _payload_bytes(done: _Done) -> int:
    return sum(payload.nbytes for payload in done.invocation.payloads)


def _bytes_in_memory(data: object) -> int:
    return len(data) if isinstance(data, bytes) else 0
