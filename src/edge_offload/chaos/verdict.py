"""What must hold whatever happens: every frame one result, none wrong, none waits for the dead, nothing leaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

#: Descriptors and threads that may be more at the end than at the beginning (a connection being dialled).
MORE_DESCRIPTORS, MORE_THREADS = 8, 3
#: Bytes that the robot may have grown.
MORE_MEMORY = 48 << 20
#: Seconds that an outage may add to the 99th percentile of the local latency.
OUTAGE_S = 0.02
#: Seconds until frames go to the server again.
BACK_S = 2.0
MAX_HEDGE_RATE = 0.05


@dataclass
class Verdict:
    """What came of one scenario: figures, and everything that did not hold."""

    scenario: str
    figures: Dict[str, Any] = field(default_factory=dict)
    failures: List[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything held."""
        return not self.failures and not self.skipped


def judge(
    scenario: str,
    frames: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    local_s: Sequence[float],
    marks: Mapping[str, float],
    back: Optional[float],
    outage: bool,
    timing: bool = True,
) -> Verdict:
    """The verdict on one run.

    Args:
        frames: the robot's lines, one per result.
        summary: its last line and its exit code.
        local_s: latencies of local computations before the first frame.
        marks: when the fault began and was over.
        back: when the first remote result after that was there.
        outage: whether nothing could be computed remotely during the fault.
        timing: whether latencies are judged; they are told in any case.
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
        fail(f"{len(wrong)} results are not bit-equal to the local ones (first: frame {wrong[0]})")
    before, after = summary["before"], summary["after"]
    for name, more in (("descriptors", MORE_DESCRIPTORS), ("threads", MORE_THREADS), ("memory", MORE_MEMORY)):
        if after[name] > before[name] + more:
            fail(f"{name} grew from {before[name]} to {after[name]}")
    _latencies(verdict, frames, local_s, marks, back, outage, timing)
    verdict.figures.update(counts)
    return verdict


def _latencies(
    verdict: Verdict,
    frames: Sequence[Mapping[str, Any]],
    local_s: Sequence[float],
    marks: Mapping[str, float],
    back: Optional[float],
    outage: bool,
    timing: bool,
) -> None:
    fault, restored = marks["fault"], marks["restored"]
    during = [frame for frame in frames if fault <= frame["t"] < restored]
    # what the local computation itself took in this run, faults included: it shares the processor with them
    local = [frame["compute_s"] for frame in frames if frame["mode"] == "local" and not frame["hedged"]]
    local_p99 = float(np.percentile([*local_s, *local], 99))
    remote = [frame for frame in frames if frame["mode"] == "server"]
    hedged = sum(frame["hedged"] for frame in frames)
    figures = verdict.figures
    figures.update(
        frames=len(frames),
        remote=len(remote),
        hedge_rate=hedged / max(1, len(frames)),
        local_p99_s=local_p99,
        during=len(during),
        back_s=None if back is None else back - restored,
    )
    if during:
        figures["during_p50_s"] = float(np.percentile([frame["total_s"] for frame in during], 50))
        figures["during_p99_s"] = float(np.percentile([frame["total_s"] for frame in during], 99))
        figures["during_max_s"] = max(frame["total_s"] for frame in during)
    if back is None:
        verdict.failures.append("no frame went to the server again")
    if not timing:
        return
    if back is not None and back - restored > BACK_S:
        verdict.failures.append(f"frames went to the server again only after {back - restored:.2f} s")
    if outage and during and figures["during_p99_s"] > local_p99 + OUTAGE_S:
        verdict.failures.append(
            f"p99 during the outage {figures['during_p99_s'] * 1e3:.0f} ms, local {local_p99 * 1e3:.0f} ms"
        )
    if verdict.scenario == "calm" and figures["hedge_rate"] > MAX_HEDGE_RATE:
        verdict.failures.append(f"{figures['hedge_rate']:.1%} of the frames were hedged without a fault")
    if verdict.scenario == "calm" and len(remote) < 0.95 * len(frames):
        verdict.failures.append(f"only {len(remote)} of {len(frames)} frames went to the server")
