"""What follows the end of a client's connection: words for who waits, another server, a pause."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Union

from edge_offload.errors import EdgeOffloadError, Refused
from edge_offload.link.security.keys import KeyStore, trust_remedy
from edge_offload.link.transport.fronts import Fronts
from edge_offload.link.transport.messages import Limits
from edge_offload.link.transport.terms import ConnectionLost, Timings

#: Between the end of one attempt to connect and the next (seconds).
LEAST_PAUSE_S = 0.05
#: A first attempt after a connection waits for this many round trips, and so many seconds at least: where its first
#: packet is lost, the kernel sends that again only after a second (``bench levels``: moved, back).
CONNECT_ROUND_TRIPS, LEAST_CONNECT_S = 3.0, 0.1


@dataclass(frozen=True)
class Dialling:
    """Settings for dialling servers; see :class:`~edge_offload.link.transport.client.Client`."""

    keys: KeyStore
    hello: Union[Dict[str, Any], Callable[[], Dict[str, Any]]]
    session: str
    timings: Timings
    limits: Limits


@dataclass(frozen=True)
class Over:
    """A connection is over: why, whether the server (or each of several) refused, and the pause before the next."""

    reason: str
    refused: Optional[EdgeOffloadError]
    pause_s: float


class Redial:
    """Redialling of one client.

    Args:
        fronts: its servers; turned to the next one here.
        timings: how patiently.

    Attributes:
        connect_s: how long the next attempt waits for the TCP connection.
    """

    def __init__(self, fronts: Fronts, timings: Timings) -> None:
        self._fronts, self._timings = fronts, timings
        self.connect_s = timings.connect_s
        self._pause_s = 0.0
        self._hang_ups: Counter[str] = Counter()

    def end_attempt(
        self, error: Union[ConnectionLost, EdgeOffloadError], ready: bool, dialled_s: float, rtt_s: float = math.nan
    ) -> Over:
        """A connection that was dialled then, and was ready or not, has ended; ``rtt_s``: its round trip."""
        first_s = self._timings.connect_s if math.isnan(rtt_s) else max(LEAST_CONNECT_S, CONNECT_ROUND_TRIPS * rtt_s)
        self.connect_s = min(first_s if ready else 2 * self.connect_s, self._timings.connect_s)
        address, broke, at_once = self._fronts.current, False, False
        if isinstance(error, ConnectionLost):
            self._hang_ups[address] = self._hang_ups[address] + 1 if error.hung_up else 0
            refused = error.refused if self._hang_ups[address] < 2 else _other_key(address)
            # a connection that stood for a second is dialled once more before another server is
            broke = ready and not error.over and time.monotonic() - dialled_s > 1.0
            reason = str(refused) if refused is not None else error.reason
            at_once = error.moved
        else:
            refused, reason = error, str(error)
        if self._fronts.several:
            at_once = self._fronts.mark_lost(refused, retry=broke) or at_once
            reason = f"{address}: {reason}"
            refused = refused if self._fronts.all_refuse() else None
        return Over(reason, refused, 0.0 if at_once else self._pause_s_for(ready, dialled_s))

    def _pause_s_for(self, ready: bool, dialled_s: float) -> float:
        self._pause_s = LEAST_PAUSE_S if ready else min(self._timings.backoff_cap_s, max(0.05, self._pause_s * 2))
        # it counts from the beginning of the attempt: one that has waited for an answer need not wait again
        remaining_s = self._pause_s if ready else self._pause_s - (time.monotonic() - dialled_s)
        # half of the pause is random, so that many robots do not come back in step
        return max(remaining_s, LEAST_PAUSE_S) * random.uniform(0.5, 1.0)


def _other_key(address: str) -> Refused:
    return Refused(
        f"{address} hangs up in the key exchange: it is not the server whose key is known here",
        remedy=trust_remedy(address),
    )
