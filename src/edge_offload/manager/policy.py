"""Policies, which choose the mode of the next frame by its forecast cost in each, with a reason in words.

A policy is a small class with a name and ``decide(Situation) -> Decision``; it holds no sockets, clocks or threads, so
a bench can drive it through hours of a trace in seconds (:mod:`edge_offload_benchmarks.experiments.adaptive`).
"""

from __future__ import annotations

import abc
import importlib
import math
import sys
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Set, Tuple

from edge_offload.errors import BadInput
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.manager.forecast import Forecast
from edge_offload.manager.tuning import NOTABLE, SURE
from edge_offload.mode import AUTO, BRIDGE, TABLE, Mode, names

#: ``Decision.policy`` of a mode that does not change: by configuration, or by a request to ``offload/set_mode``.
FIXED, SERVICE = "fixed", "service"
#: Preference among modes of which none is worse beyond doubt: the robot's bits at the least energy come first.
ORDER = (Mode.REPLAY, Mode.SPLIT, Mode.SERVER, Mode.LOCAL)
#: Modes that a policy chooses among by default. These two give the same bits and need no preparation;
#: ``split`` has to be profiled and planned first, ``replay`` needs the virtual device, the rest are for comparison.
CANDIDATES = (Mode.LOCAL, Mode.SERVER)


@dataclass(frozen=True)
class Situation:
    """Inputs of a policy's decision.

    Attributes:
        now_s: monotonic time, seconds.
        forecasts: the next frame in every mode that exists here.
        deadline_s: seconds that the frame has; None if it has no deadline.
        load: of the server, 0 to 1; nan if unknown. What it makes a frame wait is in the forecasts already.
        power_budget_w: mean power (W) that the robot may draw while it computes a frame; inf if there is no bound.
        absent: modes that cannot run here at all, and for each what it lacks, in words.
        link: what the forecasts rest on.
        bandwidth: what ``offload/bandwidth`` last said, its age included; None: nothing yet, or it has gone silent.
        source: what ``link`` is known by, in words; empty: by nothing.
    """

    now_s: float
    forecasts: Mapping[Mode, Forecast]
    deadline_s: Optional[float] = None
    load: float = math.nan
    power_budget_w: float = math.inf
    absent: Mapping[Mode, str] = field(default_factory=dict)
    link: LinkReading = field(default_factory=LinkReading)
    bandwidth: Optional[LinkReading] = None
    source: str = ""


def ratio_deviation(one: Forecast, other: Forecast, link: LinkReading) -> float:
    """Return the standard deviation of the logarithm of the ratio of two mean costs.

    Uncertainty of the link is common to both modes and counts only as far as they use the link differently.

    Args:
        one: a forecast.
        other: another one.
        link: what the forecasts rest on.
    """

    def link_share(forecast: Forecast) -> float:
        return min(_unknown_s(forecast, link), forecast.standard_error_s) / max(forecast.latency_s, 1e-9)

    def variance(forecast: Forecast) -> float:
        independent = (forecast.standard_error_s / max(forecast.latency_s, 1e-9)) ** 2 - link_share(forecast) ** 2
        return forecast.covariance.get(forecast.mode, max(0.0, independent))

    modes_variance = variance(one) + variance(other) - 2 * one.covariance.get(other.mode, 0.0)
    return math.hypot(math.sqrt(max(0.0, modes_variance)), link_share(one) - link_share(other))


def _unknown_s(forecast: Forecast, link: LinkReading) -> float:
    """Standard deviation of the time of a frame's bytes on the link, seconds."""
    if not TABLE[forecast.mode].needs_link or link.uplink <= 0 or not math.isfinite(link.uplink_error):
        return 0.0
    rate = link.cautious
    down = rate.downlink if rate.downlink > 0 else rate.uplink
    return (forecast.bytes_up / rate.uplink + forecast.bytes_down / down) * min(1.0, link.uplink_error)


@dataclass(frozen=True)
class Decision:
    """The mode that a frame is asked to run in, which policy says so, and why, in words."""

    mode: Mode
    reason: str
    policy: str = FIXED


@dataclass(frozen=True)
class Knobs:
    """Parameters that may change while frames run.

    Attributes:
        margin: share by which a mode must be worse than the best one, beyond doubt, to be rejected; 0 to 1.
        sigmas: standard deviations that a latency must leave to the deadline.
    """

    margin: float = 0.03
    sigmas: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 10 or not 0 <= self.sigmas <= 10:
            raise BadInput(f"{self}: out of range", remedy="margin 0 to 10, sigmas 0 to 10")


class Policy(Protocol):
    """Decides per frame."""

    name: str

    def decide(self, situation: Situation) -> Decision:
        """The mode for the frame that starts now."""


@dataclass
class FixedPolicy:
    """Policy of one mode; the runtime falls back to local by itself when that cannot run."""

    mode: Mode
    reason: str = "fixed by configuration"
    name: str = FIXED

    def decide(self, situation: Situation) -> Decision:
        """The configured mode."""
        return Decision(self.mode, self.reason, self.name)


