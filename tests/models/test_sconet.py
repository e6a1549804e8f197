"""SCONet: its parts against slow references, what it may never show, and what it refuses to read."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from edge_offload.errors import BadInput
from edge_offload.models import registry
from edge_offload.models.scenes.labels import COLOURS, GROUND, IGNORED, LABELS, VALUE
from edge_offload.models.sconet.baselines import BASELINES, close_gaps, fill_columns, label_sweep
from edge_offload.models.sconet.completer import SceneCompleter, save_weights
from edge_offload.models.sconet.network import (
    CrissCross,
    DilatedHead,
    MobileViT,
    SCONet,
    SeparableAttention,
    ground_level,
)
from edge_offload.models.voxels import VoxelGrid
from edge_offload_training.sconet.metrics import Confusion

SMALL = VoxelGrid((-3.2, -3.2, -2.0), 0.2, (32, 48, 32))


def test_labels_have_the_shape_of_the_occupancy():
    network = SCONet().eval()
    occupancy = (torch.rand(32, 48, 32) < 0.02).to(torch.uint8)
    with torch.inference_mode():
        (labels,) = network(occupancy)
        logits = network.logits(occupancy[None].float())
    assert labels.dtype == torch.uint8
    assert labels.shape == occupancy.shape
    torch.testing.assert_close(labels.long(), logits[0].argmax(dim=0))


def test_the_network_has_the_published_make_up():
    network = SCONet()
    parameters = sum(tensor.numel() for tensor in network.parameters())
    assert 0.45e6 < parameters < 0.7e6
    assert [layer.dilation for layer in network.head.first] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert network.head.classify.out_channels == len(LABELS) == len(COLOURS) == 20
    dense = [
        layer for layer in network.unet.modules() if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size > (1, 1)
    ]
    assert sum(layer.groups == 1 for layer in dense) == 1, "all but the first convolution are depthwise separable"


def test_each_height_of_the_head_is_where_it_was_in_the_sweep():
    """A change at one voxel changes the head's logits near it, at that height, and nowhere else."""
    head = DilatedHead(4).eval()
    volume = torch.randn(1, 4, 32, 32, 32)
    changed = volume.clone()
    changed[0, :, 20, 5, 9] += 1.0
    with torch.inference_mode():
        moved = (head(volume) - head(changed)).abs().amax(dim=(0, 1)) > 1e-7
    where = moved.nonzero()
    assert len(where)
    assert (where - torch.tensor([20, 5, 9])).abs().max() <= 8


def test_criss_cross_attention_is_a_softmax_over_row_and_column():
    block = CrissCross(16).eval()
    with torch.no_grad():
        block.gain.fill_(0.7)
    x = torch.randn(1, 16, 5, 6)
    with torch.no_grad():
        query, key, value = block.query(x)[0], block.key(x)[0], block.value(x)[0]
        expected = x.clone()
        for i in range(5):
            for j in range(6):
                cells = [(i, b) for b in range(6)] + [(a, j) for a in range(5) if a != i]
                scores = torch.stack([query[:, i, j] @ key[:, a, b] for a, b in cells])
                weights = torch.softmax(scores, dim=0)
                mixed = sum(weight * value[:, a, b] for weight, (a, b) in zip(weights, cells))
                expected[0, :, i, j] += 0.7 * mixed
        torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)


def test_separable_attention_shares_one_context_per_sequence():
    block = SeparableAttention(8).eval()
    x = torch.randn(2, 8, 4, 5)
    with torch.no_grad():
        expected = torch.empty_like(x)
        for b in range(2):
            for p in range(4):
                tokens = x[b, :, p]
                scores = torch.softmax(block.score(x)[b, 0, p], dim=0)
                context = (block.key(x)[b, :, p] * scores).sum(dim=1)
                gated = torch.relu(block.value(x)[b, :, p]) * context[:, None]
                expected[b, :, p] = block.out.weight[:, :, 0, 0] @ gated + block.out.bias[:, None]
                assert tokens.shape == (8, 5)
        torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)


