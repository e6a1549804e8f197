"""Several addresses of one service: which of them a client dials next, and when all of them have said no."""

from __future__ import annotations

from typing import Dict, List, Optional

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.link.security.keys import split_address

#: Notification: the server is being taken away; what has been asked is still answered.
DRAIN = "drain"
#: Addresses that one client takes.
MOST = 32


def addresses(text: str) -> List[str]:
    """``tcp://host:port`` of each of ``a:5700,b:5700``.

    Raises:
        BadInput: one of them is no address, one stands there twice, or they are too many.
    """
    found = []
    for part in text.split(","):
        host, port = split_address(part.strip())
        found.append(f"tcp://{f'[{host}]' if ':' in host else host}:{port}")
    if len(set(found)) < len(found):
        raise BadInput(f"{text!r} names an address twice", remedy="name each server once")
    if len(found) > MOST:
        raise BadInput(f"{len(found)} addresses of servers", remedy=f"name at most {MOST}")
    return found


class Fronts:
    """Goes through the addresses in turn. Used by the link's thread.

    Args:
        text: addresses, separated by commas.
        begin: which is dialled first, modulo their number: robots that differ in it share the fronts.
    """

    def __init__(self, text: str, begin: int) -> None:
        self.all = addresses(text)
        self._place = begin % len(self.all)
        self._failed = 0
        self._refusals: Dict[str, EdgeOffloadError] = {}

    @property
    def current(self) -> str:
        """The one that is dialled, or connected."""
        return self.all[self._place]

    @property
    def several(self) -> bool:
        """Whether there is another one to go on with."""
        return len(self.all) > 1

    def connected(self) -> None:
        """The current one answers: it is kept."""
        self._failed = 0
        self._refusals.clear()

    def lost(self, refused: Optional[EdgeOffloadError], again: bool) -> bool:
        """The current one is gone; returns whether another attempt may follow at once.

        Args:
            refused: what it said.
            again: it is dialled once more before the next one: a connection that broke is often back at once, and there
                is what the robot had open.
        """
        if refused is not None:
            self._refusals[self.current] = refused
        if again and refused is None:
            return True
        self._failed += 1
        self._place = (self._place + 1) % len(self.all)
        return self._failed < len(self.all)

    def all_refuse(self) -> bool:
        """Whether every one has refused since one of them answered."""
        return len(self._refusals) == len(self.all)
