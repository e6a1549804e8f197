"""Members compute on the device that they joined with; a GPU is the virtual CUDA device, whose calls lag."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

from edge_offload.cli import main
from edge_offload.errors import BadInput, Unsupported
from edge_offload.native import libraries
from edge_offload.server.pool import accelerators, cluster, gateway, profile, stages
from edge_offload.server.pool.accelerators import Accelerator, Claims
from tests.server.pool.pool_nets import a_network
from tests.server.pool.test_cluster import CHAIN, CLI, ENVIRONMENT, ROOT, Cluster, needs_ray

LAUNCHER = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]
APP = pathlib.Path(__file__).with_name("device_app.py")
needs_compiler = pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device")


def gpus(count: int, model: str = "cuda-L4") -> list:
    return [Accelerator(f"cuda:{index}", model, f"{os.getpid()}-{index}") for index in range(count)]


@pytest.fixture(scope="module")
def outputs() -> SimpleNamespace:
    environment = {**ENVIRONMENT, "EDGE_OFFLOAD_ASYNC": "1"}
    command = [*LAUNCHER, sys.executable, str(APP)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.stdout, done.stderr
    return SimpleNamespace(**json.loads(done.stdout.splitlines()[0]), code=done.returncode, errors=done.stderr)


@needs_compiler
@pytest.mark.process
@pytest.mark.slow
def test_a_member_on_cuda_gives_the_bits_of_one_on_the_cpu(outputs):
    assert outputs.where == ["cpu", "cuda:0"], "GPU 1 of a machine with cpu,cuda:0"
    assert outputs.equal == [True] * 3, "batches of 1 to 3, behind each of two stages"
    assert (outputs.device, outputs.tf32) == ("cuda", False)


@needs_compiler
@pytest.mark.process
@pytest.mark.slow
def test_constants_reach_the_gpu_once_for_all_sizes_of_batches(outputs):
    assert outputs.moved == outputs.constants


@needs_compiler
@pytest.mark.process
@pytest.mark.slow
def test_blocks_are_measured_on_cuda(outputs):
    assert outputs.seconds > 0
    assert outputs.shape == [4, 2]
    assert outputs.crossing > 0
    assert outputs.label.startswith("cuda-")


@needs_compiler
@pytest.mark.process
@pytest.mark.slow
def test_a_read_out_computes_on_cuda_and_leaves_the_module_where_it_is(outputs):
    assert vars(outputs)["read out"]
    assert vars(outputs)["parameters on"] == "cpu"


@needs_compiler
@pytest.mark.process
@pytest.mark.slow
def test_a_worker_whose_gpu_failed_ends_with_the_reason(outputs):
    assert outputs.code == 1
    assert "this member ends: the GPU failed" in outputs.errors


@pytest.mark.unit
def test_each_worker_has_a_separate_gpu():
    first = Claims(gpus(3), 2, False)
    assert first.names == ["cuda:0", "cuda:1"]
    assert (first.label, first.shares) == ("cuda-L4", False)
    second = Claims(gpus(3), 1, False)
    assert second.names == ["cuda:2"], "the first that is free"
    refused = r"1 members need 1 GPUs, and 0 of 3 have no member.*slices of time; .*MPS.*--share-gpu"
    with pytest.raises(BadInput, match=refused):
        Claims(gpus(3), 1, False)
    first.close()
    with pytest.raises(BadInput, match="3 members need 3 GPUs, and 2 of 3"):
        Claims(gpus(3), 3, False)
    claims = Claims(gpus(3), 2, False)
    assert claims.names == ["cuda:0", "cuda:1"], "a refusal takes nothing"
    for each in (second, claims):
        each.close()


@pytest.mark.unit
def test_members_share_a_gpu_where_that_is_meant():
    shared = [Claims(gpus(1), 2, True), Claims(gpus(1), 1, True)]
    assert [each.names for each in shared] == [["cuda:0", "cuda:0"], ["cuda:0"]]
    assert shared[0].shares
    with pytest.raises(BadInput, match="0 of 1"):
        Claims(gpus(1), 1, False)
    for each in shared:
        each.close()
    assert Claims([Accelerator("cpu")], 3, False).names == ["cpu"] * 3


@pytest.mark.unit
def test_gpus_of_several_models_are_not_one_class():
    mixed = [gpus(1)[0], Accelerator("cuda:1", "cuda-P4", f"{os.getpid()}-p4")]
    with pytest.raises(BadInput, match=r"several models: cuda-L4, cuda-P4; join once for each class"):
        Claims(mixed, 2, False)
    Claims(mixed, 1, False).close()


@pytest.mark.unit
def test_mps_is_seen_by_its_pipes_and_its_daemon(tmp_path, monkeypatch):
    import psutil

    monkeypatch.setenv(accelerators.MPS_PIPES, str(tmp_path))
    assert not accelerators.mps_runs()
    (tmp_path / "control").touch()
    assert accelerators.mps_runs()
    monkeypatch.delenv(accelerators.MPS_PIPES)
    monkeypatch.setattr(accelerators, "MPS_DEFAULT", str(tmp_path))
    monkeypatch.setattr(psutil, "process_iter", lambda _: [SimpleNamespace(info={"name": "python"})])
    assert not accelerators.mps_runs(), "pipes that a daemon has left behind"
    monkeypatch.setattr(psutil, "process_iter", lambda _: [SimpleNamespace(info={"name": "nvidia-cuda-mps-control"})])
    assert accelerators.mps_runs()


@pytest.mark.unit
def test_classes_are_of_one_device():
    node = cluster.PoolNode("n", "L4", 1, 0.0, device="cuda-NVIDIA-L4")
    assert gateway.explain_mismatch(node, {"L4": "cuda-NVIDIA-L4"}) == ""
    why = gateway.explain_mismatch(node, {"L4": "cuda-NVIDIA-T4"})
    assert "computes on cuda-NVIDIA-L4, and class L4 was measured on cuda-NVIDIA-T4: join with --device" in why
    assert "measured on cpu" in gateway.explain_mismatch(node, {"P4": "cuda-NVIDIA-L4"}), "older profiles are of CPUs"
    assert gateway.explain_mismatch(cluster.PoolNode("n", "L4", 1, 2.0), {"L4": "cuda-NVIDIA-L4"}) == "", (
        "an emulated one"
    )
    assert gateway.explain_mismatch(cluster.PoolNode("n", "L4", 1, 0.0), {}) == ""


@pytest.mark.unit
def test_status_lists_devices_of_workers_and_unused_ones(monkeypatch, capsys):
    members = [cluster.PoolNode(f"{name}123456789", "L4", 1, 0.0, device="cuda-NVIDIA-L4") for name in "ab"]
    server = {
        "model": "net", "slo_s": 0.2, "rate": 1.0, "why": "plan 1", "requests": 0, "answered": 0, "in_time": 0,
        "refused": 0, "moved": 0, "passed_over": 0, "stages": [],
        "nodes": [{"id": "a1234567", "problem": ""}, {"id": "b1234567", "problem": "it computes on another device"}],
    }  # fmt: skip
    monkeypatch.setattr(cluster, "connect_ray", lambda *_: SimpleNamespace(shutdown=lambda: None))
    monkeypatch.setattr(cluster, "list_nodes", lambda _: members)
    monkeypatch.setattr(cluster, "read_statuses", lambda *_: [server])
    assert main(["pool", "status", "127.0.0.1:5790"]) == 0
    output = capsys.readouterr().out
    assert "a1234567  1 L4  computes on cuda-NVIDIA-L4\n" in output
    assert "b1234567  1 L4  it computes on another device\n" in output


@pytest.mark.unit
def test_gpus_without_mps_are_not_divided():
    network = a_network(random.Random(0), "net", ("H", "L"), 4, 4, 2)
    assert set(network.latency_s["H"]) == set(network.latency_s["L"]) == {1, 2}
    undivided = profile.without_shares(network, {"H"}).latency_s
    assert (set(undivided["H"]), set(undivided["L"])) == ({1}, {1, 2})


@pytest.mark.unit
def test_state_of_a_machine_is_read_from_ray(monkeypatch):
    monkeypatch.setattr(cluster, "list_versions", lambda: {"ray": "2.60.0"})
    resources = {f"{cluster.RESOURCE}L4": 2.0}
    labels = {"device": "cuda-NVIDIA-L4", "shares": "0", **cluster.list_versions()}
    nodes = [{"NodeID": "a", "Alive": True, "Resources": resources, "Labels": labels}]
    (node,) = cluster.list_nodes(SimpleNamespace(nodes=lambda: nodes))
    assert (node.device, node.shares, node.problem) == ("cuda-NVIDIA-L4", False, "")


@pytest.mark.process
@pytest.mark.parametrize("what", ["join", "profile"])
def test_a_missing_device_is_one_line(what, tmp_path, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = {
        "join": ["join", "127.0.0.1:9", "--class", "L4", "--pool-keys", str(tmp_path)],
        "profile": ["profile", CHAIN, "--input", "float32[1,3,32,32]", "--class", "L4", "--out", str(tmp_path)],
    }[what]
    if what == "join" and sys.version_info < (3, 10):
        pytest.skip("no Ray")
    assert main(["pool", *command, "--device", "cuda"]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "device 'cuda' is absent" in line
    assert main(["pool", *command, "--device", "tpu"]) != 0
    assert "no device 'tpu'" in capsys.readouterr().err


@pytest.mark.process
def test_unresponsive_devices_are_reported(monkeypatch):
    monkeypatch.setattr(accelerators.sys, "executable", "/bin/false")
    with pytest.raises(Unsupported, match=r"devices of this machine do not answer.*--device cpu"):
        accelerators.survey_devices("auto")


#: A stage of a member on the virtual device: what decides its bits, and what passes.
PROGRAM = """
import hashlib, json, pathlib, queue, sys, time
import torch
from edge_offload.server.pool import cluster, parcels, settings
from edge_offload.server.pool.seats import ActorPool
ray = cluster.connect_ray(sys.argv[1], pathlib.Path(sys.argv[2]))
folder = pathlib.Path(sys.argv[3])
model = {"name": sys.argv[4], **json.loads((folder / "blocks.json").read_text())[sys.argv[4]]}
happened = queue.Queue()
seats = ActorPool(ray, model, 1, 1, lambda *outputs: happened.put(outputs), "test")
found = {}
for node in cluster.list_nodes(ray):
    seats.find_or_start((node.name, node.gpu, 0, 0), time.monotonic())
    what, about = happened.get(timeout=90)
    assert what == "seated", (what, about)
    actor = about[1]
    while ray.get(actor.ready.remote(), timeout=90) <= 0:
        pass
    _, arrays = ray.get(actor.run.remote((1, 0, 2), 1, [parcels.pack_tensor(torch.ones(1, 3, 32, 32))]), timeout=90)
    facts = ray.get(actor.fingerprint.remote(), timeout=60)
    bits = hashlib.sha256(b"".join(raw.tobytes() for *_, raw in arrays)).hexdigest()
    found[node.gpu] = [node.device, facts["where"], facts["visible"], bits]
    ray.kill(actor)
