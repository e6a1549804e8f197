"""After the session was lost: what the program may go on using, and what it has lost."""

from __future__ import annotations

from typing import Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from edge_offload.errors import LinkLost
from edge_offload.protocol.messages import DeviceMessage
from edge_offload.replay.flushed import ASYNC
from edge_offload.replay.recovery.copies import UploadCopies
from edge_offload.replay.recovery.log import Keep, RecoveryLog
from edge_offload.replay.signatures import SegmentInvocation, SignatureTable

AGAIN = "put it there again, or start the program again: its weights are on the server's disk and are not sent again"


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
    def whole(self) -> bool:
        """Whether everything that the program holds could be put elsewhere."""
        return self.log.whole and not self._unsure

    def check(self, live: Iterable[Tuple[int, int]]) -> None:
        """Whether the storages that a segment uses are there.

        Raises:
            LinkLost: one is not.
        """
        if self._oldest and any(number < self._oldest and number not in self._restored for _, number in live):
            raise LinkLost(self._cause, remedy=AGAIN)

    def check_generators(self, invocation: SegmentInvocation, signatures: SignatureTable) -> None:
        """Whether the random generators that a segment uses are in the state in which they should be.

        Raises:
            LinkLost: one is not.
        """
        if not self._generators:
            return
        for generator, set_first in self.log.use(invocation, signatures).generators.items():
            if set_first:
                self._generators.discard(generator)
            elif generator in self._generators:
                raise LinkLost(f"{self._cause}: the state of a random generator", remedy="set its seed again")

    def freed(self, storages: Sequence[int]) -> None:
        """They were freed, in the step that is under way."""
        if self._enabled:
            self._freed += storages

    def done(
        self, invocation: Optional[SegmentInvocation], signatures: SignatureTable, first: bool, over: bool, failed: bool
    ) -> None:
        """The program has done ``invocation``.

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
            keep = self._keep if first or each.reason == ASYNC else None
            self.log.note(each, signatures, keep, failed)
        if self._freed:
            self.log.free(self._freed)
        self._unsure, self._freed = [], []

    def to_rerun(self, invocation: Optional[SegmentInvocation]) -> Tuple[List[SegmentInvocation], List[int]]:
        """The invocations that are to be run again, with ``invocation``, and the storages that were freed in them."""
        return [*self._unsure, *([invocation] if invocation is not None else [])], list(self._freed)

    def messages(self, before: int, cause: str) -> Iterator[DeviceMessage]:
        """What puts back the storages before ``before`` that can be; the others are lost, because of ``cause``.

        Args:
            before: storages from here on belong to steps that are not over.
            cause: why there is another session.
        """
        restored: Set[int] = set()
        payload = self.copies.data if self.copies is not None else None
        yield from self.log.messages(before, payload, restored)
        self._oldest, self._restored = before, restored
        self._generators = self.log.lost_generators
        self._cause = f"{cause}, as far as it was computed there"

    def restored(self) -> str:
        """What was put back, in words."""
        ran, lost = self.log.run_again, self.log.lost_storages
        again = f", {ran} segments were run again" if ran else ""
        gone = f"; {lost} tensors are gone, and using one is an error" if lost else ""
        return f"{len(self._restored) - len(self.dropped())} tensors were put on its device{again}{gone}"

    def dropped(self) -> List[int]:
        """Storages that were put back on the way, and that the program does not hold."""
        return self.log.dropped(self._restored)

    @property
    def _keep(self) -> Keep:
        return self.copies.keep if self.copies is not None else lambda _named, _data: True
