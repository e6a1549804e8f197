"""Mode ``server`` gives the robot's own bits, through real sockets and a real server process."""

import math

import pytest
import torch

from edge_offload.errors import EdgeOffloadError, ProtocolError
from edge_offload.execute import module as executing
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.messages import Message
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.runtime.module import OffloadedModule
from edge_offload.timing import STAGES
from tests.server import small_nets
from tests.server.server_rig import TIMINGS, bit_equal, image, until

pytestmark = pytest.mark.process


def test_random_networks_are_bit_equal_to_local(server, robot):
    for seed in range(8):
        inputs = image(seed, 24 + seed, 40)
        bot = robot(server.address, "net", example=inputs, seed=seed)
        bot.wait_open(inputs)
        assert "bit-equal" in bot.offloaded.state()["server"]
        for fresh in range(3):
            inputs = image(100 * seed + fresh, 24 + seed, 40)
            remote, report = bot.run(inputs)
            local_outputs, local = bot.run(inputs, Mode.LOCAL)
            assert (report.mode, report.fallback_reason) == (Mode.SERVER, "")
            assert local.mode is Mode.LOCAL
            assert bit_equal(remote, local_outputs)
            with torch.inference_mode():
                assert bit_equal(remote, bot.module(*inputs)), "and to the module called by hand"


def test_strides_and_alignment_of_the_input_do_not_change_bits(server, robot):
    inputs = image(5, 32, 64)
    bot = robot(server.address, "net", example=inputs, seed=5)
    bot.wait_open(inputs)
    want, _ = bot.run(inputs)
    last = [inputs[0].permute(1, 2, 0).contiguous().permute(2, 0, 1)]
    odd = [torch.cat([torch.zeros(1, dtype=torch.uint8), inputs[0].reshape(-1)])[1:].reshape(inputs[0].shape)]
    for variant in (last, odd):
        for mode in (Mode.LOCAL, Mode.SERVER):
            got, report = bot.run(variant, mode)
            assert report.mode is mode
            assert bit_equal(got, want)


def test_every_dtype_nan_and_empty_is_returned_unchanged(server, robot):
    inputs = [torch.arange(6.0).reshape(2, 3)]
    bot = robot(server.address, "many", example=inputs)
    bot.wait_open(inputs)
    remote, report = bot.run(inputs)
    assert report.mode is Mode.SERVER
    assert bit_equal(remote, small_nets.many()(*inputs))
    remote[0].logical_not_()  # as writable as a local result


def test_outputs_may_be_written_in_local_mode_too(server, robot):
    bot = robot(server.address, "slow", seconds=0.0)
    given = torch.ones(2)
    outputs, _ = bot.run([given], Mode.LOCAL)
    assert outputs[0].add_(1).tolist() == [3.0, 3.0]
    assert given.tolist() == [1.0, 1.0]


def test_report_gives_the_cost_of_the_frame(server, robot):
    inputs = image(1, 200, 300)
    bot = robot(server.address, "net", example=inputs, seed=1, codec="raw")
    bot.wait_open(inputs)
    until(lambda: bot.client.clock.error_s < 0.05, 60)
    _, report = bot.run(inputs)
    assert report.round_trips == 1
    assert set(report.stages_s) == set(STAGES)
    assert all(value >= 0 for value in report.stages_s.values())
    assert report.stages_s["compute_server"] > 0
    assert report.stages_s["compute_robot"] == 0
    assert sum(report.stages_s.values()) <= report.total_s + 2 * report.clock_error_s
    assert 200 * 300 * 3 < report.bytes_up < 200 * 300 * 3 + 2000
    assert report.bytes_down > 0
    assert 0 < report.clock_error_s < report.total_s, "the frame had a whole round trip"


def test_a_fast_link_gets_plain_bytes_and_a_slow_one_coded_ones_each_way(server, robot, monkeypatch):
    inputs = [torch.arange(9e4).reshape(300, 300).floor().remainder(8)]
    bot = robot(server.address, "many", example=inputs)
    bot.wait_open(inputs)
    spent = {}
    for uplink, downlink in ((1e5, 1e5), (1e12, 1e5), (1e5, 1e12), (1e12, 1e12)):
        link = LinkReading(uplink=uplink, downlink=downlink, uplink_error=0.1, downlink_error=0.1)
        monkeypatch.setattr(bot.client.estimator, "make_reading", lambda now, link=link: link)
        for _ in range(3):  # codecs are measured meanwhile
            results, report = bot.run(inputs)
        assert bit_equal(results, small_nets.many()(*inputs))
        spent[uplink, downlink] = report.bytes_up, report.bytes_down
    (coded_up, coded_down), (plain_up, plain_down) = spent[1e5, 1e5], spent[1e12, 1e12]
    assert 3 * coded_up < plain_up
    assert 3 * coded_down < plain_down
    assert plain_up > inputs[0].nbytes
    assert spent[1e12, 1e5][0] > 0.9 * plain_up, "each way by its own rate"
    assert spent[1e5, 1e12][1] > 0.9 * plain_down, "each way by its own rate"
    assert 3 * spent[1e12, 1e5][1] < plain_down


