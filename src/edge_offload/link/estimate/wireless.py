"""Signal of the Wi-Fi interface, where the kernel tells: ``/proc/net/wireless`` and the routing table."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Dict, Optional, Union

_WIRELESS = pathlib.Path("/proc/net/wireless")
_ROUTES = pathlib.Path("/proc/net/route")


@dataclass(frozen=True)
class Signal:
    """One wireless interface.

    Attributes:
        interface: its name.
        quality: link quality, in the driver's own scale (often 0 to 70).
        level_dbm: received power; drivers that count from 0 to 255 are converted.
    """

    interface: str
    quality: float
    level_dbm: float


def parse_wireless(text: str) -> Dict[str, Signal]:
    """Signals by interface from the text of ``/proc/net/wireless``; lines that are not understood are left out."""
    found = {}
    for line in text.splitlines()[2:]:
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if not colon or len(fields) < 3:
            continue
        try:
            quality, level = (float(field.rstrip(".")) for field in fields[1:3])
        except ValueError:
            continue
        found[name.strip()] = Signal(name.strip(), quality, level - 256 if level > 63 else level)
    return found


def default_interface(text: str) -> Optional[str]:
    """Interface of the default route in the text of ``/proc/net/route``; None if there is none."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 1 and fields[1] == "00000000":
            return fields[0]
    return None


def wifi_signal(
    wireless: Union[str, pathlib.Path] = _WIRELESS, routes: Union[str, pathlib.Path] = _ROUTES
) -> Optional[Signal]:
    """The signal of the interface that the default route takes, else of the only wireless one; None without Wi-Fi."""
    try:
        signals = parse_wireless(pathlib.Path(wireless).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    try:
        chosen = default_interface(pathlib.Path(routes).read_text(encoding="ascii", errors="replace"))
    except OSError:
        chosen = None
    if chosen in signals:
        return signals[str(chosen)]
    return next(iter(signals.values())) if len(signals) == 1 else None
