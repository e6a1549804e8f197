"""Delays of every frame: what a summary says becomes a row, and the bar is the 99th percentile."""

from __future__ import annotations

import pytest

from edge_offload import records
from edge_offload.errors import RemoteError
from edge_offload.mode import Mode
from edge_offload.nodes.monitor.tally import Tally
from edge_offload.timing import InferenceReport
from edge_offload_benchmarks.experiments import every_frame


def summary(delays_s, origin="carried"):
    tally = Tally()
    for number, delay_s in enumerate(delays_s):
        tally.add_frame(number)
        tally.add_result(number, origin, delay_s)
    tally.add_latency(0, InferenceReport(Mode.SERVER, "movenet", 0.2), 0.5, False)
    return tally.summarise_run()


@pytest.mark.parametrize(("late", "met"), [(0, True), (1, True), (4, False)])
def test_one_frame_in_a_hundred_may_be_late(late, met):
    delays = [0.02] * (200 - late) + [0.3] * late
    record = every_frame.judge_rows([every_frame._row_of("patrol", "scene", summary(delays))], 20.0, 0.5)
    records.validate("every_frame_bench", record)
    assert [bar["met"] for bar in record["bars"]] == [met]
    assert record["rows"][0]["results"] == 200


def test_a_run_that_carries_nothing_is_no_answer():
    with pytest.raises(RemoteError, match="nothing was carried"):
        every_frame._row_of("agrnav", "scene", summary([0.02], "fresh"))
