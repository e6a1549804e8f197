"""Interface of a source of power: a name, a kind (measured or model), and a reading."""

from __future__ import annotations

import abc

MEASURED = "measured"
MODEL = "model"
#: Neither a sensor nor a table of watts for this machine: no value is invented.
UNKNOWN = "unknown"


class PowerSource(abc.ABC):
    """Source of the current power.

    Attributes:
        name: sensor and rails, for messages and reports (``"ina3221 VDD_IN"``).
        kind: :data:`MEASURED` or :data:`MODEL`.
    """

    name: str
    kind: str = MEASURED

    @abc.abstractmethod
    def watts(self) -> float:
        """Return the current power, watts.

        Raises:
            OSError: the sensor is not readable.
        """

    def close(self) -> None:
        """Release the source's resources; reading it afterwards is an error."""
        return


class EnergyCounter(PowerSource):
    """Source with a counter of energy, whose differences are exact however rarely it is read."""

    @abc.abstractmethod
    def joules(self) -> float:
        """Return the energy since the construction, joules; never decreases.

        Raises:
            OSError: the counter is not readable.
        """
