"""The pending segment in Python, with the interface that the native module (``native/device.cpp``) has."""

from __future__ import annotations

import collections
import contextlib
import struct
import threading
from array import array
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from edge_offload.capture.entries import ALLOC, DOWNLOAD, RESTORE, SEED, STATE, UPLOAD
from edge_offload.capture.fallback.operators import plain_item
from edge_offload.capture.handed import ASYNC, BARRIER, CALL, READ
from edge_offload.capture.keys import DTYPE_NUMBERS

FLUSH_BYTES = 8 << 20
FLUSH_WORDS = 1 << 15
MAX_ENTRIES = 1 << 18
MAX_SEGMENTS = 1 << 16


class Slot:
    """A storage on the device: its number, and its canonical number in the segment ``epoch`` (0: none)."""

    __slots__ = ("canonical", "device", "epoch", "fresh", "id", "nbytes")

    def __init__(
        self, number: int, nbytes: int, device: PythonDevice, epoch: int = 0, canonical: int = 0, fresh: bool = False
    ) -> None:
        self.id = number
        self.nbytes = nbytes
        self.device = device
        self.epoch = epoch
        self.canonical = canonical
        self.fresh = fresh
        device.held += nbytes
        if device.held > device.peak:
            device.peak = device.held

    def __del__(self) -> None:
        device = self.device
        device.dead.append((self.id, self.epoch, self.canonical, self.fresh))
        device.held -= self.nbytes


class Entry:
    """A distinct call; ``results`` once they are known, ``claimed`` if they were worked out here."""

    __slots__ = ("claimed", "index", "key", "name", "outs", "results")

    def __init__(self, index: int, name: str, key: bytes) -> None:
        self.index = index
        self.name = name
        self.key = key
        self.claimed = False
        self.results: Optional[List[Any]] = None
        self.outs: Any = None


