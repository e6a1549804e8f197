"""The links that the emulator knows by name. Standard library only: launch files are checked with it."""

from __future__ import annotations

from typing import Dict

NAMED_LINKS: Dict[str, str] = {
    "wifi_93mbps": "constant 93 Mbps, RTT 2.6 ms: the papers' indoor mean",
    "wifi_73mbps": "constant 73 Mbps, RTT 2.6 ms: the papers' outdoor mean",
    "wifi_indoors": "synthetic 5 min trace, mean 93 Mbps, RTT 2.6 ms",
    "wifi_outdoors": "synthetic 5 min trace, mean 73 Mbps with drops to nearly 0, RTT 2.6 ms",
}
"""Name and one line of description."""
