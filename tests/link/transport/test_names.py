"""Servers by name and by IPv6 address: names with several addresses or with IPv6 alone, brackets, scopes, typos."""

import ipaddress
import pathlib
import socket

import pytest

from edge_offload.errors import BadInput
from edge_offload.link.sockets.lookup import resolve_endpoints
from edge_offload.link.transport.client import Timings
from edge_offload.link.transport.fronts import Fronts
from edge_offload.link.transport.replies import LinkState
from edge_offload_research.emulate.emulator import Emulator
from edge_offload_research.emulate.trace import Link, Trace

PATIENCE_S = 60.0


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = [pytest.mark.process, pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")]


@pytest.fixture
def names(monkeypatch):
    """names["gpu"] = ["::1"]: what the resolver says of a name."""
    aliases = {}
    numbers = socket.getaddrinfo

    def resolve_name(host, port, *args, **more):
        answers = [answer for number in aliases.get(host, [host]) for answer in numbers(number, port, *args, **more)]
        family = more.get("family", args[0] if args else 0)
        return [answer for answer in answers if family in (0, answer[0])]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    return aliases


def public(keys):
    """Others can reach the server: its keys are made on purpose, and it knows who may connect."""
    keys.new_pair("server")
    keys.trust_client("robot", keys.ensure_pair("client").public)


def trusted(keys, address):
    keys.trust_server(address, keys.ensure_pair("server").public)
    return address


def test_a_server_whose_name_has_only_an_ipv6_address_is_reached(serve, connect, keys, names):
    names["gpu"] = ["::1"]
    port = serve(bind="tcp://[::1]:0").address.rpartition(":")[2]
    client = connect(trusted(keys, f"gpu:{port}"), hello={"name": "r"})
    assert client.wait_ready(PATIENCE_S) == {"you": {"name": "r"}}
    assert client.address == f"tcp://gpu:{port}"


@pytest.mark.parametrize("addresses", [["::1", "127.0.0.1"], ["127.0.0.1", "::1"]])
@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "tcp://[::1]:0"])
def test_of_a_name_with_several_addresses_the_one_that_answers_is_used(serve, connect, keys, names, addresses, bind):
    names["gpu"] = addresses
    port = serve(bind=bind).address.rpartition(":")[2]
    client = connect(trusted(keys, f"gpu:{port}"), timings=Timings(), hello={"name": "r"})
    assert client.wait_ready(PATIENCE_S) == {"you": {"name": "r"}}


def test_the_addresses_of_a_name_take_turns_until_one_answers(names):
    names["gpu"] = ["::1", "127.0.0.2", "127.0.0.1"]
    fronts = Fronts("gpu:5700", begin=0)
    dialled = [fronts.next_endpoint() for _ in range(4)]
    assert dialled == [
        "tcp://127.0.0.2:5700", "tcp://127.0.0.1:5700", "tcp://[::1]:5700", "tcp://127.0.0.2:5700",
    ]  # fmt: skip
    fronts.mark_connected()
    assert [fronts.next_endpoint() for _ in range(2)] == ["tcp://127.0.0.2:5700", "tcp://127.0.0.1:5700"]


def test_a_name_that_does_not_exist_is_reported(connect, keys, names, until):
    client = connect(trusted(keys, "gpu7.invalid:5700"), timings=Timings())
    until(lambda: "gpu7.invalid: " in client.cause, client.cause)
    assert "refused" not in client.cause
    client = connect(trusted(keys, f"{'x' * 70}:5700"), timings=Timings())
    until(lambda: "xxx: " in client.cause, client.cause)


def test_a_server_listens_on_a_name_with_only_an_ipv6_address(serve, connect, keys, names):
    names["gpu"] = ["::1"]
    public(keys)
    address = serve(bind="tcp://gpu:0").address
    assert address.startswith("tcp://[::1]:")
    connect(address).wait_ready(PATIENCE_S)


def test_a_scope_is_part_of_an_address(serve, connect, keys):
    index = socket.if_nametoindex("lo")
    assert resolve_endpoints("fe80::1%lo", 5700) == [f"tcp://[fe80::1%{index}]:5700"]
    with pytest.raises(OSError, match="fe80::1%eth0"):
        resolve_endpoints("fe80::1", 5700)
    lines = [line.split() for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines()]
    addresses = [f"{ipaddress.ip_address(int(line[0], 16))}%{line[5]}" for line in lines if line[0].startswith("fe80")]
    if not addresses:
        pytest.skip("no link-local address here")
    public(keys)
    port = serve(bind=f"tcp://[{addresses[0]}]:0").address.rpartition(":")[2]
    connect(trusted(keys, f"[{addresses[0]}]:{port}")).wait_ready(PATIENCE_S)


def test_an_address_that_is_not_of_this_machine_is_refused_with_the_remedy(serve, keys):
    keys.new_pair("server")
    for bind in ("tcp://192.0.2.77:0", "tcp://nowhere.invalid:0"):
        with pytest.raises(BadInput, match="give an address of this machine"):
            serve(bind=bind)


def test_an_emulated_link_leads_to_a_name_with_only_an_ipv6_address(serve, connect, keys, names):
    names["gpu"] = ["::1"]
    port = serve(bind="tcp://[::1]:0").address.rpartition(":")[2]
    with Emulator("[::1]:0", f"gpu:{port}", Link.of("free", Trace.constant_trace(1e8))) as emulator:
        client = connect(trusted(keys, emulator.address))
        client.wait_ready(PATIENCE_S)
        assert client.state is LinkState.READY
