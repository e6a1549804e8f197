"""What a source of power is: a name, a kind (measured or model), and a reading."""

from __future__ import annotations

import abc

MEASURED = "measured"
MODEL = "model"
#: Neither a sensor nor a table of watts for this machine: nothing is made up.
UNKNOWN = "unknown"


class PowerSource(abc.ABC):
    """Something that knows how many watts are drawn now.

    Attributes:
        name: what is read, for messages and reports (``"ina3221 VDD_IN"``).
        kind: :data:`MEASURED` or :data:`MODEL`.
    """

    name: str
    kind: str = MEASURED

    @abc.abstractmethod
    def watts(self) -> float:
        """Power drawn now, watts.

        Raises:
            OSError: the sensor cannot be read (any more).
        """

    def close(self) -> None:
        """Release what the source holds; reading it afterwards is an error."""
        return


class EnergyCounter(PowerSource):
    """A source that counts energy by itself; differences of the count are exact, however rarely it is read."""

    @abc.abstractmethod
    def joules(self) -> float:
        """Energy since the source was made, joules; never decreases.

        Raises:
            OSError: the counter cannot be read (any more).
        """
