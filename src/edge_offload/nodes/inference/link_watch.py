"""Health of a node while the server is absent: amber or red, with the cause and the remedy.

Amber if a policy chooses the mode: the robot computes, and frames have results. Red if the user set a mode that needs
the server, and the server has been absent for :data:`ABSENT_S`.
"""

from __future__ import annotations

import math
import time
from typing import Optional, Tuple

from edge_offload.link.estimate.scheduling import describe_waits as of_machine
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.nodes.common.health import ERROR, TORCHES, WARN, Health
from edge_offload.runtime.module import OffloadedModule

#: Seconds after which an absence is no interruption any more.
ABSENT_S = 10.0
#: Longer absences are told in these steps (seconds, words).
STEPS = ((600.0, "10 minutes"), (60.0, "a minute"), (ABSENT_S, f"{ABSENT_S:.0f} s"))
REMEDY = "check that 'edge-offload serve' runs there, that the address is right and that the robot has a network"


class LinkWatch:
    """Remembers since when there is no server. One thread at a time."""

    def __init__(self) -> None:
        self._since_s = math.nan

    def judge_link(self, now: float, ready: bool, address: str, cause: str, fixed: bool) -> Optional[Tuple[int, str]]:
        """Level and words of what is wrong now; None when nothing is.

        Args:
            now: monotonic seconds.
            ready: whether the server answers.
            address: of the server.
            cause: why it does not, in words.
            fixed: whether a mode that needs the server was asked for by name, instead of a policy that chooses.
        """
        if ready:
            self._since_s = math.nan
            return None
        if math.isnan(self._since_s):
            self._since_s = now
        absent_s = now - self._since_s
        long = next((text for least_s, text in STEPS if absent_s >= least_s), "")
        if not long:
            return WARN, f"no server at {address}: {cause}; frames are computed on the robot"
        text = f"no server at {address} for more than {long}: {cause}; every frame is computed on the robot; {REMEDY}"
        return (ERROR if fixed else WARN), text


class NetworkHealth:
    """Says on /diagnostics how a network's link and engines stand.

    Args:
        module: the network.
        client: its link; None: no server.
        health: of the node.
    """

    def __init__(self, module: OffloadedModule, client: Optional[Client], health: Health) -> None:
        self._module, self._client, self._health = module, client, health
        self._watch = LinkWatch()

    def refresh(self, needed: bool, fixed: bool = False) -> None:
        """Bring everything up to date.

        Args:
            needed: whether somebody misses the server while it is away.
            fixed: whether that is because a mode was asked for by name, instead of a policy that chooses.
        """
        health, client = self._health, self._client
        for mode, state in self._module.state().items():
            health.value(f"mode {mode}", state)
        engine, amber = self._module.engine_state()
        self._set_condition("engine", engine if amber else "")
        torches = self._module.torches()
        self._set_condition("torch", torches)
        if torches:
            health.value(TORCHES, torches)  # for the summary of the run
        ready, wrong = client is not None and client.state is LinkState.READY, None
        if client is not None:
            wrong = self._watch.judge_link(time.monotonic(), ready, client.address, client.cause, fixed)
            health.value("machine", of_machine(*client.scheduling_s))
        if not needed:
            health.clear("fallback")
        if not needed or (client is not None and wrong is None):
            health.clear("link")
        elif wrong is None:
            health.warn("link", "no server is configured (~server), so everything runs on the robot")
        else:
            (health.error if wrong[0] == ERROR else health.warn)("link", wrong[1])
        self._set_condition("clock", client.clock.warning if client is not None and ready else "")

    def _set_condition(self, what: str, text: str) -> None:
        if text:
            self._health.warn(what, text)
        else:
            self._health.clear(what)
