"""Numeric addresses of a host's name, IPv4 first."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, List, Tuple


def socket_addresses(host: str, port: int) -> List[Tuple[int, Tuple[Any, ...]]]:
    """Return family and socket address of each address of ``host``: a name, or a number such as ``fe80::1%eth0``.

    Raises:
        OSError: it has none; the message names it.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        # UnicodeError: a label of the name is empty or longer than DNS allows
        raise OSError(getattr(error, "errno", None), f"{host}: {getattr(error, 'strerror', None) or error}") from error
    addresses = [
        (int(family), address) for family, _, _, _, address in infos if family in (socket.AF_INET, socket.AF_INET6)
    ]
    return sorted(dict.fromkeys(addresses), key=lambda item: item[0] != socket.AF_INET)


def resolve_endpoints(host: str, port: int) -> List[str]:
    """Return ``tcp://number:port`` of each address of ``host``, for ZeroMQ.

    Raises:
        OSError: it has none, or a link-local one does not name its interface.
    """
    endpoints = []
    for family, address in socket_addresses(host, port):
        if family == socket.AF_INET:
            endpoints.append(f"tcp://{address[0]}:{port}")
            continue
        number, scope = str(address[0]).partition("%")[0], address[3]
        if not scope and ipaddress.ip_address(number).is_link_local:
            raise OSError(None, f"{host}: link-local addresses need the interface, such as [{number}%eth0]")
        endpoints.append(f"tcp://[{number}%{scope}]:{port}" if scope else f"tcp://[{number}]:{port}")
    return endpoints
