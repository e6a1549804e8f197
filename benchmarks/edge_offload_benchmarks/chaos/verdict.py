"""What must hold whatever happens: every frame one result, none wrong, none waits for the dead, nothing leaks."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

#: Descriptors, sockets and threads that may be more after the last fault than after the first (one being dialled).
MORE_DESCRIPTORS, MORE_SOCKETS, MORE_THREADS = 4, 2, 2
#: Bytes that a process may have grown between the first fault and the last, however many there were: its own, without
#: pages of files. The first fault that meets an inference half-way is the first to need the code that makes it good
#: (some 4 MB of torch's), whichever fault of the run that is.
MORE_MEMORY = 8 << 20
#: Seconds beyond the local computation from which on a frame has waited.
WAITED_S = 0.005
#: Seconds that a fault may add to the 99th percentile of the local latency: the robot could compute by itself.
FAULT_S = 0.02
#: Seconds until frames go to the server again.
BACK_S = 2.0
#: A transfer that would have taken longer was given up: a longer one is a clock that was believed and had jumped.
ODD_S = 60.0
MAX_HEDGE_RATE = 0.05
#: Figures of which several networks have the sum.
SUMMED = ("frames", "remote", "during", "published", "taken", "superseded", "results", "left")


@dataclass(frozen=True)
class Fault:
    """One repetition of a fault; times are of the machine's monotonic clock.

    Attributes:
        started_s: when harm was done.
        restored_s: when it was made good.
        back_s: when the first remote result after that was there; None if none was.
        usage: later one of ``robot`` and ``server`` (:func:`~edge_offload_benchmarks.chaos.usage.read_usage`), and
            its pid.
    """

    started_s: float
    restored_s: float
    back_s: Optional[float]
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass
class Verdict:
    """Outcome of one scenario: figures, and every failure."""

    scenario: str
    figures: Dict[str, Any] = field(default_factory=dict)
    failures: List[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """True if nothing failed and nothing was skipped."""
        return not self.failures and not self.skipped


def went_remote(frame: Mapping[str, Any]) -> bool:
    """Return whether a frame's result needed the server: a plan for ``split`` may do without."""
    return bool(frame["mode"] != "local" and frame["round_trips"] > 0)


def computed_locally(frame: Mapping[str, Any]) -> bool:
    """Return whether the robot computed a frame without a rival: it takes what the local computation takes."""
    return bool(frame["mode"] == "local" and not frame["hedged"])


def judge_run(
    scenario: str,
    frames: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    local_s: Sequence[float],
    faults: Sequence[Fault],
    outage: bool,
    timing: bool = True,
    in_flight: int = 1,
    allows_s: float = FAULT_S,
) -> Verdict:
    """The verdict on one run.

    Args:
        scenario: the fault that was repeated, by its name.
        frames: the robot's lines, one per result.
        summary: its last line and its exit code.
        local_s: latencies of local computations before the first frame.
        faults: the repetitions of the fault, in order.
        outage: whether nothing could be computed remotely during the fault.
        timing: whether latencies are judged; they are told in any case.
        in_flight: frames that may have been under way at once: so many may wait for the server in vain between two
            results of it in an outage.
        allows_s: what a frame in the fault may cost more than a local one (99th percentile).
    """
    verdict = Verdict(scenario)
    fail = verdict.failures.append
    counts = summary.get("summary")
    if summary.get("exit_code") != 0 or counts is None:
        fail(f"the robot ended with exit code {summary.get('exit_code')}")
        return verdict
    if counts["published"] != counts["taken"] + counts["superseded"]:
        fail(f"{counts['published']} frames published, {counts['taken']} taken and {counts['superseded']} superseded")
    if not counts["taken"] == counts["results"] == len(frames):
        fail(f"{counts['taken']} frames taken, {counts['results']} results counted, {len(frames)} seen")
    doubled = [number for number, count in Counter(frame["frame"] for frame in frames).items() if count > 1]
    if doubled:
        fail(f"{len(doubled)} frames have more than one result (first: {doubled[0]})")
    numbers = [frame["frame"] for frame in frames]
    if numbers != sorted(numbers):
        fail("results are out of order")
    wrong = [frame["frame"] for frame in frames if not frame["equal"]]
    if wrong:
        fail(f"{len(wrong)} results are not bit-equal to the local ones, or within split's tolerance "
             f"(first: frame {wrong[0]})")  # fmt: skip
    # the two clocks are known to each other within an error: a little less than nothing is possible
    odd = [frame["frame"] for frame in frames if not -0.1 <= min(frame["way_s"]) <= max(frame["way_s"]) <= ODD_S]
    if odd:
        fail(f"{len(odd)} frames have an absurd transfer time (first: frame {odd[0]})")
    _judge_leaks(verdict, faults)
    _judge_latencies(verdict, frames, local_s, faults, outage, timing, in_flight, allows_s)
    verdict.figures.update(counts)
    if summary.get("followed"):
        verdict.figures["followed"] = summary["followed"]
    return verdict


