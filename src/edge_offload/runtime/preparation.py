"""Decides when modes that take long to learn and plan are prepared: after the first frames, one after the other."""

from __future__ import annotations

import time
from typing import Mapping, Set

from edge_offload.manager.forecast import Forecaster
from edge_offload.manager.tuning import ENOUGH, PREPARATION_WAIT_S
from edge_offload.mode import BRIDGE, BRIDGED, Mode

#: Modes that take long to prepare. They are not prepared while the user has set a mode by name.
PREPARED = (BRIDGED, Mode.SPLIT)
#: Why they cannot run then, for users.
NOT_CHOSEN = "it is prepared when a policy chooses"


class Preparation:
    """Schedule of the preparations; mode ``server`` runs the frames before they are done.

    Args:
        forecaster: counts the frames of each mode.
        bridges: whether ``server`` does so; otherwise each mode is prepared as soon as a policy considers it.
    """

    def __init__(self, forecaster: Forecaster, bridges: bool) -> None:
        self._forecaster, self._bridges = forecaster, bridges
        self._started: Set[Mode] = set()
        self._created_s = time.monotonic()

    def not_yet(self, mode: Mode, others: Mapping[Mode, str]) -> str:
        """Return why the preparation of ``mode`` may not begin yet; empty: it may, or has begun.

        Args:
            mode: one of :data:`PREPARED`.
            others: why each candidate before it cannot run; empty where it can.
        """
        if not self._bridges or mode in self._started:
            return ""
        since_s = time.monotonic() - self._created_s
        if self._forecaster.frames(BRIDGE) < ENOUGH and since_s < PREPARATION_WAIT_S:
            return "it is prepared when frames run"
        # one at a time: a mode that is measured while another one is learnt looks slower than it is
        replay_measured = not others.get(BRIDGED) and self._forecaster.frames(BRIDGED) > 1
        if mode is Mode.SPLIT and not replay_measured and since_s < PREPARATION_WAIT_S:
            return f"it is prepared after {BRIDGED}"
        self._started.add(mode)
        return ""
