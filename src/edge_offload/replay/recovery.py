"""After the server was restarted: what the program may go on using, and what it has lost."""

from __future__ import annotations

from typing import Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from edge_offload.errors import LinkLost
from edge_offload.protocol.messages import Message
from edge_offload.replay.flushed import ASYNC
from edge_offload.replay.signatures import SegmentInvocation, SignatureTable
from edge_offload.replay.uploads import ReplayableUploads, Use

AGAIN = "put it there again, or start the program again: its weights are on the server's disk and are not sent again"


class SessionRecovery:
    """Follows the program step by step, so that a step can be run again in a session that knows nothing.

    A step counts once it is over: until then it is what would be run again.

    Args:
        oldest: all storages before this one belong to an earlier session, and are lost.
    """

    def __init__(self, oldest: int = 0) -> None:
        self.uploads = ReplayableUploads()
        self._unsure: List[Tuple[SegmentInvocation, Use]] = []
        self._freed: List[int] = []
        self._oldest = oldest
        self._restored: Set[int] = set()
        self._generators: Set[int] = set()
        self._cause = "a tensor was on the device when the connection broke, and is gone"

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
        for generator, set_first in self.uploads.use(invocation, signatures).generators.items():
            if set_first:
                self._generators.discard(generator)
            elif generator in self._generators:
                raise LinkLost(f"{self._cause}: the state of a random generator", remedy="set its seed again")

    def freed(self, storages: Sequence[int]) -> None:
        """They were freed, in the step that is under way."""
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
        if invocation is not None:
            self._unsure.append((invocation, self.uploads.use(invocation, signatures)))
        if not (over or failed):
            return
        for each, use in self._unsure:
            if not use.idle:
                self.uploads.note(each, use, first or each.reason == ASYNC, failed)
        if self._freed:
            self.uploads.free(self._freed)
        self._unsure, self._freed = [], []

    def to_rerun(self, invocation: Optional[SegmentInvocation]) -> Tuple[List[SegmentInvocation], List[int]]:
        """The invocations that are to be run again, with ``invocation``, and the storages that were freed in them."""
        return [*(each for each, _ in self._unsure), *([invocation] if invocation is not None else [])], list(
            self._freed
        )

    def messages(self, before: int, cause: str) -> Iterator[Message]:
        """What puts back the storages before ``before`` that can be; the others are lost, because of ``cause``."""
        yield from self.uploads.messages(before)
        self._oldest, self._restored = before, self.uploads.storages()
        self._generators = set(self.uploads.used)
        self._cause = f"{cause}, as far as it was computed there"
