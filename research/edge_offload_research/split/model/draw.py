"""A picture of one plan: who does what when, and where the cut runs through the network."""

from __future__ import annotations

import pathlib
from typing import Any, List, Optional, Sequence, Tuple, Union

from edge_offload.split.footprints.registry import Locality
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.plan import Side, SplitPlan
from edge_offload_research.split.model.plan_cost import TIMELINE_ROWS, TimelineSpan, merge_steps, simulate_plan

COLOURS = {"robot": "#1b7f79", "server": "#c4572e", "uplink": "#5b6fb5", "downlink": "#8a6fb5"}
BOTH = "#e3b23c"


def draw_plan(
    plan: SplitPlan, model: CostModel, bandwidth: float, path: Union[str, pathlib.Path], title: str,
    measured: Optional[Tuple[float, Sequence[TimelineSpan]]] = None,
) -> None:  # fmt: skip
    """Write a PNG: the timeline of robot, uplink, server and downlink, and each side's rows of every operator.

    ``measured``: makespan (seconds) and spans as they were, drawn below those that are expected.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    outcome = simulate_plan(plan, model, bandwidth)
    heights = [2, *([2] if measured else []), 3]
    figure, panels = pyplot.subplots(len(heights), 1, figsize=(11, 1.32 * sum(heights)),
                                     gridspec_kw={"height_ratios": heights})  # fmt: skip
    longest = max(outcome.makespan_s, measured[0] if measured else 0.0)
    _draw_timeline(panels[0], outcome.spans, longest)
    if measured:
        panels[0].set_title("expected", fontsize=9, loc="left")
        _draw_timeline(panels[1], measured[1], longest)
        panels[1].set_title(f"measured: {measured[0] * 1e3:.1f} ms", fontsize=9, loc="left")
    _draw_network(panels[-1], plan, model)
    figure.suptitle(f"{title}, {bandwidth / 1e6:.1f} MB/s: {outcome.makespan_s * 1e3:.1f} ms, "
                    f"{outcome.energy_j:.2f} J, {outcome.bytes_up / 1e3:.0f} kB up, "
                    f"{outcome.bytes_down / 1e3:.0f} kB down")  # fmt: skip
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_timeline(axes: Any, spans: Sequence[TimelineSpan], longest_s: float) -> None:
    lanes = list(reversed(TIMELINE_ROWS))
    total = longest_s * 1e3
    for span in spans:
        start, length = span.start_s * 1e3, (span.end_s - span.start_s) * 1e3
        row = lanes.index(span.row)
        axes.barh(row, max(length, total / 800), left=start, height=0.66, color=COLOURS[span.row], edgecolor="white",
                  linewidth=0.5)  # fmt: skip
        if length > total / 7:
            axes.text(start + length / 2, row, span.label, ha="center", va="center", fontsize=7, color="white",
                      clip_on=True)  # fmt: skip
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_xlim(0, total * 1.01)
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_network(axes: Any, plan: SplitPlan, model: CostModel) -> None:
    """Fraction of the rows along y, operators along x; sent values as ticks below."""
    hulls = {side: merge_steps(plan.steps_of(side)) for side in Side}
    shown = [index for index, entry in enumerate(model.located.operators)
             if entry.kind is not Locality.FREE and any(index in hulls[side] for side in Side)]  # fmt: skip
    column = {index: position for position, index in enumerate(shown)}
    for index, x in column.items():
        length = model.located.operators[index].length
        pieces = [(side, hulls[side].get(index, (0, 0))) for side in Side]
        for side, (low, high) in pieces:
            if low < high:
                axes.bar(x, (high - low) / length, bottom=low / length, width=1.0, color=COLOURS[side.value])
        (one, two) = (rows for _, rows in pieces)
        low, high = max(one[0], two[0]), min(one[1], two[1])
        if low < high:
            axes.bar(x, (high - low) / length, bottom=low / length, width=1.0, color=BOTH)
    for place, sender in _list_crossings(plan, model, column):
        axes.plot(place, -0.05, marker="^" if sender is Side.ROBOT else "v", markersize=6, clip_on=False,
                  color=COLOURS["uplink" if sender is Side.ROBOT else "downlink"])  # fmt: skip
    axes.set_xlim(-1, len(shown))
    axes.set_ylim(1.0, -0.1)
    axes.set_xlabel("operators that run, in program order (▲ sent up, ▼ sent down, behind the operator)")
    axes.set_ylabel("rows")
    from matplotlib.patches import Patch

    handles = [Patch(color=COLOURS["robot"], label="robot"), Patch(color=COLOURS["server"], label="server"),
               Patch(color=BOTH, label="both")]  # fmt: skip
    axes.legend(handles=handles, loc="lower right", fontsize=8, ncol=3, framealpha=0.9)
    axes.spines[["top", "right"]].set_visible(False)


def _list_crossings(plan: SplitPlan, model: CostModel, column: Any) -> List[Tuple[float, Side]]:
    crossings = []
    for transfer in plan.transfers:
        maker = model.located.producer.get(transfer.value)
        crossings.append((-0.7 if maker is None else column.get(maker, 0) + 0.4, transfer.sender))
    return crossings
