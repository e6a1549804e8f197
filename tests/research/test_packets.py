"""The packet emulator's model with an injected clock: bandwidth, queue, losses, jitter, order, addresses."""

import statistics
import struct

import pytest

from edge_offload.errors import BadInput
from edge_offload.native import recipe
from edge_offload_research.emulate.trace import Trace, named_link, named_links
from edge_offload_research.testbed.packets import impairments
from edge_offload_research.testbed.packets.forwarder import DOWN, UP, Forwarder
from edge_offload_research.testbed.packets.impairments import Impairments
from edge_offload_research.testbed.packets.network import FLIP, Network

FULL = bytes(1500)
RATE = 1e6
EACH_S = 1448 / RATE


@pytest.fixture
def make():
    if recipe.compiler("C") is None:
        pytest.skip("no C compiler")
    made = []

    def forwarder(terms=None, delay_s=0.0, trace=None, seed=0):
        one = Forwarder(0.0, seed)
        made.append(one)
        for direction in (UP, DOWN):
            one.set(direction, 0.0, delay_s, terms or Impairments(), trace or Trace.constant_trace(RATE))
        return one

    yield forwarder
    for one in made:
        one.close()


def drain(forwarder, until=1e6, direction=UP):
    """(due, packet) of everything that comes out by ``until``."""
    packets = []
    while True:
        taken = forwarder.take(direction, until)
        if taken is None:
            return packets
        packets.append(taken)


def test_packets_follow_one_another_at_the_rate_and_arrive_after_the_delay(make):
    forwarder = make(delay_s=0.01)
    for _ in range(20):
        forwarder.offer(UP, 1.0, FULL)
    assert forwarder.take(UP, 1.0 + EACH_S + 0.0099) is None
    dues = [due for due, _ in drain(forwarder)]
    assert dues == pytest.approx([1.0 + 0.01 + (i + 1) * EACH_S for i in range(20)])


def test_a_full_queue_drops_what_comes_last(make):
    forwarder = make(Impairments(queue_bytes=15_000))
    for i in range(30):
        forwarder.offer(UP, 0.0, struct.pack("!I", i) + bytes(1496))
    arrived = [struct.unpack("!I", data[:4])[0] for _, data in drain(forwarder)]
    assert arrived == list(range(10))
    assert forwarder.counts(UP, 1e6)["dropped"] == 20


def test_a_large_queue_delays_instead(make):
    forwarder = make(Impairments(queue_bytes=1 << 20))
    for _ in range(600):
        forwarder.offer(UP, 0.0, FULL)
    assert drain(forwarder)[-1][0] == pytest.approx(600 * EACH_S), "bufferbloat"


def test_the_bandwidth_of_a_trace_holds_for_the_packet_in_service(make):
    forwarder = make(trace=Trace((0.0, 1.0, 2.0), (RATE, 0.0, RATE / 10), 3.0))
    forwarder.offer(UP, 1.0 - EACH_S / 2, FULL)
    ((due, _),) = drain(forwarder)
    assert due == pytest.approx(2.0 + 10 * EACH_S / 2), "half of it before the outage, half of it slowly after"


def test_a_rate_that_changes_holds_for_the_packet_in_service(make):
    forwarder = make(trace=Trace.constant_trace(0.0))
    forwarder.offer(UP, 0.0, FULL)
    assert forwarder.take(UP, 100.0) is None
    forwarder.set(UP, 100.0, 0.0, Impairments(), Trace.constant_trace(RATE))
    assert drain(forwarder)[0][0] == pytest.approx(100.0 + EACH_S)


def test_the_directions_are_independent(make):
    forwarder = make()
    forwarder.set(DOWN, 0.0, 0.0, Impairments(), Trace.constant_trace(10 * RATE))
    for direction in (UP, DOWN):
        for _ in range(10):
            forwarder.offer(direction, 0.0, FULL)
    assert drain(forwarder)[-1][0] == pytest.approx(10 * EACH_S)
    assert drain(forwarder, direction=DOWN)[-1][0] == pytest.approx(EACH_S)


