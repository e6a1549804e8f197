"""Policies: which mode the next frame runs in, from what it would cost in each, with a reason in words.

A policy is a small class with a name and ``decide(Situation) -> Decision``; it holds no sockets, clocks or threads, so
a bench can drive it through hours of a trace in seconds (:mod:`edge_offload_benchmarks.experiments.adaptive`).
"""

from __future__ import annotations

import abc
import importlib
import math
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Tuple

from edge_offload.errors import BadInput
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.manager.forecast import Forecast
from edge_offload.mode import AUTO, BRIDGE, BRIDGED, TABLE, Mode, names

#: What ``Decision.policy`` says of a mode that is held, by configuration or because somebody asked for it.
FIXED, SERVICE = "fixed", "service"
#: So many times the margin is reason enough to switch at once.
CLEARLY = 4.0
#: A mode that is better by less than the margin is switched to after so many decisions in a row, ...
LASTING = 12
#: ... in which it is better by so many standard deviations of the difference.
SURE = 1.5
#: Of remote modes of which none is better beyond doubt, this one: the bits are those of the robot, at the least energy.
EQUAL = Mode.REPLAY
#: One that was better beyond doubt and runs is left for that when its gain is less than this share of the doubt, ...
LEFT = 0.25
#: ... and the doubt at most so many times what it would be if both had run as often.
LOOKED = 1.3
#: Modes that a policy chooses among unless it is told others. These two give the same bits and need no preparation;
#: ``split`` has to be profiled and planned first, ``replay`` needs the virtual device, the rest are for comparison.
CANDIDATES = (Mode.LOCAL, Mode.SERVER)
#: The bridge stays while the mode that it stands in for is slower by more than so large a share.
SLOWER = 0.08
#: Why it is not to be chosen otherwise.
BRIDGE_OVER = f"it stood in for {BRIDGED}, which is no slower"


@dataclass(frozen=True)
class Situation:
    """What a policy may know.

    Attributes:
        now_s: monotonic time.
        forecasts: the next frame in every mode that exists here.
        deadline_s: time that the frame has; None if it has no deadline.
        load: of the server, 0 to 1; nan if unknown. What it makes a frame wait is in the forecasts already.
        power_budget_w: mean power that the robot may draw while it computes a frame; inf if there is no bound.
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


def bridged(forecasts: Mapping[Mode, Forecast]) -> Dict[Mode, Forecast]:
    """The same without mode ``server`` where it was only to stand in for ``replay``, which now does as well."""
    found = dict(forecasts)
    replay, bridge = found.get(BRIDGED), found.get(BRIDGE)
    if replay is None or bridge is None or bridge.unavailable_reason or replay.unavailable_reason or not replay.known:
        return found
    if not bridge.known or replay.latency_s <= bridge.latency_s * (1 + SLOWER):
        found[BRIDGE] = replace(bridge, unavailable_reason=BRIDGE_OVER)
    return found


def apart(one: Tuple[Forecast, float], other: Tuple[Forecast, float], link: LinkReading) -> float:
    """Standard deviation of the difference of two costs, as averages; each stands behind the forecast it is made of.

    What is not known of the link is the same for both, and counts as far as they use it differently.
    """
    owns, links = [], []
    for forecast, cost in (one, other):
        scale = cost / forecast.latency_s if forecast.latency_s > 0 else 0.0
        of_link_s = min(_unknown_s(forecast, link), forecast.doubt_s)
        owns.append(scale * math.sqrt(forecast.doubt_s**2 - of_link_s**2))
        links.append(scale * of_link_s)
    return math.hypot(*owns, links[0] - links[1])


def _unknown_s(forecast: Forecast, link: LinkReading) -> float:
    """Standard deviation of the time of a frame's bytes on the link."""
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
    """What can be turned while frames run.

    Attributes:
        margin: share by which another mode must be better before it is switched to, 0 to 1.
        frames: decisions in a row that must favour the same other mode (a mode that cannot run is left at once).
        sigmas: standard deviations that a latency must leave to the deadline.
    """

    margin: float = 0.08
    frames: int = 2
    sigmas: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 10 or not 1 <= self.frames <= 1000 or not 0 <= self.sigmas <= 10:
            raise BadInput(f"{self}: out of range", remedy="margin 0 to 10, frames from 1, sigmas 0 to 10")


class Policy(Protocol):
    """Decides per frame."""

    name: str

    def decide(self, situation: Situation) -> Decision:
        """The mode for the frame that starts now."""


@dataclass
class FixedPolicy:
    """Always the same mode; the runtime falls back to local by itself when it cannot run."""

    mode: Mode
    reason: str = "fixed by configuration"
    name: str = FIXED

    def decide(self, situation: Situation) -> Decision:
        """The configured mode."""
        return Decision(self.mode, self.reason, self.name)


