"""Messages from the library's own types, and back."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("std_msgs.msg", reason="no ROS messages here")

from std_msgs.msg import Header

from edge_offload.dashboard.messages import convert_latency
from edge_offload.mode import Mode
from edge_offload.nodes.inference.compose import latency_message, report_of
from edge_offload.timing import SHARES, InferenceReport

pytestmark = pytest.mark.ros

STAGES = {"encode": 0.01, "compute_robot": 0.03, "compute_server": 0.05, "decode": 0.01}


def test_a_split_frame_shows_its_overlap_and_the_idle_times():
    message = latency_message(InferenceReport(Mode.SPLIT, "net", 0.1, STAGES, overlap_s=0.02), Header())
    shares = [getattr(message, name) for name in SHARES]
    assert shares == pytest.approx([0.2, 0.5, 0.5])
    assert report_of(message).overlap_s == pytest.approx(0.02)
    record = convert_latency(message, 1.0)
    assert [record[name] for name in SHARES] == pytest.approx(shares)


@pytest.mark.parametrize("mode", [Mode.LOCAL, Mode.SERVER, Mode.REPLAY])
def test_of_other_modes_it_is_not_a_number(mode):
    message = latency_message(InferenceReport(mode, "net", 0.1, STAGES), Header())
    assert all(math.isnan(getattr(message, name)) for name in SHARES)
    assert math.isnan(report_of(message).overlap_s)
    record = convert_latency(message, 1.0)
    assert [record[name] for name in SHARES] == [None] * 3, "what JSON can say"


def test_shares_sum_to_at_most_one():
    stages = dict.fromkeys(STAGES, 0.2)
    message = latency_message(InferenceReport(Mode.SPLIT, "net", 0.1, stages, overlap_s=0.3), Header())
    assert [getattr(message, name) for name in SHARES] == [1.0, 0.0, 0.0]
