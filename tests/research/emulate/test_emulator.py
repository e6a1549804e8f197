"""The emulator with real sockets, as a thread and as the command."""

import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import pytest

from edge_offload import records
from edge_offload.errors import BadInput, LinkLost
from edge_offload.link.security.keys import split_address
from edge_offload_research.emulate.control import Control, ControlServer
from edge_offload_research.emulate.emulator import Emulator
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace

PATIENCE_S = 60.0


class Sink:
    """A TCP server that answers each message of 8 bytes of length and so many bytes with one byte."""

    def __init__(self):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.received = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        with sock, sock.makefile("rb") as stream, contextlib.suppress(OSError):
            while True:
                header = stream.read(8)
                if len(header) < 8:
                    return
                size = int.from_bytes(header, "big")
                if len(stream.read(size)) < size:
                    return
                self.received += 8 + size
                sock.sendall(b"k")


@pytest.fixture
def sink():
    server = Sink()
    yield server
    server.listening.close()


@pytest.fixture
def emulator(sink):
    link = Link.of("test", Trace.constant_trace(80 * BYTES_PER_MBIT), 0.0)
    with Emulator("127.0.0.1:0", sink.address, link) as running:
        yield running


def dial(address):
    sock = socket.create_connection(split_address(address), timeout=PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def transfer_s(sock, size, repeat=5, of=min):
    """Least seconds from sending ``size`` bytes to their acknowledgement: a busy machine adds to them."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        sock.sendall(size.to_bytes(8, "big") + bytes(size))
        assert sock.recv(1) == b"k"
        times.append(time.perf_counter() - begin)
    return of(times)


def test_time_goes_with_size_and_against_bandwidth(emulator):
    with dial(emulator.address) as sock:
        fast = transfer_s(sock, 600_000)
        assert transfer_s(sock, 1_200_000) / fast == pytest.approx(2, rel=0.3)
        emulator.set(mbps=20)
        assert transfer_s(sock, 600_000, repeat=3) / fast == pytest.approx(4, rel=0.3)


def test_delay_goes_each_way(emulator):
    with dial(emulator.address) as sock:
        emulator.set(mbps=1000, rtt_s=0.05)
        both = transfer_s(sock, 10, repeat=9)
        emulator.set(rtt_s=0.0, direction="up")
        half = transfer_s(sock, 10, repeat=9)
        assert both / half == pytest.approx(2, rel=0.3)


def test_every_byte_is_counted(emulator, sink):
    with dial(emulator.address) as sock:
        for size in (0, 1, 70_000):
            transfer_s(sock, size, repeat=2)
    assert emulator.stats()["bytes_up"] == sink.received == 2 * (3 * 8 + 70_001)
    assert emulator.stats()["bytes_down"] == 6


def test_many_connections_share_the_link(emulator):
    with dial(emulator.address) as one, dial(emulator.address) as other:
        # one of the two has the link to itself at the end: the least would be that
        single_s = transfer_s(one, 400_000, of=statistics.median)
        times = {}

        def run(name, sock):
            times[name] = transfer_s(sock, 400_000, of=statistics.median)

        threads = [threading.Thread(target=run, args=pair) for pair in (("one", one), ("other", other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert times["one"] / single_s == pytest.approx(2, rel=0.3)
        assert times["other"] / single_s == pytest.approx(2, rel=0.3)


@pytest.mark.process
def test_slow_link_buffers_little(emulator):
    # no hidden queue of seconds: what the sender can push into a dead link is bounded
    emulator.set(mbps=0)
    with dial(emulator.address) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        sock.setblocking(False)
        taken = 0
        idle = 0
        while idle < 20:
            try:
                taken += sock.send(bytes(4096))
                idle = 0
            except BlockingIOError:
                idle += 1
                time.sleep(0.01)
        assert 10_000 < taken < 400_000


def test_blackhole_keeps_what_waits(emulator):
    with dial(emulator.address) as sock:
        transfer_s(sock, 10)
        emulator.cut("blackhole")
        sock.sendall((5).to_bytes(8, "big") + b"hello")
        sock.settimeout(0.3)
        with pytest.raises(socket.timeout):
            sock.recv(1)
        emulator.restore()
        sock.settimeout(PATIENCE_S)
        assert sock.recv(1) == b"k"


def test_reset_and_refuse(emulator):
    for how in ("reset", "refuse"):
        with dial(emulator.address) as sock:
            transfer_s(sock, 10, repeat=1)
            emulator.cut(how)
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
    with pytest.raises(ConnectionResetError), dial(emulator.address) as sock:
        sock.recv(1)
    emulator.restore()
    with dial(emulator.address) as sock:
        transfer_s(sock, 10, repeat=1)


def test_missing_server_resets_the_robot():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        nowhere = f"127.0.0.1:{unused.getsockname()[1]}"
        emulator = Emulator("127.0.0.1:0", nowhere, Link.of("test", Trace.constant_trace(1e6)))
        with emulator, pytest.raises(ConnectionResetError), dial(emulator.address) as sock:
            sock.recv(1)


def test_control_from_outside(emulator):
    server = ControlServer(emulator)
    try:
        with Control(server.address) as control:
            assert control.do("set", mbps=8, rtt_s=0.01)["bytes_per_s_up"] == 1e6
            assert control.do("link", name="wifi_73mbps")["bytes_per_s_down"] == 73 * BYTES_PER_MBIT
            assert control.do("cut", how="blackhole")["cut"] == "blackhole"
            assert control.do("restore")["cut"] == ""
            for wrong in ({"how": "gently"}, {"nonsense": 1}):
                with pytest.raises(BadInput):
                    control.do("cut", **wrong)
            with pytest.raises(BadInput, match="commands: stats"):
                control.do("explode")
            with pytest.raises(BadInput, match="at least 0"):
                control.do("set", mbps=-1)
            records.validate("link_stats", control.do("stats"))
    finally:
        server.close()
    with pytest.raises(LinkLost):
        Control(server.address)
    with pytest.raises(BadInput, match=r"127\.0\.0\.1"):
        ControlServer(emulator, "0.0.0.0:0")


@pytest.mark.process
def test_the_command_relays_reports_and_ends_cleanly(sink, tmp_path):
    stats_file = tmp_path / "stats.json"
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,Mbps\n0,100\n1,200\n")
    command = ["link", "emulate", "--listen", "127.0.0.1:0", "--to", sink.address, "--trace", trace]
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_offload.cli", *map(str, command), "--json-stats", str(stats_file)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        about = json.loads(process.stdout.readline())
        with dial(about["listen"]) as sock:
            transfer_s(sock, 10_000, repeat=3)
        with Control(about["control"]) as control:
            assert control.do("stats")["bytes_up"] == 3 * 10_008
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    written = json.loads(stats_file.read_text())
    records.validate("link_stats", written)
    assert written == json.loads(out)
    assert written["bytes_up"] == 3 * 10_008
    assert written["link"] == "trace"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--link", "5g"], "wifi_93mbps"),
        (["--trace", "none.csv"], "none.csv"),
        (["--rate-mbps", "-1"], "--rate-mbps"),
        (["--rtt-ms", "nan"], "--rtt-ms"),
    ],
)
def test_bad_options_are_one_line(options, complaint, capsys):
    from edge_offload import cli

    try:
        code = cli.main(["link", "emulate", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", *options])
    except SystemExit as ended:  # what the parser itself refuses
        code = ended.code
    assert code in (1, 2)
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_blackhole_answers_no_new_connection_until_it_ends(emulator):
    with dial(emulator.address) as sock:
        transfer_s(sock, 10)
        emulator.cut("blackhole")
        with pytest.raises(socket.timeout):
            socket.create_connection(split_address(emulator.address), 0.3)
        emulator.restore()
        with dial(emulator.address) as late:
            transfer_s(late, 10)
        transfer_s(sock, 10)