class _Preference:
    """Chooses the first mode in :data:`ORDER` that is not rejected.

    A mode is rejected when it costs more than the best one by the margin, beyond doubt. It is accepted again when it is
    not expected to cost more by the margin. The two bounds are the hysteresis.

    Attributes:
        rejected: modes that are worse beyond doubt.
        mode: the mode in force; None before the first choice.
    """

    def __init__(self) -> None:
        self.rejected: Set[Mode] = set()
        self.mode: Optional[Mode] = None

    def choose(self, costs: Mapping[Mode, float], margin: float, deviation: Callable[[Mode, Mode], float]) -> Mode:
        """Return the mode for the next frame.

        Args:
            costs: mean cost of each mode that may run, above 0.
            margin: smallest difference that matters, as a share.
            deviation: standard deviation of the logarithm of the ratio of two modes' costs.
        """
        best = min(costs, key=lambda mode: costs[mode])
        for mode in costs:
            bridge_margin = NOTABLE if best is BRIDGE and TABLE[mode].needs_link else 0.0
            excess = 0.0 if mode is best else math.log(costs[mode] / costs[best]) - math.log1p(margin + bridge_margin)
            if excess > 0 and excess > SURE * deviation(mode, best):
                self.rejected.add(mode)
            elif excess <= 0:
                self.rejected.discard(mode)
        accepted = [mode for mode in costs if mode not in self.rejected] or [best]
        self.mode = min(accepted, key=_rank_in_order)
        return self.mode


def _rank_in_order(mode: Mode) -> int:
    return ORDER.index(mode) if mode in ORDER else len(ORDER)


class _Choosing(abc.ABC):
    """Base of the policies that choose: obstacles, modes never tried, the power budget, preference."""

    name = ""

    def __init__(self, knobs: Optional[Knobs] = None) -> None:
        self.knobs = knobs or Knobs()
        self._preference = _Preference()

    def turn(self, knobs: Knobs) -> None:
        """Use other knobs from now on."""
        self.knobs = knobs

    def decide(self, situation: Situation) -> Decision:
        """Return the preferred mode; one that can run but never did is tried first."""
        usable = {mode: forecast for mode, forecast in situation.forecasts.items() if not forecast.unavailable_reason}
        if not usable:
            return Decision(Mode.LOCAL, "no other mode can run", self.name)
        for mode, forecast in usable.items():
            if not forecast.measured:
                why = f"{mode} has not run yet and is tried"
                return Decision(mode, self._describe(why, situation), self.name)
        affordable = {
            mode: forecast
            for mode, forecast in usable.items()
            if forecast.energy_j <= situation.power_budget_w * forecast.latency_s
        }
        costs, why = self._costs(affordable or usable, situation)
        # a modelled energy may be 0 J, and the logarithm of costs is taken
        costs = {mode: max(cost, sys.float_info.epsilon) for mode, cost in costs.items()}
        best = min(costs, key=lambda mode: costs[mode])

        def deviation(one: Mode, other: Mode) -> float:
            return ratio_deviation(usable[one], usable[other], situation.link)

        mode = self._preference.choose(costs, self.knobs.margin, deviation)
        if mode is best:
            sentence = f"{mode} is expected to {why}"
        else:
            sentence = f"{mode} is preferred: {best} is not better by {self.knobs.margin:.0%} beyond doubt"
        if math.isfinite(situation.power_budget_w) and all(math.isnan(f.energy_j) for f in usable.values()):
            sentence += "; the power budget cannot be held, because nobody knows what this machine draws"
        return Decision(mode, self._describe(sentence, situation), self.name)

    @abc.abstractmethod
    def _costs(self, measured: Mapping[Mode, Forecast], situation: Situation) -> Tuple[Dict[Mode, float], str]:
        """Return the cost of each mode to consider, and what the cheapest is expected to do, for the reason."""

    def _in_time(self, measured: Mapping[Mode, Forecast], deadline_s: Optional[float]) -> Dict[Mode, Forecast]:
        if deadline_s is None:
            return dict(measured)
        sigmas = self.knobs.sigmas
        return {mode: f for mode, f in measured.items() if f.latency_s + sigmas * f.error_s <= deadline_s}

    def _describe(self, why: str, situation: Situation) -> str:
        parts: List[str] = []
        if situation.link.uplink > 0 and any(TABLE[name].needs_link for name in situation.forecasts):
            by = f" by {situation.source}" if situation.source else ""
            parts.append(f"{_rate(situation.link)} up{by}")
        for name, forecast in situation.forecasts.items():
            if forecast.unavailable_reason:
                parts.append(f"{name} cannot run ({forecast.unavailable_reason})")
            elif forecast.measured:
                parts.append(f"{name} {_span(forecast.latency_s, forecast.error_s)}{_joules(forecast.energy_j)}")
        if not math.isnan(situation.load):
            parts.append(f"server {situation.load:.0%} busy")
        if math.isfinite(situation.power_budget_w):
            parts.append(f"budget {situation.power_budget_w:.1f} W")
        return f"{why}{': ' if parts else ''}{', '.join(parts)}"


