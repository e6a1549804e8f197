"""``scripts/gpu run peers``: peers that are not there are skipped, and what fails or hangs is a record."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

from edge_offload_benchmarks.gpu import peer_ways, peers_client, results, settings
from edge_offload_benchmarks.gpu.phases import install, peers
from edge_offload_benchmarks.gpu.processes import Process, Server


@pytest.fixture
def phase(tmp_path, monkeypatch):
    chosen = settings.Settings("cpu", str(tmp_path / "work"), tiny=True)
    for name, value in chosen.make_environment().items():
        monkeypatch.setenv(name, value)
    return results.Phase("peers", chosen, 120.0)


def by_name(phase):
    return {record["name"]: record for record in results.read_json(phase.path)["records"]}


def test_peers_that_are_not_there_are_skipped_with_what_to_do(phase, monkeypatch):
    for name in ("LUPINE_CLIENT", "LUPINE_SERVER", "RGPU"):
        monkeypatch.setattr(peer_ways, name, settings.CARRIED / "nowhere" / name)
    peers.run(phase)
    assert by_name(phase)["lupine"]["skipped"] == "no .gpu/nowhere/LUPINE_CLIENT; build it as docs/how-to/gpu.md says"
    assert by_name(phase)["rgpu"]["skipped"] == "no .gpu/nowhere/RGPU; build it as docs/how-to/gpu.md says"


@pytest.mark.process
def test_a_server_that_does_not_start_is_named_with_its_log(phase):
    command = [sys.executable, "-c", "import sys; sys.exit('no libcuda.so.1')"]
    with Process(phase.settings, "peer", command) as process:
        way = peer_ways.Way("peer", server=(process, "listening"))
        with pytest.raises(RuntimeError, match=r"peer's server does not listen: no libcuda\.so\.1"):
            way.await_server(30.0)


@pytest.mark.process
def test_a_client_that_hangs_is_ended_and_the_others_go_on(phase, monkeypatch):
    monkeypatch.setattr(peers, "WARM_S", 0.5)
    silent = peer_ways.Way("silent", command=lambda address: [sys.executable, "-c", "import time; time.sleep(600)"])
    with contextlib.ExitStack() as stack:
        plain = peers.Client(phase, stack, peer_ways.Way("plain", options=["--device", "cpu"]), 0.0)
        hangs = peers.Client(phase, stack, silent, 0.0)
        peers.measure_program(phase, [plain, hangs], "transformer")
        assert (plain.answers, hangs.answers) == (True, False)
        assert hangs.process.end(10.0) != 0
    assert by_name(phase)["transformer plain"]["equal"] == "8 of 8"
    assert "no line '0 '" in by_name(phase)["transformer silent"]["failed"]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_replay_has_the_bits_of_plain_torch_and_its_bytes_are_those_of_the_link(phase):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(phase.settings))
        plain = peers.Client(phase, stack, peer_ways.Way("plain", options=["--device", "cpu"]), 0.0)
        replay = peers.Client(phase, stack, peer_ways.own_way(server, "replay"), peers.MBPS)
        peers.measure_program(phase, [plain, replay], "greedy")
    record = by_name(phase)["greedy replay at 93 Mbps"]
    assert record["equal"] == "8 of 8"
    assert record["trips"] >= peers_client.TOKENS
    assert 100 < record["up"] < 100_000
    # a frame cannot be faster than the round trips of the link
    assert record["wall"]["min_ms"] > peers_client.TOKENS * peers.RTT_MS


def test_results_that_differ_in_a_bit_are_not_equal():
    want = {0: [torch.zeros(3)], 1: [torch.ones(3)]}
    have = {0: [torch.zeros(3)], 1: [torch.ones(3).nextafter(torch.tensor(2.0))]}
    assert peers.count_equal(want, want) == 2
    assert peers.count_equal(want, have) == 1
    assert peers.count_equal(want, {}) == 0


def test_waits_of_lupine_are_those_of_every_operation(tmp_path, monkeypatch):
    path = tmp_path / "stats"
    path.write_text("-1\t0\t7\t7\n12\t300\t5\t90\n13\t4\t0\t0\n")
    monkeypatch.setattr(peers_client.ctypes, "CDLL", lambda name: type("Shim", (), {"lupine_write_stats": int})())
    assert peers_client.count_lupine(path) == {"trips": 7, "requests": 304}


def test_a_machine_that_gets_a_checkout_has_every_command(tmp_path):
    for name, folder in install.DISTRIBUTIONS:
        install.entry_points(tmp_path / name, settings.ROOT / folder / "setup.cfg", name)
    lines = "".join((tmp_path / name / "entry_points.txt").read_text() for name, _ in install.DISTRIBUTIONS)
    assert "link = edge_offload_research.commands.link" in lines
