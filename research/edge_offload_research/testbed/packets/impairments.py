"""What a link does to packets besides bandwidth and delay.

Mobile networks have the statistics of ARISE's evaluation (dissertation, 3.6.1). ``wifi_interfered`` is synthetic.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Dict, Mapping, Tuple

from edge_offload.errors import BadInput
from edge_offload_research.emulate.trace import Link

#: The jitter's range (``packets.c``) in standard deviations: so far below the mean delay, and from there to the latest.
EARLIEST, RANGE = math.sqrt(3), math.sqrt(27)
SHARES = ("loss", "to_bad", "to_good", "loss_bad", "reorder", "duplicate")


@dataclass(frozen=True)
class Impairments:
    """Impairments of one direction. Shares are of packets, 0 to 1.

    Attributes:
        jitter_s: standard deviation of the one-way delay around the link's; linear between knots, skewed to late.
        knot_s: time between knots of the jitter; 0: 5.2 times ``jitter_s``, so that no packet catches up with another.
        loss: share of packets lost in the good state (Gilbert-Elliott).
        to_bad, to_good: chance of each packet to change the state; 0 and 1: there is no bad one.
        loss_bad: share of packets lost in the bad state.
        reorder: share of packets that come ``reorder_s`` late, while others overtake them.
        duplicate: share of packets that come twice.
        outage_every_s, outage_s: every so many seconds, the last ``outage_s`` lose all packets; 0: never.
        queue_bytes: IP bytes that wait for the bandwidth; what does not fit is dropped.
    """

    jitter_s: float = 0.0
    knot_s: float = 0.0
    loss: float = 0.0
    to_bad: float = 0.0
    to_good: float = 1.0
    loss_bad: float = 1.0
    reorder: float = 0.0
    reorder_s: float = 0.005
    duplicate: float = 0.0
    outage_every_s: float = 0.0
    outage_s: float = 0.0
    queue_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
                raise BadInput(f"{name} must be a number from 0 on, not {value!r}")
            if name in SHARES and value > 1:
                raise BadInput(f"{name} is a share of packets, not {value!r}", remedy="give 0 to 1")
        if self.outage_s > self.outage_every_s:
            raise BadInput("outage_s is longer than outage_every_s")
        if self.queue_bytes < 2048:
            raise BadInput("queue_bytes must be at least 2048")

    @property
    def knots_s(self) -> float:
        """Time between knots of the jitter."""
        return self.knot_s or RANGE * self.jitter_s or 1.0

    def mean_loss(self) -> float:
        """Share of packets lost over a long time, outages and a full queue aside."""
        bad = self.to_bad / (self.to_bad + self.to_good) if self.to_bad else 0.0
        return (1 - bad) * self.loss + bad * self.loss_bad

    def check(self, delay_s: float) -> None:
        """Raises BadInput if packets would have to come before they were sent."""
        if self.jitter_s * EARLIEST > delay_s:
            raise BadInput(
                f"a jitter of {self.jitter_s * 1e3:g} ms needs a longer delay than {delay_s * 1e3:g} ms one way",
                remedy=f"set at least {2e3 * self.jitter_s * EARLIEST:.1f} ms of round trip, or less jitter",
            )


Pair = Tuple[Impairments, Impairments]
_LTE = Impairments(jitter_s=5e-3 / math.sqrt(2), queue_bytes=1 << 20)
_MMWAVE = Impairments(jitter_s=2e-3 / math.sqrt(2), queue_bytes=2 << 20)
_INTERFERED = Impairments(jitter_s=2.5e-3, to_bad=0.005, to_good=0.25)
NAMED: Dict[str, Impairments] = {"lte": _LTE, "5g_mmwave": _MMWAVE, "wifi_interfered": _INTERFERED}


def of_link(link: Link) -> Pair:
    """Return the impairments of a link by its name, up and down: none where it has none."""
    terms = NAMED.get(link.name, Impairments())
    return terms, terms


def change_impairments(pair: Pair, values: Mapping[str, object]) -> Pair:
    """``pair`` with other values; ``up.loss`` is that of one direction, ``loss`` of both.

    Raises:
        BadInput: there is no such impairment, or it cannot have that value.
    """
    names = [field.name for field in fields(Impairments)]
    ends = dict(zip(("up", "down"), pair))
    for text, value in values.items():
        direction, _, name = text.rpartition(".")
        if name not in names or direction not in ("", *ends):
            raise BadInput(f"no impairment {text!r}", remedy=f"impairments: {', '.join(names)}; or up.loss, down.loss")
        for end in (direction,) if direction else tuple(ends):
            ends[end] = replace(ends[end], **{name: value})  # type: ignore[arg-type]
    return ends["up"], ends["down"]