def pattern(forwarder, count=100_000):
    """For each of ``count`` packets whether it arrived."""
    arrived = bytearray(count)
    for i in range(count):
        forwarder.offer(UP, i * 1e-3, struct.pack("!I", i))
        while True:
            taken = forwarder.take(UP, i * 1e-3 + 0.9e-3)
            if taken is None:
                break
            arrived[struct.unpack("!I", taken[1])[0]] = 1
    return arrived


def test_random_losses_are_as_many_as_set_and_the_same_with_the_same_seed(make):
    terms = Impairments(loss=0.03)
    arrived = pattern(make(terms))
    assert 1 - sum(arrived) / len(arrived) == pytest.approx(0.03, rel=0.05)
    assert pattern(make(terms), 2000) == arrived[:2000]
    assert pattern(make(terms, seed=1), 2000) != arrived[:2000]


def test_bursts_have_the_length_and_frequency_of_gilbert_and_elliott(make):
    terms = Impairments(to_bad=0.005, to_good=0.25)
    arrived = pattern(make(terms))
    bursts = [len(burst) for burst in bytes(arrived).split(b"\1") if burst]
    assert terms.mean_loss() == pytest.approx(0.0196, rel=0.01)
    assert sum(bursts) / len(arrived) == pytest.approx(terms.mean_loss(), rel=0.1)
    assert statistics.mean(bursts) == pytest.approx(4.0, rel=0.06)
    assert len(bursts) / len(arrived) == pytest.approx(0.0049, rel=0.06)


def test_jitter_has_mean_and_deviation_as_set_in_order_and_correlated(make):
    forwarder = make(Impairments(jitter_s=0.004), 0.02, Trace.constant_trace(1e9))
    late = []
    for i in range(15_000):
        forwarder.offer(UP, i * 2e-3, struct.pack("!I", i))
    for due, data in drain(forwarder):
        late.append(due - struct.unpack("!I", data)[0] * 2e-3)
    assert statistics.mean(late) == pytest.approx(0.02, rel=0.03)
    assert statistics.pstdev(late) == pytest.approx(0.004, rel=0.03)
    assert max(late) - 0.02 > 1.5 * (0.02 - min(late)), "skewed to late"
    neighbours = [a - b for a, b in zip(late, late[1:])]
    assert statistics.pstdev(neighbours) < 0.3 * 0.004, "the delay wanders, it does not jump"


def test_some_packets_are_overtaken_or_duplicated(make):
    forwarder = make(Impairments(reorder=0.1, reorder_s=0.05, duplicate=0.05), 0.01, Trace.constant_trace(1e9))
    for i in range(4000):
        forwarder.offer(UP, i * 1e-3, struct.pack("!I", i))
    arrived = [struct.unpack("!I", data)[0] for _, data in drain(forwarder)]
    overtaken = sum(1 for before, after in zip(arrived, arrived[1:]) if after < before)
    assert set(arrived) == set(range(4000)), "nothing is lost"
    assert len(arrived) / 4000 == pytest.approx(1.05, abs=0.02)
    assert overtaken / 4000 == pytest.approx(0.1, abs=0.02)


def test_outages_lose_everything_for_their_time(make):
    forwarder = make(Impairments(outage_every_s=1.0, outage_s=0.2))
    arrived = pattern(forwarder, 3000)
    assert [i for i in range(3000) if not arrived[i]] == pytest.approx(
        [i for i in range(3000) if i % 1000 >= 800], abs=1
    )
    forwarder.blackhole(True)
    forwarder.offer(UP, 10.0, FULL)
    assert drain(forwarder) == []


