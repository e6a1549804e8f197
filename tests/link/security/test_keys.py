"""Keys: private files, no ceremony on loopback, ceremony everywhere else."""

import json
import os
import pathlib
import shlex
import stat

import pytest

from edge_offload import cli, places
from edge_offload.errors import BadInput
from edge_offload.link.security.keys import (
    KeyStore,
    is_loopback,
    join_address,
    split_address,
    trust_command,
)
from edge_offload.link.transport.listener import Listener


def test_files_are_private(keys):
    os.umask(os.umask(0))
    previous = os.umask(0)
    try:
        keys.new_pair("client")
        keys.trust_client("robot1", keys.new_pair("server").public)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(keys.directory.stat().st_mode) == 0o700
    for path in keys.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_where_keys_live(monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_KEYS", "/somewhere/keys")
    assert places.keys_folder() == pathlib.Path("/somewhere/keys")
    monkeypatch.delenv("EDGE_OFFLOAD_KEYS")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert places.keys_folder() == pathlib.Path("/config/edge_offload/keys")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert places.keys_folder() == pathlib.Path("/home/someone/.config/edge_offload/keys")


def test_secret_is_never_shown(keys):
    pair = keys.new_pair("client")
    assert pair.secret not in repr(pair)
    assert pair.public in repr(pair)


def test_a_pair_made_on_purpose_is_not_replaced_by_accident(keys):
    first = keys.ensure_pair("server")
    assert first.automatic
    second = keys.new_pair("server")  # on purpose: replaces the automatic one
    assert not second.automatic
    assert second.public != first.public
    with pytest.raises(BadInput, match="--force"):
        keys.new_pair("server")
    assert keys.ensure_pair("server") == second
    assert keys.new_pair("server", force=True).public != second.public


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:0"])
def test_public_bind_without_keys_made_on_purpose_is_refused(keys, bind):
    for _ in range(2):  # the second time keys exist, made on first use by loopback
        with pytest.raises(BadInput, match="edge-offload keys new"):
            Listener(bind, welcome=lambda peer, hello: {}, handle=lambda request: None, keys=keys).start()
        keys.ensure_pair("server")


def test_robot_without_the_servers_key_gets_the_remedy(keys):
    with pytest.raises(BadInput, match=r"keys trust --server -- 192.0.2.1:5700"):
        keys.server_public("tcp://192.0.2.1:5700")
    key = KeyStore(keys.directory / "server").new_pair("server").public
    keys.trust_server("192.0.2.1:5700", key)
    assert keys.server_public("tcp://192.0.2.1:5700") == key


def test_servers_by_their_ipv6_address_are_stored_and_printed_in_brackets(keys):
    with pytest.raises(BadInput, match=r"keys trust --server -- '\[2001:db8::1\]:5700' KEY"):
        keys.server_public("tcp://[2001:db8::1]:5700")
    key = KeyStore(keys.directory / "server").new_pair("server").public
    keys.trust_server("[2001:db8::1]:5700", key)
    assert keys.servers() == {"[2001:db8::1]:5700": key}
    # as it was written before
    (keys.directory / "servers.json").write_text(json.dumps({"2001:db8::1:5700": key}))
    assert keys.server_public("[2001:db8::1]:5700") == key


def test_stored_server_outranks_the_loopback_default(keys):
    other = KeyStore(keys.directory / "other").new_pair("server").public
    assert keys.server_public("127.0.0.1:5700") != other
    keys.trust_server("127.0.0.1:5700", other)
    assert keys.server_public("tcp://127.0.0.1:5700") == other


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"public": "short", "secret": "x"}', '{"public": 3, "secret": 4}'])
def test_damaged_key_file_is_named(keys, damage):
    keys.ensure_pair("client")
    path = keys.directory / "client.json"
    path.write_text(damage)
    with pytest.raises(BadInput, match=r"client\.json"):
        keys.pair("client")


@pytest.mark.parametrize(
    "address",
    [
        *("5700", "host", "host:", ":5700", "host:x", "udp://host:1", "host:70000"),
        *("::1:5700", "fe80::1", "[::1]", "[::1:5700", "::1]:5700"),
    ],
)
def test_bad_addresses_are_named(address):
    with pytest.raises(BadInput, match="host:port"):
        split_address(address)


def test_addresses():
    assert split_address("tcp://[::1]:5700") == ("::1", 5700)
    assert split_address("[fe80::1%eth0]:5700") == ("fe80::1%eth0", 5700)
    assert split_address("gpu:5700") == ("gpu", 5700)
    assert join_address("::1", 5700) == "[::1]:5700"
    assert join_address("gpu", 5700) == "gpu:5700"
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("::1%lo")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("gpu")


def test_the_keys_command_as_in_its_help(tmp_path, monkeypatch, capsys):
    robot, server = tmp_path / "robot", tmp_path / "server"
    monkeypatch.setenv("EDGE_OFFLOAD_KEYS", str(robot))
    assert cli.main(["keys", "new"]) == 0
    robot_key = KeyStore(robot).pair("client").public
    monkeypatch.setenv("EDGE_OFFLOAD_KEYS", str(server))
    assert cli.main(["keys", "new"]) == 0
    assert cli.main(["keys", "trust", "robot1", robot_key]) == 0
    capsys.readouterr()
    assert cli.main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert robot_key in listed
    assert "robot1" in listed
    assert KeyStore(server).pair("server").secret not in listed
    assert KeyStore(server).clients() == {robot_key: "robot1"}
    assert cli.main(["keys", "revoke", "robot1"]) == 0
    assert KeyStore(server).clients() == {}
    assert cli.main(["keys", "revoke", "robot1"]) == 1
    assert cli.main(["keys", "trust", "robot1", "not a key"]) == 1
    assert "40 characters" in capsys.readouterr().err


def test_new_keys_print_the_command_for_the_other_machine(tmp_path, monkeypatch, capsys):
    robot, server = tmp_path / "robot", tmp_path / "server"
    for folder, other, role in ((robot, server, "client"), (server, robot, "server")):
        monkeypatch.setenv("EDGE_OFFLOAD_KEYS", str(folder))
        assert cli.main(["keys", "new", role]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  edge-offload"))
        command = shlex.split(line)
        assert command[:3] == ["edge-offload", "keys", "trust"]
        monkeypatch.setenv("EDGE_OFFLOAD_KEYS", str(other))
        assert cli.main(command[1:]) == 0
    assert list(KeyStore(server).clients()) == [KeyStore(robot).pair("client").public]
    assert list(KeyStore(robot).servers().values()) == [KeyStore(server).pair("server").public]
    # a key is made of 85 characters, and the dash is one of them
    assert cli.main(shlex.split(trust_command("robot", "-" + "a" * 39))[1:]) == 0
