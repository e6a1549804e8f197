"""One direction of an emulated link, in virtual time: exact to the microsecond."""

import math

import pytest

from edge_offload_research.emulate.lane import Flow, Lane
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Trace


class Bench:
    """Feeds flows as a greedy sender would, and notes when each byte comes out."""

    def __init__(self, lane, start=0.0, late=0.0):
        self.lane = lane
        self.now = start
        self.late = late  # the emulator's thread wakes up so much too late

    def transfer(self, sizes):
        """Time at which each flow has delivered its bytes."""
        flows = [Flow() for _ in sizes]
        for flow in flows:
            self.lane.add(flow)
        remaining, delivered, done = list(sizes), [0] * len(sizes), [None] * len(sizes)
        while None in done:
            self.lane.advance_to(self.now)
            for i, flow in enumerate(flows):
                while flow.flying and flow.flying[0][0] <= self.now:
                    delivered[i] += len(flow.flying.popleft()[1])
                if delivered[i] == sizes[i] and done[i] is None:
                    done[i] = self.now
                while remaining[i] and self.lane.free_bytes(flow):
                    size = min(remaining[i], self.lane.free_bytes(flow), self.lane.chunk_size(self.now))
                    self.lane.offer_data(flow, bytes(size), self.now)
                    remaining[i] -= size
            due = self.lane.next_s()
            assert due < math.inf or None not in done
            self.now = max(self.now, due) + self.late
        for flow in flows:
            self.lane.remove(flow)
        return done


def lane(mbps, delay_s=0.0, **options):
    return Lane(Trace.constant_trace(mbps * BYTES_PER_MBIT), delay_s, 0.0, **options)


@pytest.mark.parametrize("mbps", [0.1, 8, 93, 1000])
@pytest.mark.parametrize("size", [1, 1500, 1_000_000])
def test_transfer_lasts_bytes_over_bandwidth_plus_delay(mbps, size):
    (end,) = Bench(lane(mbps, 0.0013)).transfer([size])
    assert end == pytest.approx(size / (mbps * BYTES_PER_MBIT) + 0.0013, rel=1e-6)


@pytest.mark.parametrize("late", [1e-4, 1e-3, 3e-3])
def test_late_wakeups_do_not_stretch_a_transfer(late):
    # 64 KiB of queue last 5.6 ms at 93 Mbps
    (end,) = Bench(lane(93), late=late).transfer([1_000_000])
    assert end == pytest.approx(0.0860, rel=0.05)


def test_one_megabyte_at_93_mbps_is_86_ms():
    (end,) = Bench(lane(93)).transfer([1_000_000])
    assert end == pytest.approx(0.08602, rel=1e-3)


def test_flows_share_in_turns():
    ends = Bench(lane(80)).transfer([500_000, 500_000, 100_000])
    assert ends[0] == pytest.approx(0.11, rel=0.02)
    assert ends[1] == pytest.approx(0.11, rel=0.02)
    assert ends[2] == pytest.approx(0.03, rel=0.05), "a third of the bandwidth while three are active"


def test_idle_time_gives_no_credit():
    bench = Bench(lane(8))
    bench.transfer([1000])
    bench.now = 100.0
    (end,) = bench.transfer([1_000_000])
    assert end == pytest.approx(101.0, rel=1e-4)


def test_outage_holds_everything_and_loses_nothing():
    trace = Trace((0.0, 1.0, 3.0), (1e6, 0.0, 1e6), 4.0)
    (end,) = Bench(Lane(trace, 0.01, 0.0)).transfer([1_500_000])
    assert end == pytest.approx(3.51, rel=1e-4)


def test_queue_is_bounded():
    slow = lane(1, queue_bytes=10_000)
    flow = Flow()
    slow.add(flow)
    offered = 0
    while slow.free_bytes(flow):
        size = min(slow.free_bytes(flow), 1448)
        slow.offer_data(flow, bytes(size), 0.0)
        offered += size
    assert offered <= 10_000 + 1448


def test_change_of_bandwidth_applies_at_once():
    bench = Bench(lane(8))
    flow = Flow()
    bench.lane.add(flow)
    bench.lane.offer_data(flow, bytes(10_000), 0.0)  # 10 ms
    bench.lane.set(0.005, Trace.constant_trace(500_000.0))
    bench.lane.advance_to(0.0149)
    assert not flow.flying
    bench.lane.advance_to(0.01501)
    assert flow.flying


def test_shrinking_delay_does_not_reorder():
    link, flow = lane(800, 0.1), Flow()
    link.add(flow)
    link.offer_data(flow, b"a" * 100, 0.0)
    link.advance_to(0.001)
    link.set(0.001, delay_s=0.0)
    link.offer_data(flow, b"b" * 100, 0.001)
    link.advance_to(0.01)
    (first, _), (second, _) = flow.flying
    assert first <= second


def test_pause_stops_the_clock_of_service():
    link, flow = lane(8), Flow()
    link.add(flow)
    link.offer_data(flow, bytes(10_000), 0.0)
    link.set_paused(0.004, True)
    assert link.next_s() == math.inf
    assert link.current_rate(0.005) == 0.0
    link.set_paused(5.0, False)
    link.advance_to(5.0059)
    assert not flow.flying
    link.advance_to(5.0061)
    assert flow.flying


def test_stalls_are_repeatable_and_last_as_specified():
    def run():
        link = lane(93, seed=3)
        link.stall_fraction, link.stall_s = 0.1, 0.02
        return Bench(link).transfer([1_000_000])[0]

    assert run() == run()
    chunks = 1_000_000 / lane(93).chunk_size(0.0)
    assert run() == pytest.approx(0.086 + 0.1 * chunks * 0.02, rel=0.5)
