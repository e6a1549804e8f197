"""Counts a run outside the network node: published frames, results, and their cost.

Independent of ROS. Frames are identified by their stamps, so re-stamped, dropped and duplicated results are detected.
"""

from __future__ import annotations

import math
import pathlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from edge_offload import records
from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.runtime.carrying import CARRIED, FRESH, LOCAL
from edge_offload.timing import InferenceReport


@dataclass
class Tally:
    """Frames and results that were seen, by stamp in nanoseconds."""

    published: Counter[Any] = field(default_factory=Counter)
    results: Counter[Any] = field(default_factory=Counter)
    latencies: Counter[Any] = field(default_factory=Counter)
    #: Results by where they come from; only fresh ones, unless they are carried along.
    origins: Counter[str] = field(default_factory=Counter)
    delays_s: List[float] = field(default_factory=list)
    reports: List[InferenceReport] = field(default_factory=list)
    energies: List[float] = field(default_factory=list)
    energy_measured: bool = True
    #: What is to be done about different versions of torch on robot and server; empty: nothing.
    two_torches: str = ""
    frames: int = 0
    #: Whether the count is over: only what an answer that is counted lacks is still taken.
    closed: bool = False
    #: Whether answers came while the subscriptions to results and latencies were being connected, one after the other.
    late: bool = False
    _number: Dict[int, int] = field(default_factory=dict)
    _settled: int = 0
    _skipped: int = 0
    #: Number and stamp of the frame that each result, and each latency, belongs to.
    _results: List[Tuple[int, int]] = field(default_factory=list)
    _latencies: List[Tuple[int, int]] = field(default_factory=list)

    def add_frame(self, stamp_ns: int) -> None:
        """A frame was published. A bag that is played again and again brings the same stamps again."""
        answers = max(self.results[stamp_ns], self.latencies[stamp_ns]) if self.closed else 0
        if self.closed and self.published[stamp_ns] >= answers:
            return
        self.published[stamp_ns] += 1
        self.frames += 1
        self._number[stamp_ns] = self.frames
        if self.results[stamp_ns] >= self.published[stamp_ns]:
            # its result was received first
            self._settled = self.frames

    def add_result(self, stamp_ns: int, origin: str = FRESH, delay_s: float = math.nan) -> None:
        """Count a result, published ``delay_s`` after its frame's stamp."""
        if self.closed and self.results[stamp_ns] >= self.latencies[stamp_ns]:
            return
        self._results.append((self._frame_number(stamp_ns), stamp_ns))
        self.origins[origin] += 1
        self.delays_s.append(delay_s)
        self.results[stamp_ns] += 1
        self._settled = max(self._settled, self._number.get(stamp_ns, 0))

    def add_latency(self, stamp_ns: int, report: InferenceReport, energy_j: float, measured: bool) -> None:
        """Count the cost of a frame; energy is NaN when it is not known."""
        if self.closed and (self.carried or self.latencies[stamp_ns] >= self.results[stamp_ns]):
            return
        self._latencies.append((self._frame_number(stamp_ns), stamp_ns))
        self.latencies[stamp_ns] += 1
        self.reports.append(report)
        self.energies.append(energy_j)
        if math.isfinite(energy_j):
            self.energy_measured = self.energy_measured and measured

    def _frame_number(self, stamp_ns: int) -> int:
        """The number of the frame that an answer belongs to; the next one's if it has overtaken its frame."""
        return self._number.get(stamp_ns, self.frames + 1)

    @property
    def carried(self) -> bool:
        """Tell whether results are carried along: every frame has one, and inferences count separately."""
        return any(self.origins[origin] for origin in (CARRIED, LOCAL))

    @property
    def settled(self) -> int:
        """Frames published up to the newest that has a result: what came later may still be under way."""
        return max(0, self._settled - self._skipped)

    @property
    def complete(self) -> int:
        """Frames that have a result, and a latency unless results are carried along."""
        return sum((self.results if self.carried else self.results & self.latencies).values())

    def close(self) -> None:
        """Take no more frames, and forget those behind the last whole one of which half an answer is here.

        Frames may be under way at once, and the two topics of an answer do not keep step.
        """
        self.closed = True
        self.drop_early_halves()
        complete = {stamp for stamp, count in self.results.items() if self.carried or count == self.latencies[stamp]}
        last = max((number for number, stamp in self._results if stamp in complete), default=0)
        for number, stamp in self._results[::-1]:
            if number > last and self.results[stamp] > self.latencies[stamp] and not self.carried:
                self._drop_answer(self._results, self.results, (number, stamp), self.delays_s)
        for number, stamp in self._latencies[::-1]:
            if number > last and self.latencies[stamp] > self.results[stamp]:
                self._drop_answer(self._latencies, self.latencies, (number, stamp), self.reports, self.energies)
        self.results, self.latencies = +self.results, +self.latencies
        self._settled = min(max((number for number, _ in self._results), default=0), self.frames)

    def drop_early_halves(self) -> None:
        if not self.late or self.carried:
            return
        while self._latencies and not self.results[self._latencies[0][1]]:
            self._drop_answer(self._latencies, self.latencies, self._latencies[0], self.reports, self.energies)
        while self._results and not self.latencies[self._results[0][1]]:
            self._drop_answer(self._results, self.results, self._results[0], self.delays_s)
        if self._results:
            self._skipped = min(self._results[0][0], self.frames) - 1

    @staticmethod
    def _drop_answer(
        answers: List[Tuple[int, int]], counts: Counter[Any], which: Tuple[int, int], *columns: List[Any]
    ) -> None:
        back = answers[::-1].index(which) + 1
        counts[which[1]] -= 1
        for column in (answers, *columns):
            del column[-back]

    def list_faults(self, final: bool = True) -> List[str]:
        """List what contradicts "every frame taken up gives exactly one result and one latency with its stamp".

        While the run lasts (not ``final``) a frame may have its result and not its latency yet, or the reverse.
        """
        faults = []
        first = min(self.published, default=0)
        answered = {stamp for counter in (self.results, self.latencies) for stamp, count in counter.items() if count}
        # whoever listens from the middle on sees answers to frames that it has not seen
        strange = sorted(stamp for stamp in answered - set(self.published) if stamp > first)
        if strange and final:
            faults.append(f"{len(strange)} stamps of results belong to no frame seen (first: {strange[0]} ns)")
        for name, counter in (("results", self.results), ("latencies", self.latencies)):
            doubled = sorted(stamp for stamp, count in counter.items() if count > max(1, self.published[stamp]))
            if doubled:
                faults.append(f"{len(doubled)} frames have several {name} (first: {doubled[0]} ns)")
        if self.carried:
            without = sorted(stamp for stamp in self.latencies if not self.results[stamp])
            if without and final:
                faults.append(f"{len(without)} frames have a latency, but no result (first: {without[0]} ns)")
            return faults
        unpaired = sorted(stamp for stamp in answered if self.results[stamp] != self.latencies[stamp])
        if unpaired and final:
            faults.append(f"{len(unpaired)} frames have a result or a latency, but not both (first: {unpaired[0]} ns)")
        return faults

    def summarise_run(self, link: str = "", overlay: Optional[List[str]] = None) -> Dict[str, Any]:
        """The record ``run`` of the schema.

        Raises:
            BadInput: there was no result.
        """
        if not self.reports:
            raise BadInput("no frame got a result", remedy="the first error above names the cause")
        energies = [energy for energy in self.energies if math.isfinite(energy)]
        modes = Counter(report.mode for report in self.reports)
        mode: Mode = modes.most_common(1)[0][0]
        count = len(self.reports)
        answers = self.results if self.carried else self.latencies
        taken = sum(answers.values())
        matched = sum((answers & self.published).values())
        record: Dict[str, Any] = {
            "frames_in": taken,
            "frames_published": self.settled + taken - matched,  # frames of before we listened may be answered
            "frames_superseded": max(0, self.settled - matched),
            "results_out": sum(self.results.values()),
            "model": self.reports[-1].model,
            "mode": mode.value,
            "frames_by_mode": {mode.value: number for mode, number in modes.most_common()},
            "by_mode": {
                mode.value: _mean_cost([r for r in self.reports if r.mode is mode]) for mode, _ in modes.most_common()
            },
            "latency_s": records.latency_summary([report.total_s for report in self.reports]),
            "bytes_up": sum(report.bytes_up for report in self.reports) / count,
            "bytes_down": sum(report.bytes_down for report in self.reports) / count,
            "round_trips": sum(report.round_trips for report in self.reports) / count,
            "energy_j": sum(energies) / len(energies) if energies else None,
            "robot_slowdown": max(1.0, *(report.emulated_slowdown for report in self.reports), 1.0),
        }
        measured = "measured" if self.energy_measured else "model"
        record["energy_source"] = measured if energies else "unknown"
        if self.carried:
            record["inferences"] = count
            record["results_by_origin"] = dict(self.origins.most_common())
            delays = [delay for delay in self.delays_s if math.isfinite(delay) and delay >= 0]
            if delays:
                record["delay_s"] = records.latency_summary(delays)
        if link:
            record["link"] = link
        if self.two_torches:
            record["two_torches"] = self.two_torches
        if overlay:
            record["overlay"] = overlay
        return record


