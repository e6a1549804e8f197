"""Interface of carriers, which propagate results to later frames."""

from __future__ import annotations

from typing import Iterator, Protocol, TypeVar

Result = TypeVar("Result")


class Carrier(Protocol[Result]):
    """Carrier of results from one frame to a later one, over the frames added to it.

    Attributes:
        degraded: reason why the last result was carried with less accuracy; empty: it was not.
    """

    degraded: str

    def carry(self, result: Result, source: int, target: int) -> Result:
        """Return ``result`` of frame ``source`` moved to frame ``target`` (stamps, ns).

        Raises:
            BadInput: the target is before the source.
        """

    def steps(self, result: Result, source: int, target: int) -> Iterator[None]:
        """Do the work of :meth:`carry` for ``target`` ahead, one part per step; :meth:`carry` is quick afterwards."""