def test_a_mobilevit_block_puts_every_patch_back_where_it_was():
    block = MobileViT(8, 1).eval()
    with torch.no_grad():
        for module in (block.attentions[0].out, block.feeds[0][3]):
            module.weight.zero_()
            module.bias.zero_()
        x = torch.randn(1, 8, 6, 10)
        # without attention the block is its local part alone
        torch.testing.assert_close(block(x), x + block.project_norm(block.project(block.local(x))))


@pytest.mark.process
def test_random_weights_are_never_shown_as_a_scene(monkeypatch, tmp_path):
    monkeypatch.setattr("edge_offload.models.sconet.completer.SHIPPED", tmp_path / "absent")
    completer = SceneCompleter(grid=SMALL)
    points = np.random.default_rng(0).uniform(-3, 3, (400, 3))
    assert not completer.trained
    full = completer.complete(points) > 0
    np.testing.assert_array_equal(full, completer.grid.occupancy(points) > 0)


@pytest.mark.process
def test_hit_voxels_stay_full_whatever_the_network_computes(tmp_path):
    file = tmp_path / "w.safetensors"
    network = SCONet()
    with torch.no_grad():
        # this network finds everything empty
        network.head.classify.weight.zero_()
        network.head.classify.bias.copy_(torch.eye(20)[0])
    save_weights(network, file, {})
    completer = SceneCompleter(str(file), grid=SMALL)
    points = np.random.default_rng(0).uniform(-3, 3, (400, 3))
    assert completer.trained
    np.testing.assert_array_equal(completer.complete(points) > 0, SMALL.occupancy(points) > 0)


def test_weights_survive_a_file_in_half_precision(tmp_path):
    network = SCONet()
    save_weights(network, tmp_path / "w.safetensors", {"step": "7"})
    module = SceneCompleter(str(tmp_path / "w.safetensors")).module
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    assert registry.state_hash(registry.build_module("sconet", weights=str(tmp_path / "w.safetensors"))) == (
        registry.state_hash(module)
    )


