"""What puts a session that knows nothing where the one before was: uploads, and the segments that made the rest.

Of each storage that the program holds on the device, either all that was ever written to it came from the host, or
something was computed there. Uploads are remembered: small ones as they are, large ones (weights) by the checksums of
their bytes. What was computed is computed again, by the segments that made it and those that made what they read, in
their order: those are kept as long as somebody holds what came of them, and bounded. A random generator counts as a
storage that every session has. Whatever is not certain to be the same counts as lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Set

from edge_offload.ir.trace.calls import ALLOC, UPLOAD, Buffer
from edge_offload.ir.trace.checksums import checksum
from edge_offload.ir.trace.keys import packed_words
from edge_offload.ir.trace.segments import Step
from edge_offload.protocol.blobs import NamedBlobs, digest, split_blobs
from edge_offload.protocol.messages import SMALL, DeviceMessage, tensor_bytes
from edge_offload.replay.recovery.effects import Effects, Use
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
LOOK_SEGMENTS = 64
LOOK_BYTES = 32 << 20
LOOK_GONE = 1 << 14
#: A number above all others.
NEVER = 1 << 62
#: Has a large payload kept, under its name, and says whether it is.
Keep = Callable[[NamedBlobs, memoryview], bool]


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

    def note(self, number: int) -> None:
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
    use: Use
    lost: bool
    generators: List[int]
    dead: FrozenSet[int]
    makes: List[int]

    @property
    def reads(self) -> List[int]:
        """What there must be before it runs: storages, and generators."""
        return [*(storage for _, storage in self.invocation.live), *self.generators]

    def uploads_late(self, storage: int) -> bool:
        """Whether it fills ``storage`` after it has used it."""
        return any(canonical in self.use.late for canonical, number in self.invocation.live if number == storage)

    def end(self, following: int) -> None:
        """The first storage after its own is ``following``."""
        base = self.invocation.base
        if following - base > len(self.dead):
            self.makes += [base + new for new in set(range(following - base)) - self.dead]


class RecoveryLog:
    """Follows what the program does on the device, segment by segment.

    Attributes:
        run_again: segments that :meth:`messages` had run.
    """

    def __init__(self) -> None:
        self._contents: Dict[int, _Contents] = {}
        self._uses: Dict[int, Use] = {}
        self._effects: Optional[Effects] = None
        self._small_bytes = 0
        self._done: List[_Done] = []
        self._open: Optional[_Done] = None
        self._number = self._payload_bytes = 0
        self._look_at, self._look_bytes = LOOK_SEGMENTS, LOOK_BYTES
        self._gone: Set[int] = set()
        self._lost: Set[int] = set()
        self.run_again = 0

    def __contains__(self, storage: int) -> bool:
        return storage in self._contents and self._is_plain(storage)

    @property
    def whole(self) -> bool:
        """Whether everything that the program holds could be put elsewhere."""
        return not self._lost and not (self._open is not None and self._open.lost)

    def renumber(self) -> None:
        """The device has forgotten its segments; storages stay."""
        self._uses.clear()

    def use(self, invocation: SegmentInvocation, signatures: SignatureTable) -> Use:
        """What ``invocation`` does."""
        found = self._uses.get(invocation.segment)
        if found is None:
            if self._effects is None or self._effects.signatures is not signatures:
                self._effects = Effects(signatures)
            if len(self._uses) >= MAX_USES:
                self._uses.clear()
            found = Use.of(signatures.definition(invocation.segment), self._effects)
            self._uses[invocation.segment] = found
        return found

    # -- what the program does

    def note(
        self,
        invocation: SegmentInvocation,
        signatures: SignatureTable,
        keep: Optional[Keep] = None,
        failed: bool = False,
    ) -> None:
        """The program has done ``invocation``.

        Args:
            invocation: what was done.
            signatures: what knows its segment.
            keep: has large payloads kept, and says whether they are; None: they are not.
            failed: something in it raised, so that it is not known how far it came.
        """
        self._end(invocation.base)
        self._number += 1
        use = self.use(invocation, signatures)
        generators = [number for number, set_first in use.generators.items() if not set_first]
        done = _Done(
            self._number, invocation, use, failed, generators, signatures.freed_ordinals(invocation), [*use.generators]
        )
        if self._lost and not self._lost.isdisjoint(done.reads):
            done.lost = True
        self._open = done
        if not (use.computed or use.uploads or use.made):
            return
        live = dict(invocation.live)
        written = {*use.computed, *(canonical for canonical, _, _ in use.uploads)} if failed else use.computed
        for canonical in written:
            if canonical in live:
                done.makes.append(live[canonical])
                self._computed(live[canonical])
        if not failed:
            self._note_uploads(done, live, keep)

    def _note_uploads(self, done: _Done, live: Dict[int, int], keep: Optional[Keep]) -> None:
        invocation, storages = done.invocation, dict(live)
        for canonical, key in done.use.made.items():
            if canonical not in invocation.dead and canonical not in done.use.computed:
                storage = invocation.base + canonical - sum(number < canonical for number in live)
                storages[canonical] = storage
                self._contents[storage] = _Contents(key, written=done.number)
        for canonical, key, number in done.use.uploads:
            storage = storages.get(canonical, NEVER)
            if canonical in live:
                done.makes.append(storage)
            contents = self._contents.get(storage)
            if contents is None or contents.computed != NEVER:
                continue
            if self._keep(contents, key, tensor_bytes(invocation.payloads[number]), keep):
                contents.note(done.number)
            elif canonical in live:
                contents.computed = done.number
            else:  # the segment makes it, and fills it
                self._forget(storage)

    def free(self, storages: Iterable[int]) -> None:
        """The program has dropped them."""
        for storage in storages:
            if storage in self._contents:
                self._contents[storage].freed = True
            self._gone.add(storage)
            self._lost.discard(storage)
        if len(self._gone) > LOOK_GONE:
            self._look()

    def _computed(self, storage: int) -> None:
        """From now on segments tell what it holds."""
        contents = self._contents.get(storage)
        if contents is not None:
            contents.computed = min(contents.computed, self._number)

    def _keep(self, contents: _Contents, key: bytes, payload: Buffer, keep: Optional[Keep]) -> bool:
        view = memoryview(payload)
        data = view.cast("B") if view.nbytes else memoryview(b"")
        if data.nbytes > SMALL:
            if keep is None:
                return False
            named = NamedBlobs(data.nbytes, tuple(map(digest, split_blobs(data))))
            if not keep(named, data):
                return False
            self._small_bytes -= _small(contents.uploads.pop(key, b""))
            contents.uploads[key] = named
            return True
        grown = self._small_bytes - _small(contents.uploads.get(key, b"")) + data.nbytes
        if grown > MAX_SMALL_BYTES or (len(contents.uploads) >= MAX_UPLOADS and key not in contents.uploads):
            return False
        contents.uploads.pop(key, None)
        contents.uploads[key] = bytes(data)
        self._small_bytes = grown
        return True

    def _forget(self, storage: int) -> None:
        contents = self._contents.pop(storage)
        self._small_bytes -= sum(_small(data) for data in contents.uploads.values())

    def _is_plain(self, storage: int) -> bool:
        """Whether uploads tell all that it holds."""
        contents = self._contents.get(storage)
        return contents is not None and contents.computed == NEVER

    # -- which segments are kept

    def _end(self, following: int) -> None:
        """The last segment has made no storage from ``following`` on."""
        done, self._open = self._open, None
        if done is None:
            return
        done.end(following)
        if done.lost:
            self._lose(done)
            return
        if self._lost:
            self._lost.difference_update(number for number in done.makes if number < 0)
        if any(storage not in self._gone and not self._is_plain(storage) for storage in done.makes):
            self._done.append(done)
            self._payload_bytes += _payload_bytes(done)
            if len(self._done) >= self._look_at or self._payload_bytes >= self._look_bytes:
                self._look()

    def _lose(self, done: _Done) -> None:
        """Nobody can run ``done`` again: what it made, uploads apart, is lost."""
        for number in done.makes:
            if self._is_plain(number):
                continue
            if number in self._contents:
                self._forget(number)
            if number not in self._gone:
                self._lost.add(number)

    def _look(self) -> None:
        """Drop segments of which nobody holds anything; too many, and what they made is lost."""
        needed = {number for done in self._done for number in done.makes if number < 0}
        kept: List[_Done] = []
        for done in reversed(self._done):
            if any(
                (number in needed or (number >= 0 and number not in self._gone)) and not self._is_plain(number)
                for number in done.makes
            ):
                kept.append(done)
                needed.difference_update(number for number in done.makes if number < 0)
                needed.update(done.reads)
        kept.reverse()
        size = sum(map(_payload_bytes, kept))
        self._done = []
        broken: Set[int] = set()
        for number, done in enumerate(kept):
            too_many = len(kept) - number > MAX_SEGMENTS or size > MAX_PAYLOAD_BYTES
            if too_many or not broken.isdisjoint(done.reads):
                size -= _payload_bytes(done)
                broken.update(made for made in done.makes if not self._is_plain(made))
                self._lose(done)
            else:
                broken.difference_update(made for made in done.makes if made < 0)
                self._done.append(done)
        self._payload_bytes = sum(map(_payload_bytes, self._done))
        self._look_at = max(LOOK_SEGMENTS, 2 * len(self._done))
        self._look_bytes = max(LOOK_BYTES, 2 * self._payload_bytes)
        under_way = [self._open] if self._open is not None else []
        used = {number for done in (*self._done, *under_way) for number in (*done.reads, *done.makes)}
        first = under_way[0].invocation.base if under_way else NEVER
        self._gone = {storage for storage in self._gone if storage in used or storage >= first}
        for storage in [number for number, held in self._contents.items() if held.freed and number not in used]:
            self._forget(storage)

    # -- a session that knows nothing

    def messages(
        self, before: int, payload: Optional[Callable[[NamedBlobs], Buffer]] = None, restored: Optional[Set[int]] = None
    ) -> Iterator[DeviceMessage]:
        """What puts the storages with numbers less than ``before`` into a session that knows nothing.

        The calls and segments in them are to be forgotten afterwards.

        Args:
            before: storages from here on belong to what is still to be done.
            payload: the bytes of a large upload; None: they are told by name.
            restored: filled with the storages and generators that will be there.
        """
        self._end(before)
        self._look()
        there = restored if restored is not None else set()
        batch = _Batch(payload)
        made = {number for done in self._done for number in done.makes if number >= done.invocation.base}
        for storage, contents in self._contents.items():
            if storage < before and storage not in made:
                there.add(storage)
                yield from batch.fill(storage, contents)
        there |= {number for done in self._done for number in done.generators}
        state: Dict[int, int] = {}
        again: List[_Done] = []
        for done in self._done:
            if all(number in there and self._as_it_was(number, done, state) for number in done.reads):
                again.append(done)
                yield from batch.run(done)
                there.update(done.makes)
                state.update(dict.fromkeys(done.makes, done.number))
                continue
            for number in done.makes:
                if not self._is_plain(number):
                    there.discard(number)
                    self._lost |= {number} - self._gone
                elif number not in there:
                    there.add(number)
                    yield from batch.fill(number, self._contents[number])
        for storage, number in state.items():
            if self._is_plain(storage) and self._contents[storage].written != number:
                yield from batch.fill(storage, self._contents[storage], exists=True)
        yield from batch.rest()
        there -= self._lost
        self._done = again
        self.run_again = len(again)

    def dropped(self, restored: Set[int]) -> List[int]:
        """Storages among ``restored`` that the program does not hold any more."""
        freed = {storage for storage, contents in self._contents.items() if contents.freed}
        return sorted(number for number in restored if number >= 0 and (number in self._gone or number in freed))

    @property
    def lost_storages(self) -> int:
        """How many of the program's storages cannot be had again."""
        return sum(number >= 0 for number in self._lost)

    @property
    def lost_generators(self) -> Set[int]:
        """Random generators, as −1, −2, …, whose state cannot be had again."""
        return {number for number in self._lost if number < 0}

    def _as_it_was(self, storage: int, done: _Done, state: Dict[int, int]) -> bool:
        """Whether a storage holds what ``done`` found there, when the segments before it have run again."""
        contents = self._contents.get(storage)
        if contents is None:
            return True
        now = state.get(storage, contents.written)
        if contents.written < done.number:
            return now == contents.written or now >= contents.computed
        if contents.written > done.number:
            return False
        return now == contents.previous or (now == contents.written and not done.uploads_late(storage))


