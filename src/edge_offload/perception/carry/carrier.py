"""What carries results along."""

from __future__ import annotations

from typing import Iterator, Protocol, TypeVar

Result = TypeVar("Result")


class Carrier(Protocol[Result]):
    """Moves a result of one frame to a later one, over the frames that it has seen.

    Attributes:
        degraded: why the last result was carried less well than it could be; empty: it was not.
    """

    degraded: str

    def carry(self, result: Result, source: int, target: int) -> Result:
        """``result`` of the frame ``source`` as it is in the frame ``target`` (stamps, ns).

        Raises:
            BadInput: the target is before the source.
        """

    def steps(self, result: Result, source: int, target: int) -> Iterator[None]:
        """What :meth:`carry` does ahead for ``target``, in steps, where that takes long: it is quick then."""