class Tallies:
    """Counts of a run, camera by camera.

    Args:
        cameras: their names; one without a name where there is but one.

    Attributes:
        of: the count of each camera.
        two_torches: as that of :class:`Tally`.
    """

    def __init__(self, cameras: Sequence[str] = ("",)) -> None:
        self.of = {camera: Tally() for camera in cameras}
        self.two_torches = ""

    def sum_counts(self, what: str) -> int:
        """``frames``, ``settled`` or ``complete`` of all cameras."""
        return sum(getattr(tally, what) for tally in self.of.values())

    @property
    def results(self) -> int:
        return sum(sum(tally.results.values()) for tally in self.of.values())

    @property
    def closed(self) -> bool:
        return all(tally.closed for tally in self.of.values())

    def mark_late(self) -> None:
        """Note that answers came while subscriptions were being connected."""
        for tally in self.of.values():
            tally.late = True

    def drop_early_halves(self) -> None:
        for tally in self.of.values():
            tally.drop_early_halves()

    def close(self) -> None:
        """Take no more frames; see :meth:`Tally.close`."""
        for tally in self.of.values():
            tally.close()

    def list_faults(self, final: bool = True) -> List[str]:
        """List the faults of every :class:`Tally`, with the name of the camera."""
        faults = [(camera, fault) for camera, tally in self.of.items() for fault in tally.list_faults(final)]
        return [f"{camera}: {fault}" if camera else fault for camera, fault in faults]

    def summarise_run(self, link: str = "", overlay: Optional[List[str]] = None) -> Dict[str, Any]:
        """The record ``run``; of several cameras also what each had.

        Raises:
            BadInput: there was no result.
        """
        total = Tally(two_torches=self.two_torches)
        for camera, tally in self.of.items():
            for counts, one in ((total.results, tally.results), (total.latencies, tally.latencies),
                                (total.published, tally.published)):  # fmt: skip
                counts.update({(camera, stamp): count for stamp, count in one.items()})
            total.origins += tally.origins
            total.delays_s += tally.delays_s
            total.reports += tally.reports
            total.energies += tally.energies
            total.energy_measured &= tally.energy_measured
            total._settled += tally.settled
        record = total.summarise_run(link, overlay)
        if len(self.of) > 1:
            record["cameras"] = {camera: self._camera_figures(tally) for camera, tally in self.of.items()}
        return record

    @staticmethod
    def _camera_figures(tally: Tally) -> Dict[str, Any]:
        """Figures of one camera in the record ``run``."""
        figures = {"frames_published": tally.frames, "frames_in": 0, "frames_superseded": 0, "results_out": 0}
        if not tally.reports:
            return figures
        record = tally.summarise_run()
        return {name: record[name] for name in (*figures, "latency_s")}


