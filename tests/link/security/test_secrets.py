"""Private keys are on disk and nowhere else: not in logs, errors, or what commands, robots and servers say."""

import json
import logging
import subprocess
import sys

import pytest

from edge_offload import cli
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client, LinkState

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


def secrets_in(*stores):
    """Every private key that is kept in these directories, the next ones included."""
    secrets = set()

    def collect(value):
        if isinstance(value, dict):
            for name, item in value.items():
                if "secret" in name and isinstance(item, str):
                    secrets.add(item)
                collect(item)

    for store in stores:
        for path in store.directory.glob("*.json"):
            collect(json.loads(path.read_text()))
    return secrets


def check(output, secrets):
    assert secrets, "no private key was found: what was looked for?"
    assert all(len(secret) == 40 for secret in secrets)
    for secret in secrets:
        assert secret not in output


def test_the_link_logs_no_secret_in_whatever_happens(tmp_path, serve, caplog, until, until_state):
    """Refused, trusted, rotated, revoked, a false server, a damaged key file: all at the lowest log level."""
    caplog.set_level(logging.DEBUG)
    server, robot, other = (KeyStore(tmp_path / name) for name in ("server", "robot", "other"))
    server.new_pair("server")
    robot.new_pair("client")
    other.new_pair("client")
    listener = serve(keys=server)
    robot.trust_server(listener.address, server.pair("server").public)
    other.trust_server(listener.address, other.new_pair("server").public)
    causes = []
    note_state = lambda state, cause: causes.append(cause)  # noqa: E731
    with Client(listener.address, keys=robot, on_state=note_state) as client:
        until_state(client, LinkState.REFUSED)
        server.trust_client("robot", robot.pair("client").public)
        until_state(client, LinkState.READY)
        robot.next_pair("client")
        server.trust_client("robot", robot.adopt_next("client").public, also=True)
        server.revoke_client("robot")
        until_state(client, LinkState.REFUSED)
        causes.append(str(client.clock) + repr(client.welcome) + repr(listener.peers()))
    with Client(listener.address, keys=other, on_state=note_state) as client:
        until(lambda: client.state is LinkState.REFUSED, "it is not the server that is known")
    secrets = secrets_in(server, robot, other)
    assert len(secrets) >= 4
    (robot.directory / "client.json").write_text(json.dumps({"public": "x", "secret": sorted(secrets)[0]}))
    with pytest.raises(BadInput) as damaged:
        robot.pair("client")
    check(caplog.text + "".join(causes) + str(damaged.value) + str(dict(listener.counters)), secrets)
    assert "key" in "".join(causes), "the causes were told"


@pytest.mark.slow
def test_no_command_prints_a_secret(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("EDGE_OFFLOAD_KEYS", str(tmp_path / "keys"))
    store = KeyStore()
    for command in (
        ["keys", "new"],
        ["keys", "new"],  # refused: they are there
        ["keys", "list"],
        ["keys", "rotate", "client"],
        ["keys", "rotate", "client", "--finish"],
        ["keys", "rotate", "server"],
        ["keys", "trust", "robot", "not a key"],
        ["keys", "list"],
    ):
        cli.main(command)
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_offload.cli", "serve", "--bind", "tcp://127.0.0.1:0", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    try:
        while not (lines and lines[-1].startswith("listening on ")):
            lines.append(process.stdout.readline())
            assert lines[-1], "the server did not start"
        address = lines[-1].split()[2]
        with Client(address) as client:
            client.wait_ready(PATIENCE_S)
            lines.append(str(client.request("status").result(PATIENCE_S).body))
            try:
                client.request("open_model", {"name": "no such model"}).result(PATIENCE_S)
            except EdgeOffloadError as error:
                lines.append(str(error))
        cli.main(["doctor", "--server", address, "--json", "-"])
    finally:
        process.terminate()
        lines.append(process.communicate(timeout=60)[0])
    out, err = capfd.readouterr()
    assert store.pair("client").public in out
    check(out + err + "".join(lines), secrets_in(store))