print(json.dumps(found), flush=True)
"""


@needs_ray
@needs_compiler
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(420)
def test_members_of_a_pool_see_their_gpu(tmp_path, monkeypatch):
    """One on the virtual device, whose environment says which GPUs are visible, and one on the CPU."""
    measure = ["profile", CHAIN, "--input", "float32[1,3,32,32]", "--batches", "1", "--blocks", "4"]
    for gpu, launcher, device in (("L4", LAUNCHER, "cuda"), ("P4", [], "cpu")):
        command = [*launcher, *CLI, *measure, "--class", gpu, "--device", device, "--out", str(tmp_path / "profiles")]
        subprocess.run(command, env=ENVIRONMENT, check=True)
    measured = stages.load_models(tmp_path / "profiles")[CHAIN].devices
    assert measured["L4"].startswith("cuda-")
    assert measured["P4"] == "cpu"
    pool = Cluster(tmp_path)
    try:
        monkeypatch.setitem(ENVIRONMENT, "CUDA_VISIBLE_DEVICES", "0")
        pool.join("L4", "--device", "cuda", launcher=LAUNCHER)
        pool.join("P4", "--device", "cpu")
        claims = ["join", pool.address, "--class", "L4", "--device", "cuda", "--pool-keys", str(pool.keys)]
        done = subprocess.run([*LAUNCHER, *CLI, *claims], capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert done.returncode != 0
        assert "1 members need 1 GPUs, and 0 of 1 have no member" in done.stderr.strip()
        command = [sys.executable, "-c", PROGRAM, pool.address, str(pool.keys), str(tmp_path / "profiles"), CHAIN]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, check=False)
        assert done.stdout, done.stderr[-3000:]
        facts = json.loads(done.stdout.splitlines()[-1])
    finally:
        pool.close()
    assert facts["L4"][:3] == [measured["L4"], "cuda:0", "0"]
    assert facts["P4"][:2] == ["cpu", "cpu"]
    assert facts["L4"][3] == facts["P4"][3], "the same bits: the virtual device is computed by this CPU"
