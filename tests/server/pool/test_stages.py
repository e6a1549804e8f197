"""A network in stages gives the bits of the whole, one frame at a time, and stays near it in batches."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edge_offload import cli
from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.engines.cuda_graph import CudaGraphEngine
from edge_offload.execute.module import as_tensors
from edge_offload.execute.threads import pin
from edge_offload.models import registry
from edge_offload.server.pool import measuring, parcels, profile, stages
from tests.execute.engines import graph_stand_in

CHAIN = "tests.server.pool.stage_nets:chain"
NETWORKS = {
    "kapao_n": "uint8[3,64,128]",
    "movenet": "uint8[3,96,128]",
    "resnet50": "float32[1,3,64,64]",
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    pin(threads=1)
    yield
    pin(threads=before)


def through(network, cuts, frames, ends):
    arrays = [parcels.pack_tensor(tensor) for one in frames for tensor in one]
    for first, end in zip((0, *ends), (*ends, cuts.block_count)):
        arrays = stages.StageRunner(network, cuts, first, end).run(len(frames), arrays)
    outputs = [parcels.unpack_tensor(parcel) for parcel in arrays]
    each = len(outputs) // len(frames)
    return [outputs[at * each : (at + 1) * each] for at in range(len(frames))]


def frame(spec, seed):
    source = torch.Generator().manual_seed(seed)
    if spec.torch_dtype.is_floating_point:
        return torch.randn(spec.shape, generator=source)
    return torch.randint(0, 256, spec.shape, generator=source, dtype=spec.torch_dtype)


@pytest.mark.process
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.release if name == "resnet50" else ()) for name in NETWORKS]
)
def test_stages_have_the_bits_of_the_undivided_network(name, tmp_path):
    try:
        module = registry.build_module(name).eval()
    except Exception as error:
        pytest.skip(f"{name} cannot be built here: {error}")
    network = stages.BatchedNetwork(module, stages.parse_inputs(NETWORKS[name]))
    cuts = measuring.cut_network(network)
    assert cuts.block_count >= 8
    frames = [[frame(spec, seed) for spec in network.inputs] for seed in range(3)]
    with torch.inference_mode():
        expected = [as_tensors(module(*one)) for one in frames]
    for ends in ((), (3,), (2, 7)):
        (outputs,) = through(network, cuts, frames[:1], ends)
        assert all(torch.equal(one, other) for one, other in zip(outputs, expected[0])), (name, ends)
    for outputs, undivided in zip(through(network, cuts, frames, (4,)), expected):
        for one, other in zip(outputs, undivided):
            if one.shape == other.shape and one.is_floating_point():  # read-outs keep what is above a threshold
                torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * max(float(other.abs().max()), 1.0))
    assert stages.Cuts.parse(json.loads(json.dumps(cuts.to_dict()))) == cuts
    with pytest.raises(BadInput, match="alive"):
        stages.StageRunner(network, cuts, 3, 4).run(1, [])
    with pytest.raises(BadInput, match="another network"):
        stages.StageRunner(network, stages.Cuts("0", cuts.bounds, cuts.inputs), 0, 1)


class StandIn:
    """Graphs on a CPU; ``spoilt``: outputs of its graphs are wrong."""

    def __init__(self, spoilt=False):
        self.spoilt, self.captures = spoilt, 0

    def capture(self, run, inputs):
        self.captures += 1
        engine = CudaGraphEngine(run, inputs, graph_stand_in)
        if not self.spoilt:
            return engine
        return SimpleNamespace(run=lambda given: [one + 1 for one in engine.run(given)])


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_stage_runs_as_a_graph_from_its_third_run_on_if_that_has_the_bits_of_its_calls(monkeypatch, spoilt):
    backend = StandIn(spoilt)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None, raising=False)
    monkeypatch.setattr(stages, "graph_backend", lambda device: backend)
    network = stages.BatchedNetwork(registry.build_module(CHAIN).eval(), stages.parse_inputs("float32[1,3,16,16]"))
    sequence = network.program_for(1).sequence
    cuts = stages.Cuts(stages.names_digest(sequence), (0, 2, len(sequence)),
                       network.inputs)  # fmt: skip
    with torch.inference_mode():
        module = registry.build_module(CHAIN).eval()
        parts = [stages.StageRunner(network, cuts, 0, 1), stages.StageRunner(network, cuts, 1, 2)]
        for seed in range(5):
            given = frame(network.inputs[0], seed)
            arrays = [parcels.pack_tensor(given)]
            for part in parts:
                arrays = part.run(1, arrays)
            assert torch.equal(parcels.unpack_tensor(arrays[0]), module(given)), seed
    assert backend.captures == 2, "one for each stage"
    assert [sum(graph is not None for graph in part._stage._graphs.values()) for part in parts] == [int(not spoilt)] * 2


@given(st.permutations(range(4)), st.sampled_from([torch.float32, torch.uint8, torch.bfloat16]), st.booleans())
def test_tensors_preserve_their_bytes_and_memory_order(order, dtype, gaps):
    tensor = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(dtype).permute(order)
    tensor = tensor[..., ::2] if gaps else tensor
    unpacked = parcels.unpack_tensor(parcels.pack_tensor(tensor))
    assert torch.equal(unpacked, tensor)
    assert gaps or unpacked.stride() == tensor.stride()


def test_bytes_that_are_not_of_the_shape_are_refused():
    dtype, shape, order, raw = parcels.pack_tensor(torch.zeros(2, 3))
    for wrong in ((dtype, (2, 4), order, raw), (dtype, shape, (0, 0), raw), (dtype, shape, order, raw[:-1].copy())):
        with pytest.raises(BadInput, match="bytes for"):
            parcels.unpack_tensor(wrong)


def test_a_network_without_frames_in_front_is_refused():
    with pytest.raises(Unsupported, match="no batch of frames"):
        stages.BatchedNetwork(nn.Linear(4, 4), stages.parse_inputs("float32[4]"))


@pytest.mark.parametrize("text", ["uint8", "uint8[3,x]", "uint8[-1]"])
def test_bad_inputs_are_named(text):
    with pytest.raises(BadInput):
        stages.parse_inputs(text)


@pytest.mark.process
def test_a_profile_is_measured_for_one_class_after_the_other(tmp_path, capsys):
    command = ["pool", "profile", CHAIN, "--input", "float32[1,3,32,32]", "--batches", "2", "--out", str(tmp_path)]
    assert cli.main([*command, "--class", "L4"]) == 0
    assert cli.main([*command, "--class", "P4"]) == 0
    network = profile.load_profiles(tmp_path)[CHAIN]
    assert set(network.latency_s) == {"L4", "P4"}
    assert network.latency_s["L4"][1].shape == (network.blocks, 2)
    assert np.all(network.cut_bytes > 0)
    assert stages.load_models(tmp_path)[CHAIN].cuts.block_count == network.blocks
    plan = ["pool", "plan", "--profiles", str(tmp_path), "--cluster", "2xL4,2xP4", "--network", CHAIN, "--slo", "9"]
    assert cli.main(plan) == 0
    assert "frames per second" in capsys.readouterr().out