@dataclass
class _Hysteresis:
    """Keeps the mode in force until another one is better by a margin, several decisions in a row."""

    knobs: Knobs
    mode: Optional[Mode] = None
    remote: Optional[Mode] = None
    rival: Optional[Mode] = None
    count: int = 0
    patience: int = 0

    def settle(self, best: Mode, costs: Mapping[Mode, float], doubt: Callable[[Mode, Mode], float]) -> Mode:
        """``best`` has the lowest of ``costs``; the modes that may run now are its keys.

        ``doubt`` of two modes is the standard deviation of the difference of their costs, as averages.
        """
        held = self.mode
        if TABLE[best].needs_link and EQUAL in costs:
            remotely = held is not None and TABLE[held].needs_link
            if self._equal(best, costs, doubt):
                best = EQUAL
                if remotely:
                    self._take(EQUAL)
                    return EQUAL
        if held is None or held not in costs:
            self._take(self._familiar(best, costs))
        elif best is held:
            self.rival, self.count, self.patience = None, 0, 0
        else:
            if self.rival is not best:
                self.rival, self.count, self.patience = best, 0, 0
            gain = costs[held] - costs[best]
            # a mode that has not run for long is tried before it is believed to be a little better
            unsure = doubt(held, best)
            beyond = gain > unsure and gain > costs[held] * self.knobs.margin / (1 + self.knobs.margin)
            self.count = self.count + 1 if beyond else 0
            self.patience = self.patience + 1 if gain > SURE * unsure else 0
            # much better than the margin asks for is not noise, and neither is what lasts
            clearly = costs[best] * (1 + CLEARLY * self.knobs.margin) < costs[held]
            if self.count >= self.knobs.frames or clearly or self.patience >= LASTING:
                self._take(self._familiar(best, costs))
        assert self.mode is not None
        return self.mode

    def _equal(self, best: Mode, costs: Mapping[Mode, float], doubt: Callable[[Mode, Mode], float]) -> bool:
        """Whether :data:`EQUAL` is about as good as ``best``."""
        held = self.mode
        if held is None or held is EQUAL or held not in costs or best not in (held, EQUAL):
            return costs[EQUAL] <= costs[best] + doubt(EQUAL, best)
        # what runs was better beyond doubt; that nobody has looked at the other one for long says nothing against it
        unsure = doubt(EQUAL, held)
        return unsure <= LOOKED * doubt(held, held) and costs[EQUAL] <= costs[held] + LEFT * unsure

    def _familiar(self, best: Mode, costs: Mapping[Mode, float]) -> Mode:
        """After an interruption, the remote mode of before it, if that is about as good as the best."""
        last = self.remote
        if last is None or last is self.mode or last not in costs or not TABLE[best].needs_link:
            return best
        return last if costs[last] <= costs[best] * (1 + self.knobs.margin) else best

    def _take(self, mode: Mode) -> None:
        if TABLE[mode].needs_link:
            self.remote = mode
        self.mode, self.rival, self.count, self.patience = mode, None, 0, 0


