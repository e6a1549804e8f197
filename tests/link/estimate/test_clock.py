"""The peer's clock: the truth always lies within the stated error, whatever the queues do."""

import math
import random

import pytest

from edge_offload.link.estimate.clock import WARN_S, ClockReading, PeerClock

PATIENCE_S = 60.0


def exchange(clock, now, offset, up, down, think=0.0, wall=None):
    """One ping at ``now`` with these one-way times; returns when it ended."""
    t4 = now + up + think + down
    assert clock.add_sample(now, now + up + offset, now + up + think + offset, t4, wall)
    return t4


def test_truth_lies_within_the_bound_under_asymmetric_queues_and_drift():
    rng = random.Random(1)
    clock, now = PeerClock(), 100.0
    for i in range(400):
        drift = 1e-4
        offset = -5000.0 + drift * now
        now = exchange(clock, now, offset, 0.0013 + rng.expovariate(100), 0.0013 + rng.expovariate(1000)) + 0.25
        truth = -5000.0 + drift * now
        reading = clock.reading
        assert abs(reading.offset_s - truth) <= reading.error_s + 0.25 * 3e-4 + 1e-9
        if i > 40:
            assert reading.error_s < 0.01
    assert clock.reading.steps == 0
    assert clock.reading.rtt_s == pytest.approx(0.0026, abs=0.01)


def test_one_short_round_trip_outweighs_many_long_ones():
    clock, now = PeerClock(), 0.0
    for _ in range(5):
        now = exchange(clock, now, 7.0, 0.2, 0.001) + 0.25
    assert clock.reading.error_s > 0.09
    now = exchange(clock, now, 7.0, 0.001, 0.001)
    assert clock.reading.error_s <= 0.0011
    assert clock.reading.offset_s == pytest.approx(7.0, abs=0.0011)


def test_clock_step_is_noticed_and_believed():
    clock, now = PeerClock(), 0.0
    for _ in range(20):
        now = exchange(clock, now, 1.0, 0.001, 0.001) + 0.25
    exchange(clock, now, 6.0, 0.001, 0.001)
    assert clock.reading.steps == 1
    assert clock.reading.offset_s == pytest.approx(6.0, abs=0.0011)


def test_nonsense_teaches_nothing():
    clock = PeerClock()
    assert not clock.add_sample(10.0, 5.0, 6.0, 9.0)  # received before it was sent
    assert not clock.add_sample(10.0, 5.0, 4.0, 11.0)  # answered before it was received
    assert math.isinf(clock.reading.error_s)
    assert "known only" in clock.reading.warning


def test_warning_above_the_limit():
    assert ClockReading(3.0, 0.001, 0.002, 0.01).warning == ""
    assert "known only to 60 ms" in ClockReading(3.0, 0.06, 0.1, 0.0).warning
    assert "wall clocks differ by -80 ms" in ClockReading(3.0, 0.001, 0.002, -0.08).warning
    assert WARN_S == 0.05


@pytest.mark.process
@pytest.mark.parametrize("offset_s", [-1234.5, 0.0, 99.0])
def test_offset_of_a_real_peer(server_process, connect, until, offset_s):
    server = server_process("--clock-offset-s", offset_s)
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    until(lambda: client.clock.error_s < 0.02, "the offset is known")
    reading = client.clock
    # both processes read the same clock of the kernel: the truth is known exactly
    assert abs(reading.offset_s - offset_s) <= reading.error_s
    transfer = client.request("echo", {}, [bytes(10_000)]).result(PATIENCE_S).transfer
    assert transfer.sent_s - transfer.clock_error_s <= transfer.server_received_s
    assert transfer.server_sent_s <= transfer.received_s + transfer.clock_error_s