@pytest.mark.parametrize("content", [b"", b"\x80\x04cos\nsystem\n", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_or_hostile_weights_file_is_refused(tmp_path, content):
    file = tmp_path / "evil.safetensors"
    file.write_bytes(content)
    with pytest.raises(BadInput, match="evil"):
        SceneCompleter(str(file))


def test_outputs_that_are_no_labels_of_this_grid_are_refused(tmp_path):
    file = tmp_path / "w.safetensors"
    save_weights(SCONet(), file, {})
    completer = SceneCompleter(str(file), grid=SMALL)
    occupancy = completer.prepare(np.zeros((0, 3)))
    fine = torch.zeros(SMALL.shape, dtype=torch.uint8)
    for wrong in ([fine.float()], [fine[:16]], [fine, fine], [], [fine + 20]):
        with pytest.raises(BadInput):
            completer.interpret(wrong, occupancy)


def test_a_grid_that_the_network_cannot_take_is_refused():
    for shape in ((30, 32, 32), (32, 32, 16)):
        with pytest.raises(BadInput, match="grid"):
            SceneCompleter(grid=VoxelGrid(shape=shape)).prepare(np.zeros((0, 3)))


def test_the_registry_has_sconet_and_excludes_its_file_for_peers():
    entry = registry.entries()["sconet"]
    assert entry.kind == "scene"
    assert entry.path_options == ("weights",)
    one, other = (registry.state_hash(registry.build_module("sconet", seed=seed)) for seed in (0, 1))
    if not SceneCompleter().trained:
        assert one != other


grids = st.integers(0, 100_000).map(
    lambda seed: np.random.default_rng(seed).integers(0, 20, (6, 5, 4)).astype(np.uint8)
)


@settings(deadline=None, max_examples=30)
@given(grids, grids, st.integers(0, 1000))
def test_scores_are_what_counting_voxel_by_voxel_gives(predicted, truth, seed):
    truth = np.where(np.random.default_rng(seed).random(truth.shape) < 0.2, IGNORED, truth)
    confusion = Confusion()
    confusion.add(predicted, truth)
    pairs = [(int(f), int(t)) for f, t in zip(predicted.ravel(), truth.ravel()) if t != IGNORED]
    both = sum(f > 0 and t > 0 for f, t in pairs)
    assert confusion.completion_iou == pytest.approx(both / sum(f > 0 or t > 0 for f, t in pairs))
    ious = []
    for label in range(1, 20):
        if any(t == label for _, t in pairs):
            union = sum(label in (f, t) for f, t in pairs)
            ious.append(sum(f == t == label for f, t in pairs) / union)
    assert confusion.mean_iou == pytest.approx(np.mean(ious))


def test_scores_refuse_grids_that_do_not_fit():
    confusion = Confusion()
    with pytest.raises(BadInput):
        confusion.add(np.zeros((2, 2, 2), dtype=np.uint8), np.zeros((2, 2, 3), dtype=np.uint8))
    with pytest.raises(BadInput):
        confusion.add(np.full((2, 2, 2), 20, dtype=np.uint8), np.zeros((2, 2, 2), dtype=np.uint8))


def test_baselines_preserve_hits_and_fill_as_described():
    occupancy = np.zeros((40, 40, 32), dtype=np.uint8)
    occupancy[::5, ::5, 2] = 1
    occupancy[20, 20, 9] = 1
    for method in BASELINES.values():
        assert (method(occupancy)[occupancy > 0] > 0).all()
    assert ((label_sweep(occupancy) > 0) == (occupancy > 0)).all()
    filled = fill_columns(occupancy)
    assert (filled[:, :, 2] > 0).all(), "the ground is spread to where there is none"
    assert (filled[20, 20, 2:10] > 0).all(), "an object reaches down to the ground"
    assert not filled[21, 21, 3:].any()
    assert VALUE["road"] in GROUND


@pytest.mark.process
def test_the_ground_is_filled_in_between_the_rings_that_hit_it():
    x, y = np.meshgrid(np.arange(96), np.arange(80), indexing="ij")
    truth = 2.0 + 0.05 * x
    occupancy = np.zeros((96, 80, 32), dtype=np.float32)
    rings = np.abs(np.hypot(x - 10, y - 40) % 12) < 1.0
    occupancy[x[rings], y[rings], np.rint(truth[rings]).astype(int)] = 1
    # a crown of a tree above the ground that nothing hit under it, and a wall that stands on it
    occupancy[50:53, 20:23, 20:26] = 1
    occupancy[70, 30:50, 6:20] = 1
    level = ground_level(torch.from_numpy(occupancy)[None])[0].numpy()
    assert np.abs(level - truth).mean() < 0.6
    assert np.abs(level - truth).max() < 3.0
    sparse = rings.copy()
    sparse[50:53, 20:23] = False
    np.testing.assert_allclose(level[sparse], np.rint(truth[sparse]), atol=1e-5)


def test_where_nothing_was_hit_the_ground_is_where_the_grid_puts_it():
    assert (ground_level(torch.zeros(2, 48, 80, 32)) == 1.0).all()


@pytest.mark.parametrize("seed", range(12))
def test_closing_is_scipys(seed):
    random = np.random.default_rng(seed)
    full = random.random((20, 16, 8)) < random.choice([0.01, 0.05, 0.3])
    by_scipy = ndimage.binary_closing(np.pad(full, 4), np.ones((7, 7, 3), dtype=bool))[4:-4, 4:-4, 4:-4]
    assert ((close_gaps(full.astype(np.uint8)) > 0) == by_scipy).all()
