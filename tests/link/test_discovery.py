"""Servers that announce themselves on loopback, and robots that look for them there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from edge_offload.errors import BadInput, LinkLost, Unsupported
from edge_offload.link import discovery
from edge_offload.link.security.keys import KeyStore

HERE, ELSEWHERE = "127.0.0.1", "203.0.113.7"
PATIENCE_S = 60.0


@pytest.fixture
def elsewhere():
    """A server of another machine is announced."""
    zeroconf = pytest.importorskip("zeroconf")
    info = zeroconf.ServiceInfo(
        discovery.SERVICE, f"other.{discovery.SERVICE}", port=5700, parsed_addresses=[ELSEWHERE], server="other.local."
    )
    with contextlib.closing(zeroconf.Zeroconf(interfaces=[HERE])) as multicast:
        multicast.register_service(info)
        yield f"{ELSEWHERE}:5700"


@pytest.mark.process
def test_a_server_is_found_where_it_announces_itself(keys):
    pytest.importorskip("zeroconf")
    with contextlib.closing(discovery.announce_server(f"tcp://{HERE}:5799")):
        assert discovery.find_servers(keys, PATIENCE_S, [HERE]) == f"tcp://{HERE}:5799"
    with pytest.raises(LinkLost, match="serve --announce"):
        discovery.find_servers(keys, 0.5, [HERE])


@pytest.mark.process
def test_only_a_server_whose_key_is_known_is_taken(keys, elsewhere, tmp_path):
    with pytest.raises(BadInput, match=rf"no key is known for {elsewhere}, announced here; .*keys trust"):
        discovery.find_servers(keys, 2.0, [HERE])
    keys.trust_server(elsewhere, KeyStore(tmp_path / "other").new_pair("server").public)
    assert discovery.find_servers(keys, PATIENCE_S, [HERE]) == f"tcp://{elsewhere}"


@pytest.mark.parametrize("use", [lambda keys: discovery.find_servers(keys, 1.0),
                                 lambda _: discovery.announce_server("tcp://127.0.0.1:5799")])  # fmt: skip
def test_without_the_library_the_command_that_installs_it_is_named(keys, use, monkeypatch):
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with pytest.raises(Unsupported, match=r"zeroconf is not installed; .*pip install 'edge_offload\[discovery\]'"):
        use(keys)


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
def test_exec_auto_uses_the_server_that_announces_itself(tmp_path):
    pytest.importorskip("zeroconf")
    cli = f"{sys.executable} -m edge_offload.cli"
    program = "import torch; print(torch.ones(3).cuda().sum().item())"
    script = f"""
        ip link set lo up
        {cli} serve --announce --bind tcp://127.0.0.1:5798 --device cpu --threads 1 &
        {cli} exec --server auto --wait 60 -- {sys.executable} -c '{program}'
        code=$?
        kill $!
        wait
        exit $code
    """
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "EDGE_OFFLOAD_KEYS": str(tmp_path / "keys")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3.0" in done.stdout
