"""Whatever happens to the server, every call gives exactly one right result, with the reason where it is local."""

import random
import signal
import threading
import time

import pytest
import torch

from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from tests.server.server_rig import ServerProcess, bit_equal, image, until

pytestmark = pytest.mark.process

X = [torch.tensor([1.0, 2.0])]


def test_server_absent_at_start_is_connected_later(killable_server, robot):
    first = killable_server()
    first.stop()
    bot = robot(first.address, "slow", example=X, seconds=0.0)
    outputs, report = bot.run(X)
    assert bit_equal(outputs, [X[0] * 2])
    assert report.mode is Mode.LOCAL
    assert "no server" in report.fallback_reason
    killable_server(bind=first.address)
    bot.wait_open(X)
    outputs, report = bot.run(X)
    assert (report.mode, report.fallback_reason) == (Mode.SERVER, "")


def test_sigkill_in_mid_inference_then_recovery(killable_server, robot):
    server = killable_server()
    bot = robot(server.address, "gated", example=X)
    bot.wait_open(X)
    server.gate.shut()

    def kill():
        server.gate.wait_until_reached()
        server.process.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outputs, report = bot.run(X)
    killer.join()
    assert bit_equal(outputs, [X[0] * 2])
    assert report.mode is Mode.LOCAL
    assert "lost" in report.fallback_reason
    assert report.round_trips == 1, "the wait for the server that died is part of the frame's cost"
    for _ in range(3):
        outputs, report = bot.run(X)
        assert bit_equal(outputs, [X[0] * 2])
        assert report.fallback_reason.startswith("no server")
        assert report.round_trips == 0, "no frame waits for a dead server"
    killable_server(bind=server.address)
    bot.wait_open(X)
    assert bot.run(X)[1].mode is Mode.SERVER


def test_frozen_server_costs_one_wait_not_one_per_frame(killable_server, robot):
    server = killable_server()
    patience = TimeoutLimits(cap_s=0.3, floor_s=0.3)
    bot = robot(server.address, "slow", example=X, seconds=0.0, patience=patience)
    bot.wait_open(X)
    server.freeze()
    reports = [bot.run(X)[1] for _ in range(50)]
    assert all(report.mode is Mode.LOCAL for report in reports)
    assert sum(report.round_trips for report in reports) <= 1
    assert "did not answer" in reports[0].fallback_reason
    server.process.send_signal(signal.SIGCONT)
    bot.wait_open(X)
    outputs, report = bot.run(X)
    assert report.mode is Mode.SERVER
    assert bit_equal(outputs, [X[0] * 2])


def test_late_reply_is_dropped_and_never_answers_the_next_frame(server, robot):
    bot = robot(server.address, "gated", example=X)
    bot.wait_open(X)
    server.gate.shut()
    outputs, report = bot.run(X, deadline_s=0.05)
    server.gate.open()
    assert report.mode is Mode.LOCAL
    assert bit_equal(outputs, [X[0] * 2])
    until(lambda: bot.offloaded.unavailable_reason(Mode.SERVER, X) is None, 60)
    other = [torch.tensor([5.0, 6.0])]
    outputs, report = bot.run(other)
    assert bit_equal(outputs, [other[0] * 2])
    assert report.mode is Mode.SERVER


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("drifting", "small_nets:drifting' differ"),
        ("counting", "changes its own buffers"),
    ],
)
def test_model_that_cannot_be_offloaded_stays_local_with_the_reason(server, robot, factory, message):
    inputs = [torch.ones(1, 2)]
    bot = robot(server.address, factory, example=inputs)
    until(
        lambda: message in (bot.offloaded.unavailable_reason(Mode.SERVER, inputs) or ""),
        60,
        lambda: str(bot.offloaded.state()),
    )
    _, report = bot.run(inputs)
    assert report.mode is Mode.LOCAL
    assert message in report.fallback_reason
    if factory == "drifting":
        hashes = [word for word in report.fallback_reason.replace(",", " ").split() if len(word) == 64]
        assert len(set(hashes)) == 2, "both hashes are named"


def test_model_error_is_local_and_the_server_lives(server, robot):
    bot = robot(server.address, "moody", example=X)
    bot.wait_open(X)
    with pytest.raises(ValueError, match="negative input"):
        bot.run([torch.tensor([-1.0, 1.0])])  # the robot's own module fails too: that is the caller's to know
    future = bot.client.request("infer", {}, [], timeout_s=60)
    with pytest.raises(Exception, match="no model is open"):
        future.result(60)
    with pytest.raises(SystemExit):
        bot.run([torch.tensor([101.0, 1.0])])
    outputs, report = bot.run(X)
    assert report.mode is Mode.SERVER
    assert bit_equal(outputs, [X[0] + 1])


def test_two_robots_do_not_get_each_others_results(server, robot):
    pairs = [(robot(server.address, "net", example=image(), seed=3), seed) for seed in range(2)]
    pairs.append((robot(server.address, "net", example=image(), seed=4), 2))
    for bot, _ in pairs:
        bot.wait_open(image())
    wrong, reasons = [], []

    def drive(bot, seed):
        for frame in range(25):
            inputs = image(1000 * seed + frame)
            remote, report = bot.run(inputs)
            reasons.append(report.fallback_reason)
            if not bit_equal(remote, bot.run(inputs, Mode.LOCAL)[0]):
                wrong.append((seed, frame))

    threads = [threading.Thread(target=drive, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert reasons.count("") > 60, f"most frames must have gone to the server, or nothing was tested: {set(reasons)}"


@pytest.mark.slow
def test_one_result_per_call_under_random_faults(keys, robot, killable_server):
    rng = random.Random(7)
    server: ServerProcess = killable_server()
    bot = robot(server.address, "net", example=image(), seed=9, patience=TimeoutLimits(cap_s=0.5))
    bot.wait_open(image())
    modes = dict.fromkeys(Mode, 0)
    alive = True
    for frame in range(150):
        fault = rng.random()
        if fault < 0.02 and alive:
            server.process.kill()
            server.process.wait()
            alive = False
        elif fault < 0.06 and not alive:
            server, alive = killable_server(bind=server.address), True
            if rng.random() < 0.5:  # the other times, frames go on while the robot comes back
                bot.wait_open(image())
        elif fault < 0.12 and alive:
            server.process.send_signal(signal.SIGSTOP)
            threading.Timer(rng.uniform(0.0, 0.3), server.process.send_signal, [signal.SIGCONT]).start()
        elif fault < 0.2:
            time.sleep(rng.uniform(0.0, 0.05))
        inputs = image(frame)
        outputs, report = bot.run(inputs, deadline_s=rng.choice([None, 0.05, 1.0]))
        modes[report.mode] += 1
        assert bit_equal(outputs, bot.run(inputs, Mode.LOCAL)[0]), f"frame {frame}: {report}"
        assert (report.mode is Mode.LOCAL) == bool(report.fallback_reason)
    assert modes[Mode.SERVER] > 10, modes
    assert modes[Mode.LOCAL] > 10, modes
    if not alive:
        server = killable_server(bind=server.address)
    bot.wait_open(image())
    assert bot.run(image())[1].mode is Mode.SERVER
