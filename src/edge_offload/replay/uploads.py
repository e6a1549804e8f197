"""What could be put on the device again if the server forgot it: uploads that nothing has overwritten.

Of each storage that the program holds on the device, either all that was ever written to it came from the host, or
something was computed there. The former is remembered: small uploads as they are, large ones (weights) by the checksums
of their bytes, which the server keeps on its disk. The latter is gone with its session.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.ir.operators import Symbol
from edge_offload.ir.trace.calls import ALLOC, NEW, RESTORE, SEED, STATE, UPLOAD, BoundOperator
from edge_offload.ir.trace.keys import packed_words
from edge_offload.ir.trace.segments import Step
from edge_offload.protocol.blobs import Named, cut, digest
from edge_offload.protocol.messages import SMALL, Message, tensor_bytes
from edge_offload.replay.signatures import Call, Definition, SegmentInvocation, SignatureTable

#: Small uploads that are remembered, all together; what comes after them is not.
MAX_SMALL_BYTES = 64 << 20
#: Weights put back with one message: the server holds them until it runs.
MESSAGE_BYTES = 32 << 20
#: Uploads to one storage that are remembered; a program that goes on writing to it from the host has state there.
MAX_UPLOADS = 8
#: Segments of which it is known what they do.
MAX_SEGMENTS = 1 << 14


@dataclass(frozen=True)
class Effect:
    """What a call does: storages that it writes, random generators that it uses, payloads that it takes.

    Storages are told by position. Of a call that is not known here it is assumed that it writes to all.
    """

    written: Tuple[int, ...] = ()
    generators: Tuple[int, ...] = ()
    hosts: int = 0
    unknown: bool = False


class Effects:
    """Works out what calls do; those that differ in integers alone do the same."""

    def __init__(self, signatures: SignatureTable) -> None:
        self.signatures = signatures
        self._known: Dict[int, Effect] = {}

    def of(self, call: Call) -> Effect:
        """That of ``call``, one of ``signatures``."""
        found = self._known.get(call.skeleton)
        if found is None:
            found = _effect(call)
            if not found.generators:  # their numbers are integers, too
                self._known[call.skeleton] = found
        return found


@dataclass(frozen=True)
class Use:
    """What a segment does to storages (by their canonical numbers) and to random generators.

    Attributes:
        made: those that it allocates, each with the key of the allocation.
        uploads: storage, key, and number of the payload.
        computed: those to which anything else writes.
        generators: each that it uses: whether it sets its state before it uses it.
    """

    made: Dict[int, bytes] = field(default_factory=dict)
    uploads: List[Tuple[int, bytes, int]] = field(default_factory=list)
    computed: Set[int] = field(default_factory=set)
    generators: Dict[int, bool] = field(default_factory=dict)

    @staticmethod
    def of(definition: Definition, effects: Effects) -> Use:
        """That of a segment."""
        use = Use()
        following: Optional[int] = 0  # canonical number of the next new storage, as long as it is certain
        payload = 0
        for call, references in definition.steps():
            if following is not None:
                following = max(following, max(references, default=-1) + 1)
            effect = effects.of(call)
            if effect.unknown:
                use.computed.update(references)
                following = None
            for generator in effect.generators:
                use.generators.setdefault(generator, call.name in (SEED, RESTORE))
            if call.name == UPLOAD:
                use.uploads.append((references[0], call.key, payload))
            else:
                use.computed.update(references[number] for number in effect.written)
            payload += effect.hosts
            if call.name == ALLOC and following is not None:
                use.made[following] = call.key
                following += 1
            elif not call.is_special and following is not None:
                following = following + _fresh(call) if call.claimed is not None else None
        return use

    @functools.cached_property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.made or self.uploads or self.computed or self.generators)


@dataclass
class _StorageContents:
    """One storage: the key of its allocation; of each upload the key and the bytes, or what they are called."""

    alloc: bytes
    uploads: Dict[bytes, object] = field(default_factory=dict)


class ReplayableUploads:
    """Follows what the program puts on the device, segment by segment.

    Attributes:
        used: random generators whose state is no longer that of a new session.
    """

    def __init__(self) -> None:
        self.used: Set[int] = set()
        self._contents: Dict[int, _StorageContents] = {}
        self._uses: Dict[int, Use] = {}
        self._effects: Optional[Effects] = None
        self._small_bytes = 0

    def __contains__(self, storage: int) -> bool:
        return storage in self._contents

    def __len__(self) -> int:
        return len(self._contents)

    def renumber(self) -> None:
        """The device has forgotten its segments; storages stay."""
        self._uses.clear()

    def storages(self) -> Set[int]:
        """The storages that are held."""
        return set(self._contents)

    def use(self, invocation: SegmentInvocation, signatures: SignatureTable) -> Use:
        """What ``invocation`` does."""
        found = self._uses.get(invocation.segment)
        if found is None:
            if self._effects is None or self._effects.signatures is not signatures:
                self._effects = Effects(signatures)
            if len(self._uses) >= MAX_SEGMENTS:
                self._uses.clear()
            found = Use.of(signatures.definition(invocation.segment), self._effects)
            self._uses[invocation.segment] = found
        return found

    def note(self, invocation: SegmentInvocation, use: Use, keep: bool, failed: bool = False) -> None:
        """The program has done ``invocation``.

        Args:
            invocation: what was done.
            use: what it does.
            keep: whether its large payloads are on the server's disk.
            failed: something in it raised, so that it is not known how far it came.
        """
        self.used.update(use.generators)
        if use.computed:
            self.free([storage for canonical, storage in invocation.live if canonical in use.computed])
        if not (use.made or use.uploads):
            return
        live = dict(invocation.live)
        if failed:
            self.free([live[canonical] for canonical, _, _ in use.uploads if canonical in live])
            return
        storages = dict(live)
        for canonical, key in use.made.items():
            if canonical in invocation.dead or canonical in use.computed:
                continue
            storages[canonical] = invocation.base + canonical - sum(number < canonical for number in live)
            self._contents[storages[canonical]] = _StorageContents(key)
        for canonical, key, number in use.uploads:
            storage = storages.get(canonical)
            if storage in self._contents and not self._keep(
                self._contents[storage], key, invocation.payloads[number], keep
            ):
                self.free([storage])

    def free(self, storages: Sequence[int]) -> None:
        """They are gone, or hold something else."""
        for storage in storages:
            if storage in self._contents:
                contents = self._contents.pop(storage)
                self._small_bytes -= sum(_small(data) for data in contents.uploads.values())

    def messages(self, before: int) -> Iterator[Message]:
        """What puts the storages with numbers less than ``before`` into a session that knows nothing.

        The calls and segments in them are to be forgotten afterwards.
        """
        message, size = Message(), 0
        for storage, contents in self._contents.items():
            if storage >= before:
                continue
            first = len(message.entries)
            message.entries.append((ALLOC, contents.alloc, None, 0))
            words = [first]
            for key in contents.uploads:
                words += [len(message.entries), 0]
                message.entries.append((UPLOAD, key, None, 0))
            number = len(message.segments)
            message.segments.append((number, packed_words(words)))
            payloads = list(contents.uploads.values())
            message.steps.append(Step(number, storage, [], [], b"", payloads))  # type: ignore[arg-type]
            size += sum(data.nbytes if isinstance(data, Named) else _small(data) for data in payloads)
            if size >= MESSAGE_BYTES:
                yield _closed(message)
                message, size = Message(), 0
        if message.steps:
            yield _closed(message)

    def _keep(self, contents: _StorageContents, key: bytes, payload: torch.Tensor, keep: bool) -> bool:
        data = memoryview(tensor_bytes(payload)).cast("B") if payload.numel() else memoryview(b"")
        old = _small(contents.uploads.pop(key, b""))
        self._small_bytes -= old
        if data.nbytes > SMALL:
            if keep:
                contents.uploads[key] = Named(data.nbytes, tuple(map(digest, cut(data))))
            return keep
        self._small_bytes += data.nbytes
        contents.uploads[key] = bytes(data)
        return self._small_bytes <= MAX_SMALL_BYTES and len(contents.uploads) <= MAX_UPLOADS


def _closed(message: Message) -> Message:
    message.forget = True
    message.speculative_from = len(message.steps)
    return message


def _small(data: object) -> int:
    return len(data) if isinstance(data, bytes) else 0


def _effect(call: Call) -> Effect:
    try:
        entry = BoundOperator(call.name, call.key, torch.device("cpu"))
    except EdgeOffloadError:
        return Effect(generators=(0,), unknown=True)
    if entry.refused is not None:
        return Effect(generators=(0,), hosts=len(entry.hosts), unknown=True)
    return Effect(tuple(entry.written), tuple(_generators(entry)), len(entry.hosts))


def _generators(entry: BoundOperator) -> List[int]:
    if entry.name in (SEED, STATE, RESTORE):
        return [int(entry.operator.args[0])]  # type: ignore[arg-type]
    if not entry.random:
        return []
    own = [int(leaf.name) for leaf in entry.operator.args if isinstance(leaf, Symbol) and leaf.kind == "generator"]
    return own or [0]


def _fresh(call: Call) -> int:
    """How many new storages a call makes whose results are known."""
    outs = [out for kind, what in call.claimed or () for out in ([what] if kind == "t" else what)]
    return sum(out[0] == NEW for out in outs)