def test_as_many_packets_as_ordered_have_other_bits_or_come_twice(make):
    forwarder = make()
    forwarder.spoil(UP, corrupt=2, repeat=3)
    for _ in range(6):
        forwarder.offer(UP, 1.0, FULL)
    arrived = [packet for _, packet in drain(forwarder)]
    assert len(arrived) == 6 + 3
    assert [packet == FULL for packet in arrived] == 4 * [False] + 5 * [True], "the first two, twice each"


def checksum(data):
    """Zero if the checksum within is right."""
    numbers = struct.unpack(f"!{len(data) // 2}H", data)
    total = sum(numbers)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp_packet(source, target, sport, dport):
    from socket import inet_aton

    segment = bytearray(struct.pack("!HHIIBBHHH", sport, dport, 7, 9, 5 << 4, 16, 1000, 0, 0) + b"payload!")
    pseudo = inet_aton(source) + inet_aton(target) + struct.pack("!BBH", 0, 6, len(segment))
    segment[16:18] = struct.pack("!H", checksum(pseudo + bytes(segment)))
    head = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 1, 0, 64, 6, 0))
    head += inet_aton(source) + inet_aton(target)
    head[10:12] = struct.pack("!H", checksum(bytes(head)))
    return bytes(head + segment)


@pytest.mark.parametrize("port", [5700, 5701, 65535])
def test_the_server_sees_another_robot_and_checksums_stay_right(make, port):
    forwarder = make()
    forwarder.translate("127.77.0.1", ("127.77.1.2", 5701), ("127.0.0.1", port), FLIP)
    renamed = forwarder.rename(UP, tcp_packet("127.77.0.1", "127.77.1.2", 40000, 5701))
    assert renamed == tcp_packet("127.77.1.1", "127.0.0.1", 40000, port)
    back = forwarder.rename(DOWN, tcp_packet("127.0.0.1", "127.77.1.1", port, 40000))
    assert back == tcp_packet("127.77.1.2", "127.77.0.1", 5701, 40000)


def test_packets_of_an_address_that_the_robot_no_longer_has_are_lost(make):
    forwarder = make()
    forwarder.translate("127.77.0.3", ("127.77.1.2", 5701), ("127.0.0.1", 5700), FLIP)
    assert forwarder.rename(UP, tcp_packet("127.77.0.1", "127.77.1.2", 40000, 5701)) is None
    assert forwarder.rename(DOWN, tcp_packet("127.0.0.1", "127.77.1.1", 5700, 40000)) is None
    assert forwarder.rename(UP, b"\x60" + bytes(39)) is None, "IPv6 has no way"
    packet = tcp_packet("127.77.0.3", "127.77.1.2", 40000, 5701)
    assert all(forwarder.rename(UP, packet[:size]) is None for size in range(20))
    assert all(len(forwarder.rename(UP, packet[:size])) == size for size in range(20, len(packet))), "cut short"


def test_impairments_by_name():
    pair = impairments.change_impairments((Impairments(), Impairments()), {"loss": 0.01, "up.jitter_s": 0.002})
    assert pair == (Impairments(loss=0.01, jitter_s=0.002), Impairments(loss=0.01))
    for wrong in ({"losses": 1}, {"side.loss": 0.1}, {"loss": 1.5}, {"loss": "much"}, {"queue_bytes": 100}):
        with pytest.raises(BadInput):
            impairments.change_impairments(pair, wrong)
    with pytest.raises(BadInput, match="jitter of 5 ms needs"):
        Impairments(jitter_s=0.005).check(0.001)


def test_every_named_link_has_room_for_its_jitter():
    for name in named_links():
        link = named_link(name)
        for terms, delay_s in zip(impairments.of_link(link), (link.up_delay_s, link.down_delay_s)):
            terms.check(delay_s)


def test_an_address_that_cannot_lead_to_an_emulated_link_is_refused():
    for wrong in ("127.0.0.1", "10.77.1.2", "127.77.2.2", "somewhere"):
        with pytest.raises(BadInput, match="such as 127"):
            Network(wrong)
