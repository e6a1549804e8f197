"""Servers on the local network by multicast DNS: what ``serve --announce`` sends and ``exec --server auto`` looks for.

An announcement is a hint from anybody on the network. It names an address; the keys decide who is believed there.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from typing import Any, List, Optional, Set

from edge_offload import requirements
from edge_offload.errors import BadInput, LinkLost, Unsupported
from edge_offload.link.security.keys import KeyStore, is_loopback, join_address, split_address, trust_remedy
from edge_offload.link.sockets.lookup import socket_addresses

#: Value of ``--server`` that stands for what is announced.
AUTO = "auto"
SERVICE = "_edge-offload._tcp.local."


def announce_server(address: str) -> Any:
    """Announce the server that listens on ``address`` until what is returned is closed.

    On ``0.0.0.0``, and ``::``, it is announced on every IPv4 network of this machine.

    Raises:
        Unsupported: zeroconf is not installed.
        BadInput: the address has no IPv4 number, or no network takes the announcement.
    """
    zeroconf = _import_zeroconf()
    host, port = split_address(address)
    name = f"{socket.gethostname().partition('.')[0]}-{port}"
    try:
        if host in ("0.0.0.0", "::"):
            interfaces = zeroconf.InterfaceChoice.All
            addresses = [number for number in zeroconf.get_all_addresses() if not is_loopback(number)]
        else:
            interfaces = addresses = [str(where[0]) for family, where in socket_addresses(host, port)
                                      if family == socket.AF_INET]  # fmt: skip
        info = zeroconf.ServiceInfo(
            SERVICE, f"{name}.{SERVICE}", port=port, parsed_addresses=addresses, server=f"{name}.local."
        )
        multicast = _open_multicast(zeroconf, interfaces)
        multicast.register_service(info, allow_name_change=True)
    except (OSError, ValueError, RuntimeError, zeroconf.Error) as error:
        cause = f"{address} cannot be announced: {error or type(error).__name__}"
        raise BadInput(cause, remedy="--bind an IPv4 address of this machine, or leave --announce out") from error
    return multicast


def find_servers(keys: KeyStore, timeout_s: float, interfaces: Optional[List[str]] = None) -> str:
    """Look for announced servers whose keys are known; their addresses, separated by commas.

    Args:
        keys: of this robot.
        timeout_s: how long is waited for one of them.
        interfaces: addresses of this machine by which it looks; None: all.

    Raises:
        Unsupported: zeroconf is not installed.
        BadInput: servers are announced, and the key of none of them is known.
        LinkLost: none is announced.
    """
    zeroconf = _import_zeroconf()
    names: queue.Queue[str] = queue.Queue()
    unknown: Set[str] = set()
    ends_s = time.monotonic() + timeout_s
    with contextlib.closing(_open_multicast(zeroconf, interfaces or zeroconf.InterfaceChoice.All)) as multicast:
        browser = zeroconf.ServiceBrowser(multicast, SERVICE, handlers=[lambda name, **_: names.put(name)])
        try:
            while time.monotonic() < ends_s:
                with contextlib.suppress(queue.Empty):
                    name = names.get(timeout=max(0.0, ends_s - time.monotonic()))
                    addresses = _resolve(multicast, name, ends_s)
                    trusted = [address for address in addresses if _is_trusted(keys, address)]
                    if trusted:
                        return ",".join(f"tcp://{address}" for address in trusted)
                    unknown.update(addresses)
        finally:
            browser.cancel()
    if unknown:
        first = min(unknown)
        raise BadInput(f"no key is known for {', '.join(sorted(unknown))}, announced here", remedy=trust_remedy(first))
    raise LinkLost(
        f"no server was announced within {timeout_s:g} s",
        remedy="start it with 'edge-offload serve --announce', or name its address with --server",
    )


def _resolve(multicast: Any, name: str, ends_s: float) -> List[str]:
    info = multicast.get_service_info(SERVICE, name, timeout=max(1.0, 1e3 * (ends_s - time.monotonic())))
    numbers = [] if info is None else info.parsed_addresses()
    return [join_address(number, info.port) for number in numbers if ":" not in number]


def _is_trusted(keys: KeyStore, address: str) -> bool:
    try:
        keys.server_public(address)
    except BadInput:
        return False
    return True


def _open_multicast(zeroconf: Any, interfaces: Any) -> Any:
    return zeroconf.Zeroconf(interfaces=interfaces, ip_version=zeroconf.IPVersion.V4Only)


def _import_zeroconf() -> Any:
    try:
        import zeroconf
    except ImportError:
        raise Unsupported("zeroconf is not installed", remedy=requirements.install("discovery")) from None
    return zeroconf
