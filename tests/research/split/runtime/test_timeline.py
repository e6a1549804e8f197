"""A plan that is run here: both halves for real over an emulated link, and what each side did when."""

from __future__ import annotations

import pytest
import torch

from edge_offload.errors import RemoteError
from edge_offload.split.model.complete import complete_plan
from edge_offload.split.model.cost import LinkCosts
from edge_offload.split.model.plan import Side
from edge_offload.split.runtime.tables import compile_ready
from edge_offload.split.runtime.tracing import trace_module
from edge_offload_research.split.model.plan_cost import TimelineSpan
from edge_offload_research.split.runtime import timeline
from edge_offload_research.split.runtime.timeline import Timeline, measure_timeline

NET = torch.nn.Sequential(*[torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)]).eval()


@pytest.fixture(scope="module")
def divided():
    x = torch.randn(1, 8, 64, 64)
    network = trace_module("net", NET, [x])
    local = [index for index, entry in enumerate(network.located.operators) if entry.local is not None]
    plan = complete_plan(network.located, dict.fromkeys(local, (0, 40)), dict.fromkeys(local, (40, 64)))
    return network, compile_ready(plan, network.located, plan.sequence)


@pytest.mark.process
def test_a_link_of_half_the_rate_needs_twice_the_time_and_both_sides_compute(divided):
    network, plan = divided
    uplink_s = {}
    for rate in (2e6, 1e6):
        line, seconds = measure_timeline(plan, network, network.inputs, rate, LinkCosts(latency_s=0.0), repeats=1)
        assert seconds == [line.makespan_s]
        assert {span.row for span in line.spans} == {"robot", "uplink", "server", "downlink"}
        assert all(0 <= span.start_s <= span.end_s <= line.makespan_s for span in line.spans)
        uplink_s[rate] = sum(span.end_s - span.start_s for span in line.spans if span.row == "uplink")
    assert uplink_s[1e6] == pytest.approx(2 * uplink_s[2e6], rel=0.2)


def test_shares_of_a_timeline():
    line = Timeline(
        1.0,
        (
            TimelineSpan("robot", 0.0, 0.6, ""),
            TimelineSpan("server", 0.5, 0.7, ""),
            TimelineSpan("uplink", 0.0, 0.5, ""),
        ),
    )
    assert line.overlap_ratio == pytest.approx(0.1)
    assert [line.idle_share(side) for side in Side] == pytest.approx([0.4, 0.8])


@pytest.mark.process
def test_a_plan_that_does_not_end_is_an_error(divided, monkeypatch):
    network, plan = divided
    monkeypatch.setattr(timeline, "MOST_S", 0.2)
    with pytest.raises(RemoteError, match="came to no end"):
        measure_timeline(plan, network, network.inputs, 1e3, LinkCosts(), repeats=1)