def _mean_cost(reports: List[InferenceReport]) -> Dict[str, Any]:
    """Costs of frames in one mode: means per frame."""
    count = len(reports)
    return {
        "latency_s": records.latency_summary([report.total_s for report in reports]),
        "bytes_up": sum(report.bytes_up for report in reports) / count,
        "bytes_down": sum(report.bytes_down for report in reports) / count,
        "round_trips": sum(report.round_trips for report in reports) / count,
    }


def _describe_origins(record: Dict[str, Any]) -> str:
    if "inferences" not in record:
        return ""
    origins = ", ".join(f"{origin} {count}" for origin, count in record["results_by_origin"].items())
    delay = record.get("delay_s")
    late = (
        "" if delay is None else f"; p50 {delay['p50'] * 1e3:.0f} ms, p99 {delay['p99'] * 1e3:.0f} ms after the stamp"
    )
    return f" = {origins}, from {record['inferences']} inferences{late}"


def render_summary(record: Dict[str, Any]) -> str:
    """The summary as text for people."""
    latency = record["latency_s"]
    modes = ", ".join(f"{mode} {count}" for mode, count in record["frames_by_mode"].items())
    slowdown = record["robot_slowdown"]
    rows = [
        ("frames", f"{record['frames_published']} published = {record['frames_in']} taken up"
                   f" + {record['frames_superseded']} superseded by newer ones"),
        ("results", f"{record['results_out']}{_describe_origins(record)}"),
        ("model, mode", f"{pathlib.PurePath(record['model']).name}, {modes}"),
        ("latency", f"mean {latency['mean'] * 1e3:.0f} ms, p50 {latency['p50'] * 1e3:.0f} ms,"
                    f" p99 {latency['p99'] * 1e3:.0f} ms"),
        ("per frame", f"{record['bytes_up'] / 1e3:.1f} kB up, {record['bytes_down'] / 1e3:.1f} kB down,"
                      f" {record['round_trips']:.2f} round trips"),
        ("energy", "not known" if record["energy_j"] is None else
                   f"{record['energy_j']:.2f} J per frame ({record.get('energy_source', 'not known')})"),
        ("link", record.get("link", "-")),
        ("robot", f"compute slowed {slowdown:g} times on purpose (emulation)" if slowdown > 1 else "full speed"),
    ]  # fmt: skip
    for camera, figures in record.get("cameras", {}).items():
        median = f", p50 {figures['latency_s']['p50'] * 1e3:.0f} ms" if "latency_s" in figures else ""
        rows.append((camera, f"{figures['results_out']} results of {figures['frames_published']} frames{median}"))
    if "two_torches" in record:
        rows.append(("TORCH", record["two_torches"]))
    rows += [("written", path) for path in record.get("overlay", [])]
    return "\n".join(f"  {name:<12} {text}" for name, text in rows)
