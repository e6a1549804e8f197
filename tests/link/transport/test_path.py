"""A path over which no packet passes is noticed soon; one whose TCP only waits to send again is not given up."""

import ctypes
import os
import pathlib
import select
import socket
import struct
import time

import pytest

from edge_offload.link.sockets.descriptors import ArrivalWatch, Connection, Counters
from edge_offload.link.transport.client import LinkState, Timings
from edge_offload.link.transport.path import Probes, Suspicion, Verdict
from edge_offload.link.transport.redial import Redial
from edge_offload.link.transport.terms import ConnectionLost
from tests.link.conftest import PATIENCE_S

process = pytest.mark.process  # waits for real time
SAMPLE_S = 0.025
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


class FakeProbes:
    """New connections of which the ones in ``lost`` have no answer, and the others after ``rtt_s``."""

    def __init__(self, rtt_s=0.0, lost=(), moved=False):
        self.now, self.has_moved, self.sent = 0.0, moved, []
        self._rtt_s, self._lost = rtt_s, lost

    def send_probe(self):
        self.sent.append(self.now)

    def was_answered(self):
        return any(self.now - at >= self._rtt_s for i, at in enumerate(self.sent) if i not in self._lost)


def verdict_of(probes, rtt_s=0.002, deviation_s=0.0, until_s=2.0):
    """What is decided, and after how long a silence; looks are 25 ms apart."""
    suspicion = Suspicion(probes, Timings().path_s)
    for sample in range(int(until_s / SAMPLE_S)):
        probes.now = sample * SAMPLE_S
        verdict = suspicion.judge_path(probes.now, probes.now, Counters(0, 0, 1, 1, rtt_s, deviation_s))
        if verdict is not Verdict.OPEN:
            return verdict, probes.now
    return Verdict.OPEN, until_s


ALL = range(1000)


@pytest.mark.parametrize(("rtt_s", "deviation_s"), [(0.002, 0.0), (0.07, 0.0), (0.075, 0.01)])
def test_a_dead_path_is_noticed_in_three_tenths_of_a_second(rtt_s, deviation_s):
    verdict, after_s = verdict_of(FakeProbes(lost=ALL), rtt_s, deviation_s)
    assert verdict is Verdict.DEAD
    assert after_s + SAMPLE_S <= 0.3


def test_a_path_that_answers_new_connections_is_alive_however_long_tcp_waits():
    assert verdict_of(FakeProbes(rtt_s=0.002))[0] is Verdict.ALIVE
    assert verdict_of(FakeProbes(rtt_s=0.09), 0.07, 0.01)[0] is Verdict.ALIVE


def test_one_or_two_lost_packets_do_not_make_a_path_dead():
    assert verdict_of(FakeProbes(rtt_s=0.002, lost=[0]))[0] is Verdict.ALIVE
    assert verdict_of(FakeProbes(rtt_s=0.07, lost=[0, 1]), 0.07)[0] is Verdict.ALIVE


def test_a_long_round_trip_is_waited_for():
    assert verdict_of(FakeProbes(rtt_s=0.6), 0.6, 0.02)[0] is Verdict.ALIVE
    probes = FakeProbes(lost=ALL)
    verdict, after_s = verdict_of(probes, 0.6, 0.02)
    assert verdict is Verdict.DEAD
    assert after_s >= 2 * 0.6
    assert len(probes.sent) < 10, "a long wait is no reason for many connections"


def test_another_address_is_seen_at_once():
    assert verdict_of(FakeProbes(lost=ALL, moved=True)) == (Verdict.MOVED, 0.0)


@process
def test_a_probe_is_answered_by_a_listener_and_by_a_refusal_but_not_by_silence():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()) as first:
            probes = Probes(Connection(first.fileno()))
            assert not probes.has_moved
            # the queue of connections that nobody accepts is full: no more of them are answered
            probes.send_probe()
            time.sleep(0.05)
            assert not probes.was_answered()
            listener.accept()[0].close()
            probes.send_probe()
            assert _soon(probes.was_answered)
            probes.close()
            listener.close()
            probes.send_probe()
            assert _soon(probes.was_answered), "a refusal is an answer, too"
            probes.close()
    assert not probes.was_answered()


def test_a_connection_from_another_address_than_the_route_has_moved():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname(), source_address=("127.0.0.9", 0)) as first:
            assert Probes(Connection(first.fileno())).has_moved


def _soon(condition):
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return condition()


