"""A robot in virtual time: the real estimator, prober, forecaster and policy over a trace, frame after frame.

Costs of frames are given; what the link makes of them comes from the trace. Fallback, hedging, overdue results, the
watch over remote frames and lost connections behave as in :mod:`edge_offload.runtime.module`. Nothing sleeps.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from edge_offload.link.estimate.estimator import PASSIVE, LinkReading, Transfer
from edge_offload.link.transport.prober import Prober
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.explore import Explorer, worth_joining
from edge_offload.manager.forecast import Forecast, Forecaster
from edge_offload.manager.lateness import FrameLateness, Lateness
from edge_offload.manager.policy import FixedPolicy, Manager, Policy, Situation
from edge_offload.manager.tuning import POLL_S
from edge_offload.mode import Mode
from edge_offload.power.states import StatePowers
from edge_offload.timing import Expected, InferenceReport
from edge_offload_benchmarks.simulation.oracle import OraclePolicy
from edge_offload_benchmarks.simulation.virtual_link import NEVER, TICK_S, VirtualLink
from edge_offload_research.emulate.trace import RTT_S, Trace

if TYPE_CHECKING:
    from edge_offload_benchmarks.simulation.planned_cost import PlannedCost

#: Bytes per second by which a plan is looked up while nothing is known.
FIRST_RATE = 5e6


@dataclass(frozen=True)
class ModeCost:
    """Components of a frame in one mode; durations are samples (seconds), of which one is drawn per frame.

    Attributes:
        robot_s: compute on the robot; for a remote mode coding and decoding.
        server_s: compute on the server, coding included; empty for ``local``.
        bytes_up, bytes_down: on the link, headers included.
        pauses_s: for how long signs of life were overdue at most while the link was well; of a frame each.
    """

    mode: Mode
    robot_s: Sequence[float]
    server_s: Sequence[float] = ()
    bytes_up: Sequence[int] = ()
    bytes_down: int = 0
    pauses_s: Sequence[float] = ()


@dataclass
class Run:
    """Outcome of a run.

    Attributes:
        latencies_s, energies_j: per frame.
        started_s: when each frame began, in seconds of the trace.
        modes: that ran, per frame.
        waited: whether a frame waited for the link in vain.
        remote: frames whose result needed the link (a plan for split may do without).
        switches: of the mode that the policy asked for.
        hedges, vain_hedges: frames with a local rival; those in which the remote result came first all the same.
        faster_remote, chosen_remote: frames for which a remote mode was forecast to be faster; those sent there.
    """

    latencies_s: List[float] = field(default_factory=list)
    energies_j: List[float] = field(default_factory=list)
    started_s: List[float] = field(default_factory=list)
    waited: List[bool] = field(default_factory=list)
    modes: List[Mode] = field(default_factory=list)
    remote: int = 0
    switches: int = 0
    hedges: int = 0
    vain_hedges: int = 0
    faster_remote: int = 0
    chosen_remote: int = 0


class VirtualRobot:
    """Runs frames one after the other over a trace.

    Args:
        costs: what a frame costs in each mode; ``local`` is among them.
        planned: what it costs in mode ``split``, if that is to be chosen, too.
        trace, rtt_s: the link.
        policy: decides per frame.
        deadline_s: of a frame, None for none.
        seed: of what is drawn; the same frame numbers of two runs draw the same.
    """

    def __init__(
        self,
        costs: Sequence[ModeCost],
        trace: Trace,
        policy: Policy,
        rtt_s: float = RTT_S,
        deadline_s: Optional[float] = None,
        seed: int = 0,
        planned: Optional[PlannedCost] = None,
    ) -> None:
        self._costs = {cost.mode: cost for cost in costs}
        self._planned = planned
        self._modes = (*self._costs, *((Mode.SPLIT,) if planned is not None else ()))
        self._best_plan = 0
        self._link = VirtualLink(trace, rtt_s)
        self._prober = Prober(self._link)  # type: ignore[arg-type]
        self._link.estimator.round_trip(0.0, rtt_s)
        self._forecaster = Forecaster(StatePowers(), self._expected)
        self._manager = Manager(policy)
        self._explorer = Explorer()
        self._lateness = Lateness()
        self._drawn_s = [pause_s for cost in costs for pause_s in cost.pauses_s] or [0.0]
        self._watches = not isinstance(policy, (FixedPolicy, OraclePolicy))
        self._deadline_s = deadline_s
        self._seed = seed
        self._frame = 0
        self._overdue_until_s = 0.0
        self._stale_result = False
        self._powers = StatePowers()
        self.result = Run()

    def run(self, seconds: float) -> Run:
        """Frames until ``seconds`` of the trace have passed."""
        # a robot computes once before the first image comes, and opens the model on the server
        local = self._draw(self._costs[Mode.LOCAL])
        warm = InferenceReport(Mode.LOCAL, total_s=local[0], stages_s={"compute_robot": local[0]})
        self._forecaster.learn_report(0.0, warm, self._link.estimator.make_reading(0.0))
        while self._link.now < seconds:
            self._step()
        self.result.switches = self._manager.switches
        return self.result

    def latencies(self, now: float) -> Dict[Mode, float]:
        """Compute the true latency of every mode for a frame that starts now (for the oracle), with the best plan."""
        latencies_s: Dict[Mode, float] = {}
        for mode, cost in self._costs.items():
            robot_s, server_s, size = self._draw(cost)
            if mode is Mode.LOCAL:
                latencies_s[mode] = robot_s
                continue
            transfer = self._link.carry(now + robot_s, size, server_s, cost.bytes_down)
            lost = self._link.lost_within(now, transfer.received_s)
            latencies_s[mode] = NEVER if lost < NEVER else transfer.received_s - now
        if self._planned is not None:
            plans = {number: self._plan_s(number, now) for number in self._planned.all_plans()}
            self._best_plan = min(plans, key=lambda number: plans[number])
            latencies_s[Mode.SPLIT] = plans[self._best_plan]
        return latencies_s

    def _plan_s(self, number: int, now: float) -> float:
        assert self._planned is not None
        if self._planned.is_local(number):
            return self._draw(self._costs[Mode.LOCAL])[0]
        transfer, _ = self._planned.run(number, self._link, now, self._chance())
        return NEVER if self._link.lost_within(now, transfer.received_s) < NEVER else transfer.received_s - now

    def _chance(self) -> random.Random:
        """Make the random source of the frame's costs."""
        return random.Random(hash((self._seed, self._frame)))

    def _expected(self, mode: Mode, reading: LinkReading) -> Optional[Expected]:
        if mode is not Mode.SPLIT or self._planned is None or reading.uplink <= 0:
            return None
        number = self._planned.choose(reading.uplink)
        local, remote = self._planned.is_local(number), self._planned.is_remote(number)
        return Expected(self._planned.predicted_s(reading.uplink), local, remote)

    def _draw(self, cost: ModeCost) -> Tuple[float, float, int]:
        """Robot seconds, server seconds and bytes up of this frame."""
        chance = self._chance()
        robot_s, server_s = chance.choice(cost.robot_s), chance.choice(cost.server_s) if cost.server_s else 0.0
        return robot_s, server_s, chance.choice(cost.bytes_up) if cost.bytes_up else 0

    def _step(self) -> None:
        self._frame += 1
        started_at = self._link.now
        reading = self._link.estimator.make_reading(started_at)
        obstacles = {mode: self._obstacle(mode) for mode in self._modes}
        forecasts = self._forecaster.forecasts(started_at, self._modes, reading, obstacles)
        decision = self._manager.decide(Situation(started_at, forecasts, self._deadline_s))
        self._count_choice(forecasts, decision.mode)
        oracle = isinstance(self._manager.policy, OraclePolicy)
        mode, probe_mode = decision.mode, None
        if not oracle and not isinstance(self._manager.policy, FixedPolicy):
            mode, probe_mode = self._explorer.choose(mode, started_at, forecasts)
        if probe_mode is not None:
            report = self._remote(probe_mode, started_at, probing=True)
        elif mode is Mode.LOCAL and not oracle and not isinstance(self._manager.policy, FixedPolicy):
            report = self._local(started_at, forecasts)
        elif mode is Mode.LOCAL or (obstacles[mode] and not oracle):
            seconds = self._draw(self._costs[Mode.LOCAL])[0]
            report = InferenceReport(Mode.LOCAL, total_s=seconds, stages_s={"compute_robot": seconds})
        else:
            report = self._remote(mode, started_at)
        ended = started_at + report.total_s
        self._link.advance(ended, self._prober)
        if not self._stale_result:
            self._forecaster.learn_report(ended, report, self._link.estimator.make_reading(ended))
        self._stale_result = False
        self.result.started_s.append(started_at)
        self._book(report)

    def _obstacle(self, mode: Mode) -> str:
        if mode is Mode.LOCAL:
            return ""
        if self._link.state is not LinkState.READY:
            return "no server"
        return "the server has not answered" if self._link.now < self._overdue_until_s else ""

    def _count_choice(self, forecasts: Mapping[Mode, Any], mode: Mode) -> None:
        able = {name: f.latency_s for name, f in forecasts.items() if not f.unavailable_reason and f.measured}
        local = able.pop(Mode.LOCAL, NEVER)
        if able and min(able.values()) < local:
            self.result.faster_remote += 1
            self.result.chosen_remote += mode is not Mode.LOCAL

    def _remote(self, mode: Mode, started_at: float, probing: bool = False) -> InferenceReport:
        local_s = self._draw(self._costs[Mode.LOCAL])[0]
        late = self._late(mode, started_at, probing)
        simulated = self._simulate_request(mode, started_at)
        if simulated is None:
            return InferenceReport(mode, total_s=local_s, stages_s={"compute_robot": local_s})
        transfer, stages, lost_s, done_s = simulated
        size, down = transfer.bytes_up, transfer.bytes_down
        coding_s, robot_s = stages["encode"], stages["compute_robot"]
        late_at = NEVER if isinstance(self._manager.policy, OraclePolicy) else late.hedge_at()
        rival_from = min(late_at, lost_s)
        rival_from = min(rival_from, self._watched(late, min(rival_from, done_s)))
        if done_s <= rival_from:
            late.note_result(done_s - started_at)
            return InferenceReport(mode, total_s=done_s - started_at, stages_s=stages, bytes_up=size, round_trips=1)
        hedged = rival_from < lost_s or late_at <= lost_s
        late_s = rival_from - started_at
        self.result.hedges += hedged
        rival_done = rival_from + local_s
        if done_s <= rival_done:
            self.result.vain_hedges += 1
            late.note_result(done_s - started_at)
            self._forecaster.overtaken(done_s, done_s - rival_from)
            stages["compute_robot"] = robot_s + done_s - rival_from
            wasted = rival_done - done_s
            total = done_s - started_at
            return InferenceReport(mode, "", total, stages, size, 0, 1, hedged=True, wasted_s=wasted)
        self._overdue_until_s = min(done_s, lost_s)
        if done_s < NEVER:
            settled = InferenceReport(mode, "", done_s - started_at, dict(stages), size, down, 1)
            self._link.at(done_s, functools.partial(self._settled, late, settled))
        if hedged and not probing:
            self._forecaster.raise_latency(rival_done, mode, rival_done - started_at)
        stages = {
            "encode": coding_s,
            "compute_robot": local_s,
            "uplink": rival_from - started_at - min(coding_s, late_s),
        }
        why = f"{mode}: the server did not answer within {late_s:.3f} s"
        total = rival_done - started_at
        return InferenceReport(Mode.LOCAL, "", total, stages, size, fallback_reason=why, hedged=hedged)

    def _late(self, mode: Mode, now: float, probing: bool) -> FrameLateness:
        """Return the timeouts of a frame that starts now in ``mode``, or ``probing`` a local computation."""
        reading = self._link.estimator.make_reading(now)
        local_s = self._forecaster.forecast(now, Mode.LOCAL, reading).latency_s
        forecast = self._forecaster.forecast(now, mode, reading)
        if probing:
            return self._lateness.limit_probe(forecast, local_s, now)
        return self._lateness.limit_frame(forecast, local_s, self._deadline_s, now, self._watches)

    def _watched(self, late: FrameLateness, until: float) -> float:
        """Return when the link is detected as stopped, NEVER if it is not ``until`` then."""
        watch = late.watch
        if watch is None:
            return NEVER
        chance = random.Random(hash((self._seed, self._frame, 1)))
        pause_s, ends = chance.choice(self._drawn_s), late.started_s + chance.random() * (until - late.started_s)
        while self._link.now + POLL_S < until:
            self._link.advance(self._link.now + POLL_S, self._prober)
            now = self._link.now
            pause_part_s = pause_s - (ends - now) if ends - pause_s <= now < ends else 0.0
            if watch.has_stopped(now, max(pause_part_s, self._link.quiet_s(late.started_s)), *self._link.progress()):
                return now
        watch.longest_s = max(watch.longest_s, pause_s)
        return NEVER

    def _simulate_request(
        self, mode: Mode, started_at: float
    ) -> Optional[Tuple[Transfer, Dict[str, float], float, float]]:
        """A remote attempt; None if its plan makes no use of the link.

        Its transfer, its stages, when the connection is lost, when its result is there.
        """
        coding_s = robot_s = server_s = 0.0
        if mode is Mode.SPLIT:
            assert self._planned is not None
            oracle = isinstance(self._manager.policy, OraclePolicy)
            rate = self._link.estimator.make_reading(started_at).cautious.uplink or FIRST_RATE
            number = self._best_plan if oracle else self._planned.choose(rate)
            if self._planned.is_local(number):
                return None
            transfer, robot_s = self._planned.run(number, self._link, started_at, self._chance())
        else:
            cost = self._costs[mode]
            coding_s, server_s, size = self._draw(cost)
            transfer = self._link.carry(started_at + coding_s, size, server_s, cost.bytes_down)
        lost_s = self._link.lost_within(started_at, transfer.received_s)
        self._link.commit(transfer, PASSIVE)
        stages = {
            "encode": coding_s,
            "uplink": transfer.uplink_s,
            "compute_robot": robot_s,
            "compute_server": server_s,
            "downlink": transfer.downlink_s,
        }
        return transfer, stages, lost_s, NEVER if lost_s < NEVER else transfer.received_s

    def _local(self, started_at: float, forecasts: Mapping[Mode, Forecast]) -> InferenceReport:
        """A frame that is computed on the robot; the server is asked, too, if it comes back meanwhile."""
        seconds = self._draw(self._costs[Mode.LOCAL])[0]
        ends = started_at + seconds
        local_report = InferenceReport(Mode.LOCAL, total_s=seconds, stages_s={"compute_robot": seconds})
        while self._link.now + TICK_S < ends:
            self._link.advance(self._link.now + TICK_S, self._prober)
            now = self._link.now
            obstacles = {mode: self._obstacle(mode) for mode in self._modes}
            news = self._forecaster.forecasts(now, self._modes, self._link.estimator.make_reading(now), obstacles)
            mode = worth_joining(forecasts, news, now - started_at)
            simulated = None if mode is None else self._simulate_request(mode, now)
            if mode is None or simulated is None:
                continue
            transfer, stages, lost_s, done_s = simulated
            self.result.hedges += 1
            late = self._late(mode, now, probing=True)
            settled = InferenceReport(mode, "", done_s - now, dict(stages), transfer.bytes_up, transfer.bytes_down, 1)
            if done_s < ends:
                self._link.at(done_s, functools.partial(self._settled, late, settled))
                stages["compute_robot"] += done_s - started_at
                self._stale_result = True
                return InferenceReport(
                    mode, "", done_s - started_at, stages, transfer.bytes_up, 0, 1, hedged=True, wasted_s=ends - done_s
                )
            self._overdue_until_s = min(done_s, lost_s)
            if done_s < NEVER:
                self._link.at(done_s, functools.partial(self._settled, late, settled))
            return local_report
        return local_report

    def _settled(self, late: FrameLateness, report: InferenceReport) -> None:
        now = self._link.now
        late.note_result(report.total_s)
        self._forecaster.learn_late_report(now, report, self._link.estimator.make_reading(now))

    def _book(self, report: InferenceReport) -> None:
        result, stages, powers = self.result, report.stages_s, self._powers
        result.latencies_s.append(report.total_s)
        result.modes.append(report.mode)
        result.remote += report.round_trips > 0
        result.waited.append(report.mode is Mode.LOCAL and report.hedged and bool(report.fallback_reason))
        compute_s = min(stages["encode"] + stages["compute_robot"] + stages["decode"], report.total_s) + report.wasted_s
        link_s = min(stages["uplink"] + stages["downlink"], report.total_s)
        result.energies_j.append(
            powers.standby * report.total_s
            + (powers.inference - powers.standby) * compute_s
            + (powers.communication - powers.standby) * link_s
        )
