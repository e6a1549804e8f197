"""What a server answers to peers that ask for the wrong thing, too much, or too often."""

import pathlib
import time

import psutil
import pytest
import torch

from edge_offload.errors import BadInput, ProtocolError, Refused, RemoteError
from edge_offload.execute.tensors import TensorSpec, pack_tensors
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.models.registry import state_hash
from edge_offload.server.status import ServerStatus
from tests.server import small_nets
from tests.server.server_rig import TIMINGS, bit_equal, until

pytestmark = pytest.mark.process

X = [torch.tensor([1.0, 2.0])]

NETS = small_nets.__name__


@pytest.fixture
def client(server, keys):
    with Client(server.address, keys=KeyStore(keys), timings=TIMINGS) as link:
        link.wait_ready(60)
        yield link


def open_model(client, factory, inputs=X, **options):
    body = {
        "name": f"{NETS}:{factory}",
        "options": options,
        "state_hash": state_hash(getattr(small_nets, factory)(**options)),
        "inputs": [TensorSpec.of(tensor).to_dict() for tensor in inputs],
    }
    return client.request("open_model", body, timeout_s=60).result(60).body["handle"]


def infer(client, handle, inputs=X, **more):
    descriptors, buffers = pack_tensors(inputs, "raw")
    return client.request("infer", {"handle": handle, "inputs": descriptors, **more}, buffers, timeout_s=60)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_model", "knows no model"),
        ("os:system", "not allowed"),
        (f"{NETS}:Slow", "not allowed"),
        ("net.pt", "not allowed"),
        ("/etc/net.pt", "not allowed"),
        (7, "by its name"),
        ("x" * 10_000, "by its name"),
    ],
)
def test_only_listed_models_are_built(client, name, message):
    with pytest.raises((Refused, BadInput), match=message):
        client.request("open_model", {"name": name}, timeout_s=60).result(60)


@pytest.mark.parametrize(
    "options",
    [{"seed": [1]}, {"seed": "/etc/passwd"}, {"seed": "~/x"}, {"nope": 1}, [], {str(n): n for n in range(99)}],
)
def test_hostile_options(client, options):
    with pytest.raises((Refused, BadInput, RemoteError)):
        client.request("open_model", {"name": f"{NETS}:net", "options": options}, timeout_s=60).result(60)


def test_a_peer_names_no_weights_of_the_server(client):
    options = {"weights": "mine.safetensors"}
    with pytest.raises(Refused, match=r"weights=.* names a file"):
        client.request("open_model", {"name": f"{NETS}:net", "options": options}, timeout_s=60).result(60)


def test_wrong_weights_are_named(client):
    with pytest.raises(Refused) as refusal:
        client.request("open_model", {"name": f"{NETS}:net", "state_hash": "f" * 64}, timeout_s=60).result(60)
    assert "f" * 64 in str(refusal.value)
    assert state_hash(small_nets.net()) in str(refusal.value)


def _described(**changes):
    descriptors, buffers = pack_tensors(X, "raw")
    descriptors[0].update(changes)
    return descriptors, buffers


@pytest.mark.parametrize(
    "descriptors",
    [
        None,
        {},
        [],
        [7],
        [{}],
        _described(shape=[-2])[0],
        _described(shape=[1 << 39])[0],
        _described(shape=[1 << 20, 1 << 20])[0],
        _described(shape=[1 << 62])[0],
        _described(shape=[2.0])[0],
        _described(shape=[True, 2])[0],
        _described(shape=[1] * 40)[0],
        _described(shape="2")[0],
        _described(shape=[3])[0],
        _described(dtype="object")[0],
        _described(dtype="float64")[0],
        _described(dtype=["float32"])[0],
        _described(parts=0)[0],
        _described(parts=-1)[0],
        _described(parts=2)[0],
        _described(parts="1")[0],
        _described(payload=None)[0],
        _described(payload={"codec": "raw", "dtype": "float32", "shape": [1 << 36]})[0],
        _described(payload={"codec": "pickle", "dtype": "float32", "shape": [2]})[0],
        _described(payload={"codec": "raw", "dtype": "uint8", "shape": [8]})[0],
        _described()[0] * 300,
    ],
)
def test_hostile_tensor_descriptors(server, client, descriptors):
    handle = open_model(client, "slow", seconds=0.0)
    before = psutil.Process(server.process.pid).memory_info().rss
    _, buffers = pack_tensors(X, "raw")
    with pytest.raises((ProtocolError, BadInput)):
        client.request("infer", {"handle": handle, "inputs": descriptors}, buffers, timeout_s=60).result(60)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 64 << 20, "refused before allocation"
    assert infer(client, handle).result(60).body["outputs"], "and the session goes on"