class Wire:
    """Has the kernel drop what comes for a server of this process: its connections, and new ones if ``all_of_it``."""

    def __init__(self, address):
        self._port = int(address.rsplit(":", 1)[1])

    def cut(self, all_of_it):
        nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
        program = struct.pack("HxxxxxxP", 1, ctypes.addressof(nothing))
        self.visit_sockets(lambda each: each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program), all_of_it)

    def restore(self):
        self.visit_sockets(lambda each: each.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0), True)

    def visit_sockets(self, act, all_of_it):
        # with the default timeout that rospy sets, a copy makes its original non-blocking: rospy's server would end
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(None)
        try:
            self._visit_each_socket(act, all_of_it)
        finally:
            socket.setdefaulttimeout(before)

    def _visit_each_socket(self, act, all_of_it):
        for name in os.listdir("/proc/self/fd"):
            if not pathlib.Path(f"/proc/self/fd/{name}").is_socket():
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                try:
                    mine = each.family == socket.AF_INET and each.getsockname()[1] == self._port
                    if mine and (all_of_it or not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
                        act(each)
                except OSError:
                    continue


@process
def test_a_path_that_drops_all_packets_is_given_up_long_before_a_silent_server(serve, connect, until_state):
    listener = serve()
    wire = Wire(listener.address)
    client = connect(listener.address)  # would wait for a silent server for half a minute
    client.wait_ready(PATIENCE_S)
    with client.attend():
        wire.cut(all_of_it=True)
        until_state(client, LinkState.LOST)
        assert "no packet passes" in client.cause or "no connection" in client.cause
        wire.restore()
        until_state(client, LinkState.READY)
    assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}


@process
def test_a_silent_connection_over_a_healthy_path_persists(serve, connect):
    listener = serve()
    wire = Wire(listener.address)
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    with client.attend():
        wire.cut(all_of_it=False)
        future = client.request("echo", {"a": 1})
        time.sleep(3 * Timings().path_s)
        wire.restore()
        assert future.result(PATIENCE_S).body == {"a": 1}, "sent again, by the same connection"
    assert client.counters["connections"] == 1


class OneServer:
    """The only server that there is."""

    current, several = "tcp://a:1", False


def test_the_first_attempts_after_a_connection_wait_for_a_few_round_trips():
    redial = Redial(OneServer(), Timings())
    assert redial.connect_s == Timings().connect_s, "of a server never reached nothing is known"
    moved = ConnectionLost("moved", moved=True)
    over = redial.end_attempt(moved, True, 100.0, rtt_s=0.07)
    assert redial.connect_s == pytest.approx(0.21)
    assert over.pause_s == 0.0, "an address that is new is used at once"
    waits = []
    for now in range(101, 105):
        assert redial.end_attempt(ConnectionLost("no answer"), False, float(now), rtt_s=0.07).pause_s > 0
        waits.append(redial.connect_s)
    assert waits == sorted(waits)
    assert waits[-1] == Timings().connect_s


@pytest.fixture
def bbr():
    with socket.socket() as end:
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except OSError as error:
            pytest.skip(f"no BBR, by this kernel or its emulator: {error.strerror}")


def congestion_of(end):
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0]


def test_frames_are_not_paced_before_segments_are_lost_though_the_kernel_would(bbr):
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        Connection(listener.fileno()).avoid_pacing()
        with socket.create_connection(listener.getsockname()) as each, listener.accept()[0] as accepted:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
            Connection(each.fileno()).avoid_pacing()
            assert (congestion_of(each), congestion_of(accepted)) == (b"reno", b"reno")


def test_no_end_of_a_link_begins_with_pacing(serve, connect):
    listener = serve()
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    names = set()
    Wire(listener.address).visit_sockets(lambda each: names.add(congestion_of(each)), True)
    assert names
    assert b"bbr" not in names


@process
def test_arrivals_wake_whoever_watches_though_the_owner_reads_them_at_once():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as far, listener.accept()[0] as owner:
            arrivals, poll = ArrivalWatch(), select.poll()
            arrivals.watch_connection(owner.fileno())
            arrivals.wake_at_data(poll, True)
            assert not poll.poll(20)
            for _ in range(3):
                far.sendall(b"data")
                owner.recv(100)
                assert poll.poll(1e3 * PATIENCE_S)
                arrivals.wake_at_data(poll, True)
            assert not poll.poll(20)
            arrivals.close()


def test_a_connection_that_loses_segments_now_and_then_is_paced_by_what_arrives(bbr):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for losses, spacing_s, steady, paced in ((40, 0.01, True, False), (4, 1.0, False, False), (4, 1.0, True, True)):
            with socket.create_connection(listener.getsockname()) as each:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
                tcp = Connection(each.fileno())
                for number in range(losses):
                    tcp.note_losses(100.0 + spacing_s * number, number + 1, 500, steady)
                assert (congestion_of(each) == b"bbr") is paced