def judge_carried(
    verdict: Verdict, result_line: Mapping[str, Any], fps: float, timing: bool = True, still: Sequence[Fault] = ()
) -> None:
    """Check that every accepted frame left once, in order, with a result of it or of an earlier one.

    Args:
        verdict: is added to.
        result_line: the robot's line ``carried``.
        fps: of its camera.
        timing: whether the 99th percentile of the time from a frame to its result has to be within a frame interval.
        still: faults in which the robot did nothing: frames that it held then are judged by all but time.
    """
    fail, departed = verdict.failures.append, result_line["carried"]
    numbers = [frame["frame"] for frame in departed]
    if result_line["offered"] != result_line["taken"] + result_line["superseded"]:
        fail(
            f"{result_line['offered']} frames came, {result_line['taken']} taken and "
            f"{result_line['superseded']} superseded"
        )
    if result_line["taken"] != len(departed):
        fail(f"{result_line['taken']} frames taken, {len(departed)} results left")
    if numbers != sorted(set(numbers)):
        fail("carried results are doubled, or out of order")
    wrong = [frame["frame"] for frame in departed if not frame["equal"]]
    if wrong:
        fail(f"{len(wrong)} carried results are not those of the frame that they name (first: frame {wrong[0]})")
    moving = [frame for frame in departed if not any(_overlaps_fault(frame, fault) for fault in still)]
    late_s = float(np.percentile([frame["late_s"] for frame in moving], 99)) if moving else math.nan
    verdict.figures.update(
        left=len(departed),
        late_p99_s=late_s,
        origins=dict(Counter(frame["origin"] for frame in departed).most_common()),
    )
    if timing and not late_s <= 1 / fps:
        fail(f"p99 from a frame to its result {late_s * 1e3:.0f} ms, above a frame interval")


def _overlaps_fault(frame: Mapping[str, Any], fault: Fault) -> bool:
    """Return whether a frame was on its way when a fault started or ended."""
    start_s, ends = frame["at_s"], frame["at_s"] + frame["late_s"]
    return any(start_s <= when <= ends for when in (fault.started_s, fault.restored_s))


