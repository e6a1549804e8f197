"""Names of the emulator's links. Standard library only, because the check of launch files imports it."""

from __future__ import annotations

from typing import Dict

NAMED_LINKS: Dict[str, str] = {
    "wifi_93mbps": "constant 93 Mbps, RTT 2.6 ms: the papers' indoor mean",
    "wifi_73mbps": "constant 73 Mbps, RTT 2.6 ms: the papers' outdoor mean",
    "wifi_indoors": "synthetic 5 min trace, mean 93 Mbps, RTT 2.6 ms",
    "wifi_interfered": "synthetic, mean 60 Mbps, RTT 10 ms; packets: jitter 2.5 ms, 2 % lost in bursts of four",
    "lte": "synthetic from ARISE's statistics: 44 (8) Mbps up, 110 (17) down, RTT 32 (5) ms",
    "5g_mmwave": "synthetic from ARISE's statistics: 152 (6) Mbps up, 1715 (57) down, RTT 14 (2) ms",
    "wifi_outdoors": "synthetic 5 min trace, mean 73 Mbps with drops to nearly 0, RTT 2.6 ms",
}
"""Name and one line of description."""
