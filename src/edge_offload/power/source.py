"""Interface of a source of power: a name, a kind (measured or model), and a reading."""

from __future__ import annotations

import abc

MEASURED = "measured"
MODEL = "model"
#: There is neither a sensor nor a table of watts for this machine, so no value is given.
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
        """Release the source's resources. It must not be read afterwards."""
        return


class EnergyCounter(PowerSource):
    """Source that also counts energy. Differences of the counter are exact even if it is rarely read."""

    @abc.abstractmethod
    def joules(self) -> float:
        """Return the energy since this object was made, joules; it never decreases.

        Raises:
            OSError: the counter is not readable.
        """
