"""KAPAO's network: size, cost, names, random weights, folding, and that tracers take it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edge_offload.errors import BadInput
from edge_offload.ir.build import can_export
from edge_offload.models.kapao import random
from edge_offload.models.kapao.network import SCALES, Kapao, fold_norms
from edge_offload.models.registry import build_estimator, build_module, state_hash


@pytest.mark.parametrize(
    ("scale", "million_parameters", "gflop"), [("n", 3.2, 4.57), ("s", 12.6, 17.1), ("m", 35.8, 51.9), ("l", 77.0, 117)]
)
def test_size_and_cost_are_the_published_ones(scale, million_parameters, gflop):
    flop_counter = pytest.importorskip("torch.utils.flop_counter", reason="torch 2.0 does not count operations")
    with torch.device("meta"):
        network = Kapao(SCALES[scale])
        with flop_counter.FlopCounterMode(display=False) as counter:
            network(torch.zeros((3, 640, 640), dtype=torch.uint8))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    assert parameters / 1e6 == pytest.approx(million_parameters, abs=0.06)
    assert counter.get_total_flops() / 1e9 == pytest.approx(gflop, rel=0.006)


def test_maps_have_171_channels_at_strides_8_to_64():
    maps = Kapao(SCALES["n"]).eval()(torch.zeros((3, 128, 192), dtype=torch.uint8))
    assert [tuple(m.shape) for m in maps] == [(1, 171, 128 // s, 192 // s) for s in (8, 16, 32, 64)]


def test_red_enters_first_and_255_is_one():
    network = Kapao(SCALES["n"]).eval()
    seen = []
    network.model[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(torch.tensor([255, 0, 51], dtype=torch.uint8).view(3, 1, 1).expand(3, 64, 64))
    assert tuple(seen[0].shape) == (1, 3, 64, 64)
    assert seen[0][0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])


def test_random_weights_depend_on_the_seed_and_on_nothing_else():
    hashes = []
    for threads, seed in ((1, 5), (2, 5), (1, 6)):
        torch.set_num_threads(threads)
        torch.manual_seed(threads)
        hashes.append(state_hash(build_module("kapao_n", seed=seed)))
    assert hashes[0] == hashes[1] != hashes[2]


def test_random_weights_make_errors_visible():
    estimator = build_estimator("kapao_s", size=256)
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, 192, 256), dtype=torch.uint8, generator=generator)
    maps = estimator.module.network(image)
    for m in maps:
        assert 0.2 < m.std() < 5
    # a change of one weight of the first layer in its fourth digit reaches every output
    weight = next(estimator.module.network.parameters())
    weight.view(-1)[0] += weight.abs().max() * 1e-4
    for before, after in zip(maps, estimator.module.network(image)):
        assert (before != after).float().mean() > 0.5
    persons, objects = build_estimator("kapao_s", size=256, conf=0.3, conf_kp=0.3).module(image)
    assert len(persons) > 0
    assert len(objects) > 0


def test_folding_changes_rounding_only():
    network = Kapao(SCALES["n"]).eval()
    random.fill_random(network, 0)
    image = torch.randint(0, 256, (3, 128, 128), dtype=torch.uint8)
    before = network.double()(image)
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
    after = fold_norms(network)(image)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
    for a, b in zip(before, after):
        assert (a - b).abs().max() < 1e-12 * a.abs().max()


def test_the_dense_part_can_be_exported_and_traced():
    network = build_module("kapao_n", size=128).network
    image = torch.randint(0, 256, (3, 128, 128), dtype=torch.uint8)
    expected = network(image)
    # up to torch 2.3 it decomposes, and rounds otherwise
    exported = torch.export.export(network, (image,)).module() if can_export() else network
    for a, b, c in zip(expected, exported(image), torch.fx.symbolic_trace(network)(image)):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_what_is_not_trained_never_finds_anybody():
    estimator = build_estimator("kapao_n", size=256, conf=0.01, conf_kp=0.01)
    assert estimator.trained is False
    picture = np.random.default_rng(0).integers(0, 256, (120, 200, 3), dtype=np.uint8)
    image, placement = estimator.prepare(picture)
    outputs = estimator.module(image)
    assert len(outputs[0]) > 0
    assert len(estimator.interpret(outputs, placement)) == 0
    assert len(estimator.infer(picture)) == 0
    decoded = estimator.decode(outputs, placement)
    assert len(decoded) == len(outputs[0])
    assert decoded.boxes[:, 0::2].max() <= 200
    assert decoded.boxes[:, 1::2].max() <= 120


@pytest.mark.parametrize("options", [{"preset": "fast"}, {"conf": 1.5}, {"conf_kp": -0.1}, {"size": 100}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(BadInput):
        build_estimator("kapao_n", **options).prepare(np.zeros((8, 8, 3), np.uint8))


def test_outputs_of_another_model_are_refused():
    estimator = build_estimator("kapao_n")
    _, placement = estimator.prepare(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(BadInput, match="shapes"):
        estimator.decode([torch.zeros((10, 56))], placement)
