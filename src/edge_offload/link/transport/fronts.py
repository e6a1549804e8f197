"""Several addresses of one service: which of them a client dials next, and when all of them have said no."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Optional

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.link.security.keys import join_address, split_address
from edge_offload.link.sockets.lookup import resolve_endpoints

#: Notification: the server is being taken away; what has been asked is still answered.
DRAIN = "drain"
#: Addresses that one client takes.
MOST = 32


def parse_addresses(text: str) -> List[str]:
    """``tcp://host:port`` of each of ``a:5700,b:5700``.

    Raises:
        BadInput: one of them is no address, one stands there twice, or they are too many.
    """
    addresses = []
    for part in text.split(","):
        host, port = split_address(part.strip())
        addresses.append(f"tcp://{join_address(host, port)}")
    if len(set(addresses)) < len(addresses):
        raise BadInput(f"{text!r} names an address twice", remedy="name each server once")
    if len(addresses) > MOST:
        raise BadInput(f"{len(addresses)} addresses of servers", remedy=f"name at most {MOST}")
    return addresses


class Fronts:
    """Goes through the addresses in turn. Used by the link's thread.

    Args:
        text: addresses, separated by commas.
        begin: which is dialled first, modulo their number: robots that differ in it share the fronts.
    """

    def __init__(self, text: str, begin: int) -> None:
        self.all = parse_addresses(text)
        self._place = begin % len(self.all)
        self._failed = 0
        #: Attempts at each that have not been answered: which of the addresses of a name is next.
        self._attempts: Counter[str] = Counter()
        self._refusals: Dict[str, EdgeOffloadError] = {}

    @property
    def current(self) -> str:
        """The one that is dialled, or connected."""
        return self.all[self._place]

    @property
    def several(self) -> bool:
        """Tell whether there is another one to go on with."""
        return len(self.all) > 1

    def next_endpoint(self) -> str:
        """``tcp://number:port`` to dial now: of a name that has several addresses one after the other.

        Raises:
            OSError: the name has none.
        """
        attempt = self._attempts[self.current]
        self._attempts[self.current] += 1
        endpoints = resolve_endpoints(*split_address(self.current))
        return endpoints[attempt % len(endpoints)]

    def mark_connected(self) -> None:
        """The current one answers: it is kept, and so is the address that its name has."""
        self._failed = 0
        self._attempts[self.current] -= 1
        self._refusals.clear()

    def mark_lost(self, refused: Optional[EdgeOffloadError], retry: bool) -> bool:
        """The current one is gone; returns whether another attempt may follow at once.

        Args:
            refused: what it said.
            retry: it is dialled once more before the next one: a connection that broke is often back at once, and there
                is what the robot had open.
        """
        if refused is not None:
            self._refusals[self.current] = refused
        if retry and refused is None:
            return True
        self._failed += 1
        self._place = (self._place + 1) % len(self.all)
        return self._failed < len(self.all)

    def all_refuse(self) -> bool:
        """Tell whether every one has refused since one of them answered."""
        return len(self._refusals) == len(self.all)