def test_a_rate_that_is_none_is_refused():
    for rate in (0.0, -1.0, math.inf, "fast", 5, True):
        request = Request(Peer("robot", "key"), Message("request", body={"downlink": rate}), 0.0, 1, print)
        with pytest.raises(ProtocolError, match="downlink"):
            _ = request.downlink


def test_a_new_input_shape_is_opened_by_itself(server, robot):
    bot = robot(server.address, "net", seed=2)
    for height in (24, 32):
        inputs = image(0, height)
        first, report = bot.run(inputs)
        assert report.mode is Mode.LOCAL
        assert report.fallback_reason
        bot.wait_open(inputs)
        second, report = bot.run(inputs)
        assert report.mode is Mode.SERVER
        assert bit_equal(first, second)


def test_inputs_that_vary_in_size_never_fill_the_quota(server, robot):
    bot = robot(server.address, "slow", seconds=0.0)
    for size in range(1, 25):
        inputs = [torch.ones(size)]
        bot.wait_open(inputs)
        assert bot.run(inputs)[1].mode is Mode.SERVER


def test_thread_count_that_differs_is_stated(server, robot):
    torch.set_num_threads(2)
    inputs = image()
    bot = robot(server.address, "net", example=inputs)
    bot.wait_open(inputs)
    assert "threads: 2 here, 1 there" in bot.offloaded.state()["server"]


def test_exact_results_are_not_computed_where_the_thread_count_differs(server, robot):
    inputs = image()
    for threads, mode in ((2, Mode.LOCAL), (1, Mode.SERVER)):
        torch.set_num_threads(threads)
        bot = robot(server.address, "net", example=inputs, exact=True)
        until(
            lambda bot=bot: (bot.offloaded.unavailable_reason(Mode.SERVER, inputs) or "exact").startswith("exact"), 60
        )
        _, report = bot.run(inputs, Mode.SERVER)
        assert report.mode is mode
        if mode is Mode.LOCAL:
            assert report.fallback_reason.startswith("exact:=true, and results of this server may differ")
            assert "threads: 2 here, 1 there" in report.fallback_reason


def test_another_torch_on_the_server_is_logged_with_what_to_install_where(server, robot, monkeypatch, caplog):
    monkeypatch.setattr(executing, "fingerprint_of", lambda device: {**fingerprint_of(device), "torch": "2.4.1"})
    inputs = image()
    bot = robot(server.address, "net", example=inputs)
    bot.wait_open(inputs)
    assert "pip install torch==2.4.1 on the server" in bot.offloaded.torches()
    assert bot.offloaded.torches() in caplog.messages


def test_slowdown_stretches_the_robot_and_is_reported(server, robot):
    plain = robot(server.address, "slow", seconds=0.05)
    slowed = robot(server.address, "slow", seconds=0.05, robot_slowdown=4.0)
    ratio = []
    for _ in range(5):
        _, one = plain.run([torch.ones(1)], Mode.LOCAL)
        _, four = slowed.run([torch.ones(1)], Mode.LOCAL)
        ratio.append(four.stages_s["compute_robot"] / one.stages_s["compute_robot"])
    assert 3.0 < sorted(ratio)[2] < 5.0
    assert (one.emulated_slowdown, four.emulated_slowdown) == (1.0, 4.0)


@pytest.mark.parametrize("name", ["movenet", "kapao_n"])
def test_networks_of_people_are_bit_equal(killable_server, keys, name):
    try:
        module = registry.build_module(name)
    except EdgeOffloadError as error:
        pytest.skip(f"the weights of {name} are not here: {error}")
    server = killable_server()
    with Client(server.address, keys=KeyStore(keys), timings=TIMINGS) as client:
        inputs = image(0, 128, 192)
        offloaded = OffloadedModule(name, module, client, example=inputs, hedging=False)
        until(lambda: offloaded.unavailable_reason(Mode.SERVER, inputs) is None, 120, lambda: str(offloaded.state()))
        for seed in range(3):
            remote, report = offloaded.run_inference(image(seed, 128, 192), Mode.SERVER)
            local_outputs, _ = offloaded.run_inference(image(seed, 128, 192), Mode.LOCAL)
            assert report.mode is Mode.SERVER, report.fallback_reason
            assert bit_equal(remote, local_outputs)