class _Batch:
    """Messages under way: as many steps in each as may be."""

    def __init__(self, payload: Optional[Callable[[NamedBlobs], Buffer]]) -> None:
        self._payload = payload
        self._message, self._bytes = DeviceMessage(), 0
        self._calls: Dict[object, int] = {}

    def fill(self, storage: int, contents: _Contents, exists: bool = False) -> Iterator[DeviceMessage]:
        """Make a storage if it does not exist, and fill it."""
        words = [] if exists else [self._call(ALLOC, contents.alloc)]
        for key in contents.uploads:
            words += [self._call(UPLOAD, key), 0]
        payloads = [
            self._payload(data) if self._payload is not None and isinstance(data, NamedBlobs) else data
            for data in contents.uploads.values()
        ]
        live = [(0, storage)] if exists else []
        size = sum(data.nbytes if isinstance(data, NamedBlobs) else _small(data) for data in contents.uploads.values())
        yield from self._add(words, Step(0, storage, live, [], b"", payloads), size)  # type: ignore[arg-type]

    def run(self, done: _Done) -> Iterator[DeviceMessage]:
        """Run a segment again."""
        made, use = done.invocation, done.use
        words = []
        for call, references in use.definition.steps():
            words += [self._call(call.name, call.key, call.claimed), *references]
        payloads: List[Buffer] = [tensor_bytes(payload) for payload in made.payloads]
        step = Step(0, made.base, list(made.live), sorted(made.dead), made.numbers, payloads)
        yield from self._add(words, step, _payload_bytes(done))

    def rest(self) -> Iterator[DeviceMessage]:
        """What has not been sent."""
        if self._message.steps:
            message, self._message, self._bytes = self._message, DeviceMessage(), 0
            self._calls.clear()
            message.reset_tables = True
            message.speculative_from = len(message.steps)
            yield message

    def _call(self, name: str, key: bytes, claimed: Optional[List[object]] = None) -> int:
        found = self._calls.setdefault((name, key), len(self._calls))
        if found == len(self._message.entries):
            self._message.entries.append((name, key, claimed, checksum(name)))
        return found

    def _add(self, words: List[int], step: Step, size: int) -> Iterator[DeviceMessage]:
        step.segment = len(self._message.segments)
        self._message.segments.append((step.segment, packed_words(words)))
        self._message.steps.append(step)
        self._bytes += size
        if self._bytes >= MESSAGE_BYTES:
            yield from self.rest()


def _payload_bytes(done: _Done) -> int:
    return sum(payload.nbytes for payload in done.invocation.payloads)


def _small(data: object) -> int:
    return len(data) if isinstance(data, bytes) else 0
