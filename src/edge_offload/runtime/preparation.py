"""When the modes that take long to learn and plan are prepared: after the first frames, one after the other."""

from __future__ import annotations

import time
from typing import Mapping, Set

from edge_offload.manager.forecast import Forecaster
from edge_offload.manager.tuning import ENOUGH, IN_TURN_S
from edge_offload.mode import BRIDGE, BRIDGED, Mode

#: Modes that take long to prepare: while a mode is held by name, they are not.
PREPARED = (BRIDGED, Mode.SPLIT)
#: Why they cannot run then.
NOT_CHOSEN = "it is prepared when a policy chooses"


class Preparation:
    """Begins with the first frames, which the server answers meanwhile.

    Args:
        forecaster: counts frames.
        bridges: whether the server does; else everything is prepared as soon as somebody chooses.
    """

    def __init__(self, forecaster: Forecaster, bridges: bool) -> None:
        self._forecaster, self._bridges = forecaster, bridges
        self._begun: Set[Mode] = set()
        self._made_s = time.monotonic()

    def not_yet(self, mode: Mode, others: Mapping[Mode, str]) -> str:
        """Return why ``mode`` is not prepared yet; empty when it is.

        Args:
            mode: one of :data:`PREPARED`.
            others: why the candidates before it cannot run; empty where they can.
        """
        if not self._bridges or mode in self._begun:
            return ""
        since_s = time.monotonic() - self._made_s
        if self._forecaster.frames(BRIDGE) < ENOUGH and since_s < IN_TURN_S:
            return "it is prepared when frames run"
        # one at a time: what is tried beside what is learnt looks slower than it is, and frames meet both
        replay_measured = not others.get(BRIDGED) and self._forecaster.frames(BRIDGED) > 1
        if mode is Mode.SPLIT and not replay_measured and since_s < IN_TURN_S:
            return f"it is prepared after {BRIDGED}"
        self._begun.add(mode)
        return ""
