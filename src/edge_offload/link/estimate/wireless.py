"""Signal and rate of the Wi-Fi interface, where the kernel tells.

Newer kernels answer over nl80211 (asked through pyroute2, if that is installed), older ones write
``/proc/net/wireless``, which knows no rate. Which interface matters is what the routing table says.
"""

from __future__ import annotations

import logging
import math
import pathlib
import socket
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Optional, Sequence, Union

from edge_offload import requirements

_log = logging.getLogger(__name__)
_INTERFACES = pathlib.Path("/sys/class/net")
_WIRELESS = pathlib.Path("/proc/net/wireless")
_ROUTES = pathlib.Path("/proc/net/route")


@dataclass(frozen=True)
class Signal:
    """One wireless interface.

    Attributes:
        interface: its name.
        quality: link quality, in the driver's own scale (often 0 to 70); nan where it is not told.
        level_dbm: received power; drivers that count from 0 to 255 are converted.
        rate: bytes per second, at which the radio sends now, before any overhead; 0 where it is not told.
    """

    interface: str
    quality: float
    level_dbm: float
    rate: float = 0.0


def parse_wireless(text: str) -> Dict[str, Signal]:
    """Signals by interface from the text of ``/proc/net/wireless``; lines that are not understood are left out."""
    signals = {}
    for line in text.splitlines()[2:]:
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if not colon or len(fields) < 3:
            continue
        try:
            quality, level = (float(field.rstrip(".")) for field in fields[1:3])
        except ValueError:
            continue
        signals[name.strip()] = Signal(name.strip(), quality, level - 256 if level > 63 else level)
    return signals


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
    chosen = _choose_interface(sorted(signals), routes)
    return None if chosen is None else signals[chosen]


def wireless_interface(
    interfaces: Union[str, pathlib.Path] = _INTERFACES, routes: Union[str, pathlib.Path] = _ROUTES
) -> Optional[str]:
    """The wireless interface that the default route takes, else the only wireless one; None without Wi-Fi."""
    return _choose_interface(sorted(path.parent.name for path in pathlib.Path(interfaces).glob("*/phy80211")), routes)


def _choose_interface(names: Sequence[str], routes: Union[str, pathlib.Path]) -> Optional[str]:
    try:
        chosen = default_interface(pathlib.Path(routes).read_text(encoding="ascii", errors="replace"))
    except OSError:
        chosen = None
    if chosen in names:
        return chosen
    return names[0] if len(names) == 1 else None


def station_signal(interface: str, stations: Iterable[Any]) -> Optional[Signal]:
    """The signal in nl80211's answers on the stations of an interface (a robot has one: its access point).

    Args:
        interface: their interface.
        stations: ``nl80211cmd`` messages as pyroute2 decodes them.
    """
    for station in stations:
        info = station.get_attr("NL80211_ATTR_STA_INFO")
        level = None if info is None else info.get_attr("NL80211_STA_INFO_SIGNAL")
        if level is None:
            continue
        sending = info.get_attr("NL80211_STA_INFO_TX_BITRATE")
        # the 16-bit field cannot hold the rates of today's radios: 0 there means look at the other
        hundred_kbits = 0
        if sending is not None:
            hundred_kbits = sending.get_attr("NL80211_RATE_INFO_BITRATE32") or 0
            hundred_kbits = hundred_kbits or sending.get_attr("NL80211_RATE_INFO_BITRATE") or 0
        return Signal(interface, math.nan, float(level), hundred_kbits * 1e5 / 8)
    return None


class Wireless:
    """Asks for the signal again and again, over one netlink socket where there is nl80211."""

    def __init__(self) -> None:
        self._radio: Optional[Any] = None
        self._without = False

    def read_signal(self) -> Optional[Signal]:
        """The signal now; None without Wi-Fi."""
        interface = wireless_interface()
        signal = None if interface is None or self._without else self._query_signal(interface)
        return signal or wifi_signal()

    def _query_signal(self, interface: str) -> Optional[Signal]:
        try:
            from pyroute2.iwutil import IW
            from pyroute2.netlink.exceptions import NetlinkError
        except ImportError:
            _log.info("the rate of %s is not known without pyroute2: %s", interface, requirements.install("wifi"))
            self._without = True
            return None
        try:
            self._radio = self._radio or IW()
            return station_signal(interface, self._radio.get_stations(socket.if_nametoindex(interface)))
        except (NetlinkError, OSError) as error:
            _log.info("nl80211 does not tell of %s: %s", interface, error)
            self._without = True
            self.close()
            return None

    def close(self) -> None:
        """Close the socket."""
        radio, self._radio = self._radio, None
        if radio is not None:
            radio.close()