@pytest.mark.parametrize(
    "inputs",
    [
        "x",
        [{"dtype": "float32", "shape": [1 << 38]}],
        [{"dtype": "float32", "shape": [1 << 14, 1 << 14]}],
        [{"dtype": "no", "shape": []}],
        [{"dtype": "uint8", "shape": [1]}] * 300,
    ],
)
def test_hostile_input_specs_at_open(server, client, inputs):
    before = psutil.Process(server.process.pid).memory_info().rss
    with pytest.raises((ProtocolError, Refused)):
        client.request("open_model", {"name": f"{NETS}:slow", "inputs": inputs}, timeout_s=60).result(60)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 64 << 20


def test_shapes_other_than_opened_are_refused(client):
    handle = open_model(client, "slow", seconds=0.0)
    with pytest.raises(BadInput, match=r"float32\[3\] do not fit .* float32\[2\]"):
        infer(client, handle, [torch.zeros(3)]).result(60)


def test_handles_belong_to_one_connection(server, keys, client):
    handle = open_model(client, "slow", seconds=0.0)
    with Client(server.address, keys=KeyStore(keys), timings=TIMINGS) as other:
        other.wait_ready(60)
        with pytest.raises(BadInput, match="no model is open"):
            infer(other, handle).result(60)
    client.request("close_model", {"handle": handle}, timeout_s=60).result(60)
    with pytest.raises(BadInput, match="no model is open"):
        infer(client, handle).result(60)


def test_full_is_reported_at_once(server, client):
    handle = open_model(client, "gated")
    server.gate.shut()
    futures = [infer(client, handle) for _ in range(12)]
    until(lambda: sum(future.done() for future in futures) >= 7, 60)
    server.gate.open()
    outcomes = [future.exception(60) for future in futures]
    refused = [error for error in outcomes if error is not None]
    assert refused
    assert all(isinstance(error, Refused) and "full" in error.cause and error.remedy for error in refused)
    assert 4 <= len(outcomes) - len(refused) <= 5, "four wait, and one may be under way"


def test_a_request_that_cannot_be_in_time_is_refused_not_computed(server, client):
    handle = open_model(client, "gated")
    server.gate.shut()
    measured = infer(client, handle)
    server.gate.wait_until_reached()
    time.sleep(0.5)  # what an inference is thought to take from now on
    server.gate.open()
    measured.result(60)
    count = ServerStatus.from_dict(client.request("status", timeout_s=60).result(60).body).inferences
    server.gate.shut()
    first = infer(client, handle)
    server.gate.wait_until_reached()
    second = infer(client, handle)
    late = infer(client, handle, wait_s=0.1)
    with pytest.raises(Refused, match="full"):
        late.result(60)
    assert not first.done(), "the refusal came at once, not when its turn came"
    server.gate.open()
    first.result(60)
    second.result(60)
    assert ServerStatus.from_dict(client.request("status", timeout_s=60).result(60).body).inferences == count + 2


