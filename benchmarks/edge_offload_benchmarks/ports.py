"""A port for a server that will be started at it again.

A port that the system picks (port 0) is one of those that it also gives to outgoing connections. While the server is
away, any of these may take it; even a client that dials the server's own address may be given that very port and
connect to itself. Ports below that range are taken by who asks for them alone.
"""

from __future__ import annotations

import pathlib
import random
import socket

from edge_offload.errors import BadInput

LOWEST = 20_000
RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_EPHEMERAL = 32_768
_ATTEMPTS = 200


def lasting_port(host: str = "127.0.0.1") -> int:
    """A free TCP port of ``host`` that outgoing connections are not given.

    Raises:
        BadInput: none of many is free.
    """
    try:
        first = int(RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = _FIRST_EPHEMERAL
    lowest = LOWEST if first > LOWEST + 1000 else 1024
    chooser = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = chooser.randrange(lowest, max(first, lowest + 1000))
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise BadInput(f"none of {_ATTEMPTS} ports of {host} was free", remedy="name one")