def judge_turns(verdict: Verdict, frames: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> None:
    """Check that networks took turns at the server: never two frames in flight there, none without a turn.

    Args:
        verdict: is added to.
        frames: the lines of all networks.
        tasks: that share the server.
    """
    fail = verdict.failures.append
    turns = sorted((frame["turn"][1], frame["turn"][2], frame["task"]) for frame in frames if frame["turn"])
    both = sum(start_s < ended for (_, ended, _), (start_s, _, _) in zip(turns, turns[1:]))
    given = Counter(task for _, _, task in turns)
    verdict.figures.update(turns={task: given[task] for task in tasks}, two_outstanding=both)
    if both:
        fail(f"{both} times two offloads were outstanding")
    without = sum(frame["round_trips"] > 0 and not frame["turn"] for frame in frames)
    if without:
        fail(f"{without} frames asked the server without a turn")
    unserved = [task for task in tasks if not given[task]]
    if unserved:
        fail(f"{', '.join(unserved)} had no turn")


def merge_verdicts(scenario: str, verdicts: Mapping[str, Verdict]) -> Verdict:
    """The verdict on several networks of one robot, by task: counts are summed up, times are the worst ones."""
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    failures = [f"{task}: {failure}" for task, one in verdicts.items() for failure in one.failures]
    figures_of_each = [one.figures for one in verdicts.values()]
    if not all(figures_of_each):
        return Verdict(scenario, failures=failures)
    # what a process holds is that of all networks, and the faults are those of all
    figures = {**figures_of_each[0]}
    for name, value in figures.items():
        values: List[Any] = [one.get(name) for one in figures_of_each]
        if name in SUMMED:
            figures[name] = sum(values)
        elif name == "hedge_rate":
            many = sum(one["frames"] for one in figures_of_each)
            figures[name] = sum(one[name] * one["frames"] for one in figures_of_each) / max(1, many)
        elif name == "origins":
            origins: Counter[str] = sum((Counter(one) for one in values), Counter())
            figures[name] = dict(origins)
        elif isinstance(value, (int, float)):
            figures[name] = None if None in values else max(values)
    return Verdict(scenario, figures, failures)


def judge_gap(verdict: Verdict, frames: Sequence[Mapping[str, Any]], faults: Sequence[Fault], most_s: float) -> None:
    """Check that after each fault at most ``most_s`` passed without a frame on the server."""
    done = sorted(frame["t"] + frame["total_s"] for frame in frames if went_remote(frame))
    ends = [*(fault.started_s for fault in faults[1:]), max((frame["t"] for frame in frames), default=0.0)]
    gaps = []
    for fault, end in zip(faults, ends):
        at = [fault.started_s, *(each for each in done if fault.started_s < each < end), end]
        gaps.append(max(later - one for one, later in zip(at, at[1:])))
    verdict.figures["gap_s"] = max(gaps)
    if max(gaps) > most_s:
        verdict.failures.append(f"{max(gaps):.1f} s without a result of the server, at most {most_s:g} s")


def _judge_leaks(verdict: Verdict, faults: Sequence[Fault]) -> None:
    """Compare what both processes held after the first fault with what they held after the last."""
    allowed = {
        "descriptors": MORE_DESCRIPTORS,
        "sockets": MORE_SOCKETS,
        "threads": MORE_THREADS,
        "private": MORE_MEMORY,
        "children": 0,
    }
    for side in ("robot", "server"):
        first, last = faults[0].usage[side], faults[-1].usage[side]
        verdict.figures[side] = {name: [first[name], last[name]] for name in (*allowed, "memory")}
        if first.get("pid") != last.get("pid"):
            continue  # a server that was started again holds nothing of what came before
        for name, more in allowed.items():
            if last[name] > first[name] + more:
                verdict.failures.append(
                    f"{name} of the {side} grew from {first[name]} to {last[name]} in {len(faults)} faults"
                )


def _describe_return(frames: Sequence[Mapping[str, Any]], faults: Sequence[Fault]) -> str:
    """Describe the policy's reasons half-way through the longest return."""
    slowest = max(faults, key=lambda fault: (fault.back_s or math.inf) - fault.restored_s)
    middle_s = ((slowest.back_s or math.inf) + slowest.restored_s) / 2
    reasons = [frame["why"] for frame in frames if slowest.restored_s <= frame["t"] <= middle_s]
    return f" (half-way there: {reasons[-1]})" if reasons else ""


def _in_vain(frames: Sequence[Mapping[str, Any]]) -> int:
    """Most frames that waited for the server and were computed locally, with no result of the server in between."""
    most = waited = 0
    for frame in frames:
        if not went_remote(frame):
            # a frame may also ask the server beside the local computation, and wait for the local one alone
            waited += frame["round_trips"] > 0 and frame["total_s"] > frame["compute_s"] + WAITED_S
        else:
            waited = 0
        most = max(most, waited)
    return most


def _judge_latencies(
    verdict: Verdict,
    frames: Sequence[Mapping[str, Any]],
    local_s: Sequence[float],
    faults: Sequence[Fault],
    outage: bool,
    timing: bool,
    in_flight: int,
    allows_s: float,
) -> None:
    during = [[frame for frame in frames if fault.started_s <= frame["t"] < fault.restored_s] for fault in faults]
    total_s = [frame["total_s"] for each in during for frame in each]
    # what the local computation itself took in this run, faults included: it shares the processor with them
    local = [frame["compute_s"] for frame in frames if computed_locally(frame)]
    local_p99 = float(np.percentile([*local_s, *local], 99))
    remote = [frame for frame in frames if went_remote(frame)]
    back = [None if fault.back_s is None else fault.back_s - fault.restored_s for fault in faults]
    figures, fail = verdict.figures, verdict.failures.append
    figures.update(
        faults=len(faults),
        frames=len(frames),
        remote=len(remote),
        hedge_rate=sum(frame["hedged"] for frame in frames) / max(1, len(frames)),
        local_p99_s=local_p99,
        during=len(total_s),
        waited=max(map(_in_vain, during)),
        back_s=None if None in back else max(each for each in back if each is not None),
    )
    if total_s:
        figures["during_p50_s"] = float(np.percentile(total_s, 50))
        figures["during_p99_s"] = float(np.percentile(total_s, 99))
        figures["during_max_s"] = max(total_s)
    if None in back:
        fail("no frame went to the server again")
    if outage and figures["waited"] > in_flight:
        fail(f"{figures['waited']} frames in a row waited in vain for the server")
    if not timing:
        return
    calm = verdict.scenario.split()[0] == "calm"
    if figures["back_s"] is not None and figures["back_s"] > BACK_S:
        fail(f"frames went to the server again only after {figures['back_s']:.2f} s{_describe_return(frames, faults)}")
    if total_s and figures["during_p99_s"] > local_p99 + allows_s:
        fail(f"p99 during the fault {figures['during_p99_s'] * 1e3:.0f} ms, local {local_p99 * 1e3:.0f} ms")
    if calm and figures["hedge_rate"] > MAX_HEDGE_RATE:
        fail(f"{figures['hedge_rate']:.1%} of the frames were hedged without a fault")
    if calm and len(remote) < 0.95 * len(frames):
        fail(f"only {len(remote)} of {len(frames)} frames went to the server")