def test_model_errors_name_the_model_and_spare_the_server(client):
    handle = open_model(client, "moody")
    with pytest.raises(RemoteError, match=rf"{NETS}:moody.*ValueError: negative input"):
        infer(client, handle, [torch.tensor([-1.0, 0.0])]).result(60)
    with pytest.raises(RemoteError, match=r"sys\.exit"):
        infer(client, handle, [torch.tensor([101.0, 0.0])]).result(60)
    assert infer(client, handle).result(60).body["outputs"]


def test_server_answers_while_it_computes(server, client):
    handle = open_model(client, "gated")
    server.gate.shut()
    computing = infer(client, handle)
    server.gate.wait_until_reached()
    status = ServerStatus.from_dict(client.request("status", timeout_s=60).result(60).body)
    assert not computing.done(), "the status came while the device was busy"
    server.gate.open()
    assert status.sessions >= 1
    computing.result(60)
    status = ServerStatus.from_dict(client.request("status", timeout_s=60).result(60).body)
    assert status.models[f"{NETS}:gated"].mean_s > 0
    assert status.load > 0
    assert status.bytes_in > 0


def test_unknown_request_and_bad_wait(client):
    with pytest.raises(ProtocolError, match="answers no"):
        client.request("fly", timeout_s=60).result(60)
    handle = open_model(client, "slow", seconds=0.0)
    for wait in ("soon", -1, float("1e300")):
        with pytest.raises(ProtocolError, match="wait_s"):
            infer(client, handle, wait_s=wait).result(60)


def test_failed_bind_is_an_error_exit(server, keys, tmp_path):
    import subprocess
    import sys

    command = [sys.executable, "-m", "edge_offload.cli", "serve", "--keys", str(pathlib.Path(str(keys)))]
    taken = subprocess.run(
        [*command, "--bind", server.address], capture_output=True, text=True, timeout=300, check=False
    )
    assert taken.returncode == 1
    assert "cannot listen" in taken.stderr
    assert "Traceback" not in taken.stderr
    open_to_all = subprocess.run(
        [*command, "--bind", "tcp://0.0.0.0:0"], capture_output=True, text=True, timeout=300, check=False
    )
    assert open_to_all.returncode == 1
    assert "without keys" in open_to_all.stderr


def test_results_reach_watchers_in_every_mode(keys, robot):
    from edge_offload.mode import Mode
    from edge_offload.server.server import OffloadServer
    from edge_offload.server.settings import Compute, Models

    seen = []
    with OffloadServer(models=Models([f"{NETS}:slow"]), keys=KeyStore(keys), compute=Compute("cpu")) as server:
        server.on_result(lambda _: 1 / 0)  # a broken watcher harms nobody
        server.on_result(seen.append)
        bot = robot(server.address, "slow", example=X, seconds=0.0, report_results=True)
        bot.wait_open(X)
        until(lambda: seen, 60)
        seen.clear()
        for number, mode in enumerate((Mode.SERVER, Mode.LOCAL)):
            bot.run(X, mode, meta={"seq": number})
            until(lambda count=number + 1: len(seen) == count, 60)
        bot.client.notify("report", {"model": "x", "mode": "walking", "outputs": []})
        bot.client.notify(
            "report", {"model": "x", "mode": "local", "outputs": [{"dtype": "uint8", "shape": [1 << 30]}]}
        )
        assert server.status().sessions == 1
    assert [(item.mode, item.meta["seq"]) for item in seen] == [(Mode.SERVER, 0), (Mode.LOCAL, 1)]
    assert all(bit_equal(item.outputs, [X[0] * 2]) for item in seen)
    assert seen[1].cost["total_s"] > 0


@pytest.mark.parametrize("path", ["weights", "weights.pt", "/etc/passwd"])
def test_a_peer_names_no_file_of_the_server(client, path):
    with pytest.raises(Refused, match=r"checkpoint=.* names a file") as caught:
        client.request(
            "open_model", {"name": "kapao_n", "options": {"checkpoint": path}, "inputs": []}, timeout_s=60
        ).result(60)
    assert "--option kapao_n.checkpoint=" in caught.value.remedy
