"""Phase robots of scripts/gpu: which bound fills a device, and what a row's record says of its robots."""

from __future__ import annotations

import pytest

from edge_offload.protocol.promises import PromiseReport
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.settings import Wish, choose_settings
from edge_offload_benchmarks.gpu import robots_load
from edge_offload_benchmarks.gpu.phases import robots

TABLE = (0.012, 0.0144, 0.0168, 0.0192, 0.0216, 0.024, 0.0264, 0.0288)


@pytest.mark.parametrize(("count", "share"), [(16, 0.75), (64, 0.75), (64, 0.97)])
def test_robots_with_the_bound_take_the_share_of_the_device(count, share):
    bound = robots.find_bound(TABLE, robots.find_interval(TABLE, count, share))
    report = PromiseReport(0, robots.SLOPE, up=0.01, down=0.003, usual=0.01)
    wish = Wish(bound, report.slope, robots.INTERVAL_S, report.up, report.down, len(TABLE), report.usual)
    chosen = choose_settings(wish, Latencies(TABLE))
    taken = count / robots.INTERVAL_S / chosen.interval * TABLE[chosen.batch - 1] / chosen.batch
    cameras = count / robots.INTERVAL_S / robots.LEAST_INTERVAL * TABLE[-1] / len(TABLE)
    assert taken == pytest.approx(min(share, cameras), rel=0.02)


def test_latencies_are_those_of_the_last_table_in_the_log():
    log = "batches of a: 1.0, 2.0 ms\nbatches of edge.networks:tiny: 3.00, 4.50, 6.00 ms\n"
    assert robots.read_latencies(log, 2) == (0.003, 0.0045)


def test_a_batch_counts_once_on_the_device_and_refused_frames_are_counted():
    batch = [2, 0.001, 0.0, 0.001, 0.1, 0.001]  # frames, then seconds of up, queue, decode, compute, encode
    robot = {"captured": 10, "refused": 1, "alone": 0, "failed": {"Refused: full": 1}, "refusals": {}, "bound": 0.1}
    served = {"one": {**robot, "seconds": [0.1] * 4, "server": [batch] * 4}}
    served["two"] = {**robot, "seconds": [0.3] * 2, "server": [batch] * 2}
    row = robots_load.summarize_row(served, 2.0, {"joules": 12.0, "server_cores": 1.5})
    assert row["frames_per_s"] == 3.0
    assert row["busy"] == pytest.approx((6 * 0.002 + 3 * 0.1) / 2.0)
    assert (row["least"], row["most"], row["refused"], row["batch"]) == (2, 4, 2, 2.0)
    assert row["jain"] == pytest.approx(0.9)
    assert row["J_per_frame"] == 2.0
    assert row["latency"]["p99_ms"] == pytest.approx(300.0)
