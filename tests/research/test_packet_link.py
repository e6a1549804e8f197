"""A link of packets between two network namespaces, seen by ping and by a TCP connection of the kernel."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from edge_offload.errors import BadInput, Unsupported
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace
from edge_offload_research.testbed.packets import network
from edge_offload_research.testbed.packets.emulator import PacketEmulator
from edge_offload_research.testbed.packets.impairments import Impairments

pytestmark = pytest.mark.process

FAR = "127.77.41.2"
PIPES = {"capture_output": True, "text": True, "check": False, "timeout": 30}
#: Sends 1 MB to the robot, and one line with what it was sent from.
SERVER = """
import socket
with socket.create_server(("127.0.0.1", 5700)) as listening:
    print("ready", flush=True)
    while True:
        sock, peer = listening.accept()
        sock.sendall(peer[0].encode().ljust(16) + bytes(1_000_000))
        sock.close()
"""
ROBOT = f"""
import socket, time
began = time.monotonic()
with socket.create_connection(("{FAR}", 5700), timeout=5) as sock, sock.makefile("rb") as stream:
    data = stream.read()
print(data[:16].decode().strip(), len(data), time.monotonic() - began)
"""


@pytest.fixture
def emulator():
    if shutil.which("ip") is None:
        pytest.skip("needs ip")
    link = Link.of("test", Trace.constant_trace(20 * BYTES_PER_MBIT), 0.03)
    terms = Impairments(loss=0.1)
    try:
        running = PacketEmulator(f"{FAR}:0", "127.0.0.1:5700", link, (terms, Impairments()), namespaces=True)
    except Unsupported as error:
        pytest.skip(f"no link of packets here: {error}")
    with running:
        yield running


def run(emulator, end, *words):
    return subprocess.run([*emulator.network.command_prefix(end), *words], **PIPES).stdout


def test_packets_are_delayed_and_lost_and_connections_end_at_the_server(emulator):
    if shutil.which("ping") is None:
        pytest.skip("needs ping")
    output = run(emulator, "robot", "ping", "-q", "-i", "0.005", "-c", "200", "-W", "1", FAR)
    lost = float(re.search(r"([\d.]+)% packet loss", output).group(1)) / 100
    assert lost == pytest.approx(0.1, abs=0.06)
    assert float(re.search(r"= ([\d.]+)/", output).group(1)) >= 30.0, "no packet is early"
    emulator.impair(loss=0.0)
    command = [*emulator.network.command_prefix("server"), sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            peer, size, seconds = run(emulator, "robot", sys.executable, "-c", ROBOT).split()
            assert (peer, size) == ("127.77.41.1", "1000016")
            assert float(seconds) > 8e6 / 20e6, "no faster than the link"
            emulator.roam()
            assert run(emulator, "robot", sys.executable, "-c", ROBOT).split()[0] == "127.77.41.3"
            emulator.cut("blackhole")
            assert "100% packet loss" in run(emulator, "robot", "ping", "-q", "-c", "1", "-W", "1", FAR)
            emulator.restore()
            assert " 0% packet loss" in run(emulator, "robot", "ping", "-q", "-c", "1", FAR)
        finally:
            server.kill()


#: A server whose connection is reset says so, and a robot that is sent nothing but its own bytes reads them.
ECHO = """
import socket
with socket.create_server(("127.0.0.1", 5700)) as listening:
    print("ready", flush=True)
    while True:
        sock, _ = listening.accept()
        with sock:
            try:
                while (data := sock.recv(65536)):
                    sock.sendall(data)
            except OSError:
                pass
"""
TALK = f"""
import socket, sys
with socket.create_connection(("{FAR}", 5700), timeout=5) as sock:
    sock.sendall(b"x"); sock.recv(1)
    print("connected", flush=True)
    for line in sys.stdin:
        try:
            sock.sendall(line.encode() * 1000)
            got = b""
            while len(got) < 1000 * len(line):
                got += sock.recv(65536) or sys.exit("ended")
            print("same" if got == line.encode() * 1000 else "other", flush=True)
        except ConnectionResetError:
            print("reset", flush=True)
"""


def test_spoilt_packets_change_no_byte_and_a_cut_connection_is_reset(emulator):
    server, robot = (emulator.network.command_prefix(end) for end in ("server", "robot"))
    emulator.impair(loss=0.0)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*server, sys.executable, "-c", ECHO], **pipes) as echo:
        try:
            assert echo.stdout.readline() == "ready\n"
            for how in ("reset", "half_open"):
                with subprocess.Popen([*robot, sys.executable, "-c", TALK], **pipes) as talk:

                    def say(talk=talk):
                        talk.stdin.write("abcdefgh\n")
                        talk.stdin.flush()
                        return talk.stdout.readline()

                    assert talk.stdout.readline() == "connected\n"
                    for spoil in (emulator.corrupt, emulator.replay, lambda _: emulator.stalls(0.1, 0.2)):
                        spoil(3)
                        assert say() == "same\n"
                    emulator.stalls(0.0, 0.0)
                    emulator.cut(how)
                    assert say() == "reset\n"
                    talk.stdin.close()
                emulator.restore()
        finally:
            echo.kill()
    with pytest.raises(BadInput, match="cuts: blackhole"):
        emulator.cut("refuse")


def test_namespaces_and_devices_are_removed_in_the_end(emulator):
    processes = [pathlib.Path("/proc") / emulator.network.command_prefix(end)[-1] for end in network.ENDS]
    assert all(path.exists() for path in processes)
    assert FAR.rpartition(".")[0] not in subprocess.run(["ip", "route", "show", "table", "local"], **PIPES).stdout
    emulator.network.close()
    assert not any(path.exists() for path in processes)


def test_where_devices_are_forbidden_one_line_reports_it_and_the_proxy_runs(monkeypatch, capsys):
    from edge_offload_research.commands import link as command

    monkeypatch.setattr(network, "TUN", "/dev/none")
    args = argparse.Namespace(
        level="packet", listen="127.77.43.2:0", to="127.0.0.1:5700", queue_kib=None, impair=[], seed=0
    )
    with command._make_emulator(args, Link.of("test", Trace.constant_trace(1e6))) as emulator:
        assert emulator.stats()["level"] == "tcp"
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "so a proxy of TCP: packets need /dev/none: No such file or directory; be root" in output