class PythonDevice:
    """Records calls on device storages, and hands segments to the recorder when the host reads.

    One lock orders the calls of all threads; the recorder's handler runs under it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.dead: Deque[Tuple[int, int, int, bool]] = collections.deque()
        self.held = self.peak = 0  # bytes of storages that the program holds, and held at most
        self.epoch = 1
        self.pending = array("I")
        self.eager = False
        self.trusted: Set[str] = set()
        self.refused: Dict[str, str] = {}
        self.handler: Any = None
        self.on_forget: Callable[[], None] = lambda: None
        self.next_id = 1
        self._live: List[int] = []
        self.values = 0
        self.base = 1
        self.numbers: List[bytes] = []
        self._payloads: List[torch.Tensor] = []
        self._payload_bytes = 0
        self.segment_calls = 0
        self._entries: Dict[Tuple[str, bytes], Entry] = {}
        self._by_index: List[Entry] = []
        self._segments: Dict[bytes, int] = {}
        self._known: List[bytes] = []
        self._expected, self._expected_payloads = -1, 0
        self._generation = 0
        self.busy = False
        self.calls = self.hits = self.flushes = 0

    # -- what the recorder uses

    def entry(self, index: int) -> Tuple[str, bytes, Optional[List[Any]]]:
        """Name, key, and the results that were worked out here (None if the server says what they are)."""
        found = self._by_index[index]
        return found.name, found.key, found.results if found.claimed else None

    def words(self, segment: int) -> bytes:
        """The canonical form of a segment."""
        return self._known[segment]

    def foretell(self, calls: Sequence[Tuple[int, bytes, List[Any]]]) -> List[int]:
        """Calls like others with other sizes (number of the other, key, results): what the server said of them before
        the program has made them. Returns their numbers."""
        numbers: List[int] = []
        for like, key, results in calls:
            entry = self.intern(self._by_index[like].name, key)
            if entry.results is None:
                entry.results = results
            numbers.append(entry.index)
        return numbers

    def expect(self, segment: int, payloads: int = 0) -> None:
        """Announce this segment as soon as so many of its uploads are there; -1: none."""
        self._expected, self._expected_payloads = segment, payloads

    def per_call(self, on: bool) -> None:
        """Whether every call is a segment of its own."""
        self.eager = on

    def refuse(self, names: Mapping[str, str]) -> None:
        """Operators that the server has not, or has otherwise, each with the reason."""
        self.refused = dict(names)

    def counters(self) -> Dict[str, int]:
        """Calls noted, those whose results were known, segments ended."""
        return {
            "calls": self.calls, "hits": self.hits, "flushes": self.flushes,
            "entries": len(self._by_index), "segments": len(self._known), "allocated": self.held,
            "peak": self.peak,
        }  # fmt: skip

    def reset_peak(self) -> None:
        """Count the peak of memory from here."""
        self.peak = self.held

    def synchronize(self) -> None:
        """Have everything executed that is pending."""
        with self.lock:
            self.flush(BARRIER)

    # -- storages

    def new_slot(self, nbytes: int, in_segment: bool = True) -> Slot:
        """The next storage, made by the call that was just noted."""
        number = self.next_id
        self.next_id = number + 1
        if not in_segment:
            return Slot(number, nbytes, self)
        canonical = self.values
        self.values = canonical + 1
        return Slot(number, nbytes, self, self.epoch, canonical, True)

    def canonical(self, slot: Slot) -> int:
        """The number of ``slot`` in the pending segment."""
        if slot.epoch != self.epoch:
            slot.epoch = self.epoch
            slot.canonical = self.values
            slot.fresh = False
            self._live += (self.values, slot.id)
            self.values += 1
        return slot.canonical

    # -- calls

    def known(self, name: str, key: bytes) -> Optional[Entry]:
        """The entry of a call that was made before."""
        return self._entries.get((name, key))

    def intern(self, name: str, key: bytes) -> Entry:
        """The entry of a call, made on first use."""
        found = self._entries.get((name, key))
        if found is None:
            found = self._entries[name, key] = Entry(len(self._by_index), name, key)
            self._by_index.append(found)
        return found

    def forget_if_many(self) -> None:
        """Learn everything anew when there is too much of it, between two segments."""
        if (len(self._by_index) < MAX_ENTRIES and len(self._known) < MAX_SEGMENTS) or self.pending:
            return
        self._entries, self._by_index, self._segments, self._known = {}, [], {}, []
        self._expected = -1
        self._generation += 1
        self.on_forget()

    def append(self, index: int, slots: Iterable[Slot]) -> None:
        """Write a call's definition and operands behind the pending segment."""
        pending = self.pending
        if not pending:
            self.base = self.next_id
        pending.append(index)
        epoch = self.epoch
        for slot in slots:
            pending.append(slot.canonical if slot.epoch == epoch else self.canonical(slot))
        self.segment_calls += 1

    def note(
        self,
        entry: Entry,
        slots: Iterable[Slot],
        numbers: Sequence[bytes] = (),
        payloads: Sequence[torch.Tensor] = (),
    ) -> None:
        """Add a call to the pending segment."""
        plain = [payload.detach().resolve_conj().resolve_neg().contiguous() for payload in payloads]
        plain = [new.clone() if new.data_ptr() == old.data_ptr() else new for new, old in zip(plain, payloads)]
        self.append(entry.index, slots)
        self.numbers += numbers
        if plain:
            self._payload_bytes += sum(payload.numel() * payload.element_size() for payload in plain)
            self._payloads += plain
            self._announce_if_complete()

    def after_call(self) -> None:
        """End the segment if every call is one, or if it has become large."""
        if self.eager:
            self.flush(CALL)
        elif self._payload_bytes > FLUSH_BYTES or len(self.pending) > FLUSH_WORDS:
            self.flush(ASYNC)

    def flush(self, reason: int) -> Any:
        """End the pending segment; what the recorder returns for it."""
        self.check()
        words, live, numbers, payloads = self.pending.tobytes(), self._live, b"".join(self.numbers), self._payloads
        base, calls, epoch = self.base if words else self.next_id, self.segment_calls, self.epoch
        self.pending, self._live, self.numbers, self._payloads = array("I"), [], [], []
        self._payload_bytes = self.segment_calls = self.values = 0
        self.epoch += 1
        self.flushes += 1
        number = self._segments.get(words)
        fresh = number is None
        if number is None:
            number = self._segments[words] = len(self._known)
            self._known.append(words)
        dead: List[int] = []
        freed: List[int] = []
        for _ in range(len(self.dead)):
            storage, when, canonical, new = self.dead.popleft()
            if new and when == epoch:
                dead.append(canonical)
            else:
                freed.append(storage)
        with self._handling():
            return self.handler.flush(
                reason, self._generation, number, fresh, base, live, dead, freed, numbers, payloads, calls
            )

    def _announce_if_complete(self) -> None:
        if self._expected < 0:
            return
        if len(self._payloads) != self._expected_payloads:
            return
        if not self._known[self._expected].startswith(self.pending.tobytes()):
            return
        expected, self._expected = self._expected, -1
        with self._handling():
            self.handler.announce(expected, self.base, list(self._live), list(self._payloads))

    @contextlib.contextmanager
    def _handling(self) -> Iterator[None]:
        """The handler is running: what it does with host tensors is no part of what the program overrides."""
        self.busy = True
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                yield
        finally:
            self.busy = False

    def check(self) -> None:
        """Raise if the handler is running."""
        if self.busy:
            raise RuntimeError("edge_offload: the device was used from inside its own handler")

    # -- calls that are not operators

    def _special(self, name: str, items: bytes, **parts: Any) -> None:
        self.check()
        self.forget_if_many()
        entry = self.intern(name, items)
        self.note(entry, parts.get("slots", ()), parts.get("numbers", ()), parts.get("payloads", ()))

    def allocate(self, nbytes: int) -> Slot:
        """A new storage of undefined contents."""
        self._special(ALLOC, plain_item(nbytes) or b"")
        return self.new_slot(nbytes)

    def upload(self, slot: Slot, item: bytes, source: torch.Tensor) -> None:
        """Copy a host tensor into the device tensor whose key item is ``item``."""
        self._special(UPLOAD, item + host_item(source), slots=(slot,), payloads=(source,))
        self.after_call()

    def download(self, slot: Slot, item: bytes) -> torch.Tensor:
        """The contents of the device tensor whose key item is ``item``."""
        self._special(DOWNLOAD, item, slots=(slot,))
        read: torch.Tensor = self.flush(READ)
        return read

    def seed(self, generator: int, seed: int) -> None:
        """Set a generator's seed."""
        with self.lock:
            number = struct.pack("<Q8x", seed & 0xFFFFFFFFFFFFFFFF)
            self._special(SEED, plain_item(generator) or b"", numbers=(number,))

    def generator_state(self, generator: int) -> torch.Tensor:
        """A generator's state."""
        with self.lock:
            self._special(STATE, plain_item(generator) or b"")
            read: torch.Tensor = self.flush(READ)
            return read

    def restore(self, generator: int, state: torch.Tensor) -> None:
        """Set a generator's state."""
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        with self.lock:
            self._special(RESTORE, (plain_item(generator) or b"") + host_item(state), payloads=(state,))
            self.after_call()


def host_item(tensor: torch.Tensor) -> bytes:
    """The P item of a host tensor."""
    form = f"<BB{tensor.dim()}q"
    return b"P" + struct.pack(form, DTYPE_NUMBERS[tensor.dtype], tensor.dim(), *tensor.shape)
