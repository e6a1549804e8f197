"""When the modes that take long to learn and plan are prepared: after the first frames, one after the other."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Dict, Mapping, Optional, Sequence, Set

import torch

from edge_offload.manager.forecast import Forecast, Forecaster
from edge_offload.manager.policy import bridged
from edge_offload.mode import BRIDGE, BRIDGED, Mode
from edge_offload.modes.runner import Runner

#: Modes that take long to prepare: while a mode is held by name, they are not.
PREPARED = (BRIDGED, Mode.SPLIT)
#: Why they cannot run then.
NOT_CHOSEN = "it is prepared when a policy chooses"
#: Frames that the server answers before anything is prepared beside them, and seconds after which none is waited for.
FIRST_FRAMES, FIRST_S = 10, 20.0
#: Frames of a mode after which it is known: the first one tells of its start only.
TRIALS = 2
#: Seconds after which ``split`` is prepared although ``replay`` is not ready, or not tried.
IN_TURN_S = 60.0
#: While plans of ``split`` are made, for so long at most, the server answers, whatever a trial looked like; and why.
PLANS_S = 120.0
PLANS_FIRST = f"{BRIDGE} stands in for it while plans of {Mode.SPLIT} are made"


class Preparation:
    """Begins with the first frames, which the server answers meanwhile.

    Args:
        forecaster: counts frames.
        bridges: whether the server does; else everything is prepared as soon as somebody chooses.
    """

    def __init__(self, forecaster: Forecaster, bridges: bool) -> None:
        self._forecaster, self.bridges = forecaster, bridges
        if bridges:
            forecaster.trials = dict.fromkeys(PREPARED, TRIALS)
        self._begun: Set[Mode] = set()
        self._planning_s: Optional[float] = None
        self._planned = False
        self._made_s = time.monotonic()

    def not_yet(self, mode: Mode, others: Mapping[Mode, str]) -> str:
        """Why ``mode`` is not to be prepared yet, in words; empty when it is.

        Args:
            mode: one of :data:`PREPARED`.
            others: why the candidates before it cannot run; empty where they can.
        """
        if not self.bridges or mode in self._begun:
            return ""
        since_s = time.monotonic() - self._made_s
        if self._forecaster.frames(BRIDGE) < FIRST_FRAMES and since_s < FIRST_S:
            return "it is prepared when frames run"
        # one at a time: what is tried beside what is learnt looks slower than it is, and frames meet both
        known = not others.get(BRIDGED) and self._forecaster.frames(BRIDGED) >= TRIALS
        if mode is Mode.SPLIT and not known and since_s < IN_TURN_S:
            return f"it is prepared after {BRIDGED}"
        self._begun.add(mode)
        if mode is Mode.SPLIT:
            self._planning_s = time.monotonic()
        return ""

    def bridged(
        self, forecasts: Mapping[Mode, Forecast], split: Optional[Runner], inputs: Sequence[torch.Tensor]
    ) -> Dict[Mode, Forecast]:
        """The same without what the bridge stands in for while plans are made; then without the bridge."""
        found = dict(forecasts)
        if not self.bridges:
            return found
        replay, bridge = found.get(BRIDGED), found.get(BRIDGE)
        if replay is None or bridge is None or bridge.unavailable_reason or not self._plans_are_made(split, inputs):
            return bridged(found)
        found[BRIDGED] = replace(replay, unavailable_reason=replay.unavailable_reason or PLANS_FIRST)
        return found

    def _plans_are_made(self, split: Optional[Runner], inputs: Sequence[torch.Tensor]) -> bool:
        """Whether they are, the first time."""
        if self._planning_s is None or self._planned:
            return False
        opening = getattr(split, "opening", lambda _inputs: False)(inputs)
        self._planned = not opening or time.monotonic() - self._planning_s >= PLANS_S
        return not self._planned
