"""After the session was lost: what the program may go on using, and what it has lost."""

from __future__ import annotations

from typing import Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from edge_offload.errors import LinkLost
from edge_offload.protocol.messages import DeviceMessage
from edge_offload.replay.flushed import ASYNC
from edge_offload.replay.recovery.copies import UploadCopies
from edge_offload.replay.recovery.log import RecoveryLog, StoreUpload
from edge_offload.replay.signatures import SegmentInvocation, SignatureTable

REMEDY = "put it there again, or start the program again: its weights are on the server's disk and are not sent again"


class SessionRecovery:
    """Follows the program step by step, so that a step can be run again in a session that knows nothing.

    A step counts once it is over: until then it is what would be run again.

    Args:
        oldest: all storages before this one belong to an earlier session, and are lost.
        copies: keeps large uploads on this machine; None: only the server has them.
        enabled: whether there may be another session; without it nothing is followed.
    """

    def __init__(self, oldest: int = 0, copies: Optional[UploadCopies] = None, enabled: bool = True) -> None:
        self.log = RecoveryLog()
        self.copies = copies
        self._enabled = enabled
        self._unsure: List[SegmentInvocation] = []
        self._freed: List[int] = []
        self._oldest = oldest
        self._restored: Set[int] = set()
        self._generators: Set[int] = set()
        self._cause = "a tensor was on the device when the connection broke, and is gone"

    @property
    def is_complete(self) -> bool:
        """True if everything that the program holds could be restored elsewhere."""
        return self.log.is_complete and not self._unsure

    def check_storages(self, live: Iterable[Tuple[int, int]]) -> None:
        """Checks that the storages of a segment exist.

        Raises:
            LinkLost: one is not.
        """
        if self._oldest and any(number < self._oldest and number not in self._restored for _, number in live):
            raise LinkLost(self._cause, remedy=REMEDY)

    def check_generators(self, invocation: SegmentInvocation, signatures: SignatureTable) -> None:
        """Checks that the random generators of a segment are in the state in which they should be.

        Raises:
            LinkLost: one is not.
        """
        if not self._generators:
            return
        for generator, set_first in self.log.use_of(invocation, signatures).generators.items():
            if set_first:
                self._generators.discard(generator)
            elif generator in self._generators:
                raise LinkLost(f"{self._cause}: the state of a random generator", remedy="set its seed again")

    def note_freed(self, storages: Sequence[int]) -> None:
        """Notes storages that were freed in the step that is under way."""
        if self._enabled:
            self._freed += storages

    def note_invocation(
        self, invocation: Optional[SegmentInvocation], signatures: SignatureTable, first: bool, over: bool, failed: bool
    ) -> None:
        """Notes that the program has done ``invocation``.

        Args:
            invocation: what was done; None: it was no segment.
            signatures: what knows the segment's definition.
            first: whether it had read nothing yet: its weights are kept by the server.
            over: whether the step ends with it.
            failed: it raised something.
        """
        if not self._enabled:
            return
        if invocation is not None:
            self._unsure.append(invocation)
        if not (over or failed):
            return
        for each in self._unsure:
            store = self._store_upload if first or each.reason == ASYNC else None
            self.log.note_segment(each, signatures, store, failed)
        if self._freed:
            self.log.free_storages(self._freed)
        self._unsure, self._freed = [], []

    def to_rerun(self, invocation: Optional[SegmentInvocation]) -> Tuple[List[SegmentInvocation], List[int]]:
        """The invocations that are to be run again, with ``invocation``, and the storages that were freed in them."""
        return [*self._unsure, *([invocation] if invocation is not None else [])], list(self._freed)

    def restore_messages(self, before: int, cause: str) -> Iterator[DeviceMessage]:
        """Messages that restore the storages before ``before``, as far as possible; the others are lost.

        Args:
            before: storages from here on belong to steps that are not over.
            cause: why there is another session.
        """
        restored: Set[int] = set()
        payload = self.copies.read_upload if self.copies is not None else None
        yield from self.log.restore_messages(before, payload, restored)
        self._oldest, self._restored = before, restored
        self._generators = self.log.lost_generators
        self._cause = f"{cause}, as far as it was computed there"

    def describe_restored(self) -> str:
        """Describes what was restored."""
        ran, lost = self.log.rerun_count, self.log.lost_storages
        rerun = f", {ran} segments were run again" if ran else ""
        losses = f"; {lost} tensors are gone, and using one is an error" if lost else ""
        return f"{len(self._restored) - len(self.dropped_storages())} tensors were put on its device{rerun}{losses}"

    def dropped_storages(self) -> List[int]:
        """Storages that were put back on the way, and that the program does not hold."""
        return self.log.dropped_storages(self._restored)

    @property
    def _store_upload(self) -> StoreUpload:
        return self.copies.store_upload if self.copies is not None else lambda _named, _data: True
