"""A server that comes back at its address finds its port free: no outgoing connection was given it."""

from __future__ import annotations

import pathlib
import socket

from edge_offload_benchmarks import ports


def test_the_port_is_free_and_not_one_of_those_that_outgoing_connections_get():
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(50):
        port = ports.lasting_port()
        assert 1024 <= port < first
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_a_port_in_use_is_passed_over(monkeypatch):
    with socket.socket() as other:
        taken = ports.lasting_port()
        other.bind(("127.0.0.1", taken))
        drawn = iter([taken, taken, ports.lasting_port()])
        monkeypatch.setattr(ports.random.SystemRandom, "randrange", lambda self, *bounds: next(drawn))
        assert ports.lasting_port() != taken
        assert not list(drawn)