class _Choosing(abc.ABC):
    """What the policies that choose have in common: obstacles, modes never tried, the power budget, hysteresis."""

    name = ""

    def __init__(self, knobs: Optional[Knobs] = None) -> None:
        self.knobs = knobs or Knobs()
        self._hysteresis = _Hysteresis(self.knobs)

    def turn(self, knobs: Knobs) -> None:
        """Use other knobs from now on."""
        self.knobs = self._hysteresis.knobs = knobs

    def decide(self, situation: Situation) -> Decision:
        """See :class:`Policy`."""
        able = {mode: forecast for mode, forecast in situation.forecasts.items() if not forecast.unavailable_reason}
        if not able:
            return Decision(Mode.LOCAL, "no other mode can run", self.name)
        for mode, forecast in able.items():
            if not forecast.known:
                why = f"{mode} has not run yet and is tried"
                return Decision(mode, self._words(mode, mode, why, situation), self.name)
        within = {
            mode: forecast
            for mode, forecast in able.items()
            if forecast.energy_j <= situation.power_budget_w * forecast.latency_s
        }
        best, costs, why = self._rank(within or able, situation)
        if math.isfinite(situation.power_budget_w) and all(math.isnan(f.energy_j) for f in able.values()):
            why += "; the power budget cannot be held, because nobody knows what this machine draws"

        def doubt(one: Mode, other: Mode) -> float:
            return apart((able[one], costs[one]), (able[other], costs[other]), situation.link)

        mode = self._hysteresis.settle(best, costs, doubt)
        return Decision(mode, self._words(mode, best, why, situation), self.name)

    @abc.abstractmethod
    def _rank(self, known: Dict[Mode, Forecast], situation: Situation) -> Tuple[Mode, Dict[Mode, float], str]:
        """The best mode, the cost of those that are worth considering, and why."""

    def _in_time(self, known: Mapping[Mode, Forecast], deadline_s: Optional[float]) -> Dict[Mode, Forecast]:
        if deadline_s is None:
            return dict(known)
        sigmas = self.knobs.sigmas
        return {mode: f for mode, f in known.items() if f.latency_s + sigmas * f.error_s <= deadline_s}

    def _words(self, mode: Mode, best: Mode, why: str, situation: Situation) -> str:
        parts: List[str] = []
        if situation.link.uplink > 0 and any(TABLE[name].needs_link for name in situation.forecasts):
            by = f" by {situation.source}" if situation.source else ""
            parts.append(f"{_rate(situation.link)} up{by}")
        for name, forecast in situation.forecasts.items():
            if forecast.unavailable_reason:
                parts.append(f"{name} cannot run ({forecast.unavailable_reason})")
            elif forecast.known:
                parts.append(f"{name} {_span(forecast.latency_s, forecast.error_s)}{_joules(forecast.energy_j)}")
        if not math.isnan(situation.load):
            parts.append(f"server {situation.load:.0%} busy")
        if math.isfinite(situation.power_budget_w):
            parts.append(f"budget {situation.power_budget_w:.1f} W")
        held = "" if mode is best else f"; {best} looks better, but not by enough or not for long enough"
        return f"{why}{': ' if parts else ''}{', '.join(parts)}{held}"


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

    def _rank(self, known: Dict[Mode, Forecast], situation: Situation) -> Tuple[Mode, Dict[Mode, float], str]:
        in_time = self._in_time(known, situation.deadline_s)
        costs = {mode: forecast.latency_s for mode, forecast in (in_time or known).items()}
        best = min(costs, key=lambda mode: costs[mode])
        if situation.deadline_s is not None and not in_time:
            return best, costs, f"no mode is sure to meet the deadline, {best} is expected to finish first"
        return best, costs, f"{best} is expected to finish first"


class EnergyPolicy(_Choosing):
    """The mode that costs the robot the least energy among those that meet the deadline; else the fastest."""

    name = "energy"

    def _rank(self, known: Dict[Mode, Forecast], situation: Situation) -> Tuple[Mode, Dict[Mode, float], str]:
        in_time = self._in_time(known, situation.deadline_s)
        if in_time and all(math.isfinite(forecast.energy_j) for forecast in in_time.values()):
            costs = {mode: forecast.energy_j for mode, forecast in in_time.items()}
            best = min(costs, key=lambda mode: costs[mode])
            when = "" if situation.deadline_s is None else " among those in time"
            return best, costs, f"{best} is expected to take the least energy{when}"
        costs = {mode: forecast.latency_s for mode, forecast in (in_time or known).items()}
        best = min(costs, key=lambda mode: costs[mode])
        if in_time:
            return best, costs, f"energy is not known (no sensor, no power_config), {best} is expected to finish first"
        return best, costs, f"no mode is sure to meet the deadline, {best} is expected to finish first"


@dataclass
class OraclePolicy:
    """Knows what every mode will take, for measuring what the others lose: only a bench can ask it."""

    latencies_s: Callable[[float], Mapping[Mode, float]]
    name: str = "oracle"

    def decide(self, situation: Situation) -> Decision:
        """The mode of the least latency."""
        latencies = self.latencies_s(situation.now_s)
        mode = min(latencies, key=lambda mode: latencies[mode])
        return Decision(mode, f"{mode} will take {latencies[mode] * 1e3:.0f} ms", self.name)


def chooses(policy: str) -> bool:
    """Whether a policy of this name decides by forecasts; a mode that is held does not.

    The name is ``Decision.policy``, or what was asked for: one of :data:`POLICIES` or an own one.
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
        return _own_policy(name)
    if name in POLICIES:
        policy = POLICIES[name]()
        if knobs is not None and isinstance(policy, _Choosing):
            policy.turn(knobs)
        return policy
    return FixedPolicy(parse_mode(name))


def _own_policy(name: str) -> Policy:
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
        dry_run: the mode to keep whatever the policy says; the reason then says what it would have done.
    """

    policy: Policy
    dry_run: Optional[Mode] = None
    decision: Optional[Decision] = field(default=None, init=False)
    switches: int = field(default=0, init=False)

    def decide(self, situation: Situation) -> Decision:
        """The mode for the frame that starts now; remembers it as :attr:`decision`."""
        decision = self.policy.decide(situation)
        if self.dry_run is not None:
            words = f"dry run: {decision.policy} would choose {decision.mode}: {decision.reason}"
            decision = Decision(self.dry_run, words, decision.policy)
        if self.decision is not None and decision.mode is not self.decision.mode:
            self.switches += 1
        self.decision = decision
        return decision