def _span(seconds: float, error_s: float) -> str:
    """A latency and its uncertainty for people: milliseconds, or seconds where there are many."""
    scale, digits, unit = (1e3, 0, "ms") if seconds < 1 else (1.0, 1 if seconds < 10 else 0, "s")
    if not math.isfinite(error_s):
        return f"about {seconds * scale:.{digits}f} {unit}"
    return f"{seconds * scale:.{digits}f}±{error_s * scale:.{digits}f} {unit}"


def _rate(reading: LinkReading) -> str:
    """The uplink and its uncertainty for people."""
    rate = reading.uplink / 1e6
    doubt = f"±{min(1.0, reading.uplink_error):.0%}" if 0 < reading.uplink_error < math.inf else ""
    return f"{rate:.{1 if rate >= 1 else 2}f} MB/s{doubt}"


def _joules(energy_j: float) -> str:
    if not math.isfinite(energy_j):
        return ""
    return f" {energy_j:.{2 if energy_j < 10 else 1 if energy_j < 100 else 0}f} J"


class LatencyPolicy(_Choosing):
    """The mode that is expected to finish first; with a deadline, among those that will most likely meet it."""

    name = "latency"

    def _costs(self, measured: Mapping[Mode, Forecast], situation: Situation) -> Tuple[Dict[Mode, float], str]:
        in_time = self._in_time(measured, situation.deadline_s)
        late = "" if in_time else "; no mode is sure to meet the deadline"
        costs = {mode: forecast.latency_s for mode, forecast in (in_time or measured).items()}
        return costs, f"finish first{late}"


class EnergyPolicy(_Choosing):
    """The mode that costs the robot the least energy among those that meet the deadline; else the fastest."""

    name = "energy"

    def _costs(self, measured: Mapping[Mode, Forecast], situation: Situation) -> Tuple[Dict[Mode, float], str]:
        in_time = self._in_time(measured, situation.deadline_s)
        if in_time and all(math.isfinite(forecast.energy_j) for forecast in in_time.values()):
            when = "" if situation.deadline_s is None else " among those in time"
            return {mode: forecast.energy_j for mode, forecast in in_time.items()}, f"take the least energy{when}"
        costs = {mode: forecast.latency_s for mode, forecast in (in_time or measured).items()}
        if in_time:
            return costs, "finish first; energy is not known (no sensor, no power_config)"
        return costs, "finish first; no mode is sure to meet the deadline"


def chooses(policy: str) -> bool:
    """Tell whether a policy of this name decides by forecasts, which a fixed mode does not.

    The name is ``Decision.policy`` or a requested one: of :data:`POLICIES`, or ``package.module:Class``.
    """
    return policy not in (FIXED, SERVICE, *names())


#: Policies that can be asked for by name. ``auto`` is the default one.
POLICIES: Dict[str, Callable[[], Policy]] = {
    AUTO: LatencyPolicy,
    LatencyPolicy.name: LatencyPolicy,
    EnergyPolicy.name: EnergyPolicy,
    "energy_under_deadline": EnergyPolicy,
}


def make_policy(name: str, knobs: Optional[Knobs] = None) -> Policy:
    """The policy or fixed mode called ``name``, or an own policy: ``package.module:Class``, which is imported here.

    Raises:
        BadInput: there is none.
    """
    from edge_offload.mode import parse_mode

    if ":" in name:
        return _imported_policy(name)
    if name in POLICIES:
        policy = POLICIES[name]()
        if knobs is not None and isinstance(policy, _Choosing):
            policy.turn(knobs)
        return policy
    return FixedPolicy(parse_mode(name))


def _imported_policy(name: str) -> Policy:
    module, _, attribute = name.partition(":")
    try:
        policy: Policy = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        remedy = "write package.module:Class, importable here, whose constructor needs no arguments"
        raise BadInput(f"cannot make policy {name!r}: {error}", remedy) from error
    if not callable(getattr(policy, "decide", None)) or not isinstance(getattr(policy, "name", None), str):
        raise BadInput(f"{name!r} is no policy", remedy="give it a name and decide(Situation) -> Decision")
    return policy


@dataclass
class Manager:
    """The policy in force, exchangeable while frames run. Not thread-safe: its owner locks.

    Args:
        policy: decides.
        dry_run: the mode that stays in force, whose reason names the choice of the policy; None: the policy decides.
    """

    policy: Policy
    dry_run: Optional[Mode] = None
    decision: Optional[Decision] = field(default=None, init=False)
    switches: int = field(default=0, init=False)

    def decide(self, situation: Situation) -> Decision:
        """Return the mode for the frame that starts now, and store it as :attr:`decision`."""
        decision = self.policy.decide(situation)
        if self.dry_run is not None:
            sentence = f"dry run: {decision.policy} would choose {decision.mode}: {decision.reason}"
            decision = Decision(self.dry_run, sentence, decision.policy)
        if self.decision is not None and decision.mode is not self.decision.mode:
            self.switches += 1
        self.decision = decision
        return decision
