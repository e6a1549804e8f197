"""Two servers, one robot: one is killed, drained or frozen, every call gives its result, and soon a remote one."""

import signal
import subprocess
import sys
import time

import pytest
import torch

from edge_offload.errors import BadInput, LinkLost, Refused
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.connection import Timings
from edge_offload.link.transport.fronts import MOST, Fronts, parse_addresses
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from tests.server import server_rig
from tests.server.server_rig import bit_equal, until

X = [torch.tensor([1.0, 2.0])]
NAMES = "a:1,b:2,c:3"


@pytest.mark.unit
class TestFronts:
    def test_one_that_fails_is_followed_by_the_next_and_a_round_by_a_pause(self):
        fronts = Fronts(NAMES, begin=1)
        assert fronts.current == "tcp://b:2"
        assert [fronts.mark_lost(None, retry=False) for _ in range(3)] == [True, True, False]
        assert fronts.current == "tcp://b:2"

    def test_a_broken_connection_is_retried_first(self):
        fronts = Fronts(NAMES, begin=0)
        assert fronts.mark_lost(None, retry=True)
        assert fronts.current == "tcp://a:1"

    def test_refused_only_when_all_refuse(self):
        fronts = Fronts("a:1,b:2", begin=0)
        fronts.mark_lost(Refused("full"), retry=False)
        assert not fronts.all_refuse()
        fronts.mark_lost(Refused("full"), retry=False)
        assert fronts.all_refuse()
        fronts.mark_connected()
        assert not fronts.all_refuse()

    @pytest.mark.parametrize(
        ("text", "message"),
        [("a:1,", "not an address"), ("a:1,a:1", "twice"), (",".join(f"a:{k}" for k in range(MOST + 1)), "addresses")],
    )
    def test_bad_addresses_are_named(self, text, message):
        with pytest.raises(BadInput, match=message):
            parse_addresses(text)


def ended(server) -> None:
    server.process.send_signal(signal.SIGKILL)


def drained(server) -> None:
    command = [sys.executable, "-m", "edge_offload.cli", "serve", "--drain", "--bind", server.address]
    server.draining = subprocess.Popen(command)


def frozen(server) -> None:
    server.freeze()


@pytest.mark.process
@pytest.mark.parametrize("fault", [ended, drained, frozen])
def test_the_robot_goes_on_with_the_other_server(killable_server, robot, monkeypatch, fault):
    monkeypatch.setattr(server_rig, "TIMINGS", Timings())
    servers = {server.address: server for server in (killable_server(), killable_server())}
    bot = robot(",".join(servers), "slow", example=X, seconds=0.0, patience=TimeoutLimits(cap_s=0.3, floor_s=0.3))
    bot.wait_open(X)
    first = bot.client.address
    for _ in range(20):
        assert bot.run(X)[1].mode is Mode.SERVER, "it keeps the one that answers"
    assert bot.client.address == first
    gave_up, lost = [], Fronts.mark_lost

    def noted(fronts, refused, retry):
        gave_up.append([fronts.current, lost(fronts, refused, retry)])
        return gave_up[-1][1]

    monkeypatch.setattr(Fronts, "mark_lost", noted)
    frames = results = 0
    fault(servers[first])
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        inputs = [torch.tensor([float(frames), 2.0])]
        frames += 1
        outputs, report = bot.run(inputs)
        results += bit_equal(outputs, [inputs[0] * 2])
        if report.mode is Mode.SERVER and bot.client.address != first:
            break
        time.sleep(0.005)
    assert results == frames, "every frame has its result"
    assert report.mode is Mode.SERVER, bot.client.cause
    assert 1 <= len(gave_up) <= 2, "the one that is gone is dialled once more at most"
    assert gave_up == [[first, True]] * len(gave_up), "and the other one follows without a pause"
    if fault is drained:
        assert servers[first].draining.wait(60) == 0
        assert servers[first].process.wait(60) == 0


@pytest.mark.process
def test_a_server_may_be_replaced_by_another(killable_server, robot):
    servers = [killable_server(), killable_server()]
    bot = robot(",".join(each.address for each in servers), "gated", example=X)
    bot.wait_open(X)
    first = bot.client.address
    bot.offloaded.run_inference(X, Mode.SERVER)
    assert bot.client.leave("it is full")
    until(lambda: bot.client.address != first, 10)
    bot.wait_open(X)
    assert bot.run(X)[1].mode is Mode.SERVER


@pytest.mark.process
def test_keys_of_all_servers_are_requested_at_the_start(tmp_path):
    keys = KeyStore(tmp_path)
    keys.ensure_pair("server")
    with pytest.raises(BadInput, match="elsewhere"):
        Client("127.0.0.1:1,elsewhere.example:5700", keys=keys).start()


@pytest.mark.process
def test_absent_servers_are_reported(tmp_path):
    keys = KeyStore(tmp_path)
    keys.ensure_pair("server")
    with Client("127.0.0.1:1,127.0.0.1:2", keys=keys) as client, pytest.raises(LinkLost, match=r"127\.0\.0\.1:[12]"):
        client.wait_ready(0.5)
