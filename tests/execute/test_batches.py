"""Several frames at once: the same results as one by one, as far as a batch's verdict says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from edge_offload.execute.batches import CLOSE, BatchExecutor
from edge_offload.execute.module import ModuleExecutor
from edge_offload.models.registry import build_module


def frames_of(count: int, *shape: int, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    return [[torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)] for _ in range(count)]


@pytest.mark.parametrize("name", ["kapao_vtest", "movenet"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_batch_of_people_networks_is_what_single_frames_are(name: str, size: int) -> None:
    executor = ModuleExecutor(build_module(name))
    batches = BatchExecutor(executor)
    frames = frames_of(size, 3, 128, 192, seed=size)
    verdict = batches.judge(frames)
    assert not verdict.reason
    assert verdict.error <= CLOSE
    for frame, together in zip(frames, batches.run(frames)):
        alone = executor.run(frame)
        assert len(alone.outputs) == len(together.outputs)
        assert together.engine == f"eager batch {size}"
        for want, found in zip(alone.outputs, together.outputs):
            if verdict.equal:
                assert torch.equal(want, found)
            elif want.shape == found.shape:
                assert torch.allclose(want.float(), found.float(), rtol=1e-3, atol=1e-3)


class Own(nn.Module):
    """A module of a user's, which knows of no batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor, gain: torch.Tensor):
        maps = self.conv(image.float()[None])
        return maps.mean(dim=(2, 3)) * gain, maps.amax(dim=1)


def test_a_module_that_knows_of_no_batches_is_mapped_over_them() -> None:
    torch.manual_seed(0)
    executor = ModuleExecutor(Own())
    batches = BatchExecutor(executor)
    frames = [[*frame, torch.full((1,), 0.5 + n)] for n, frame in enumerate(frames_of(4, 3, 20, 24))]
    verdict = batches.judge(frames)
    assert not verdict.reason
    for frame, together in zip(frames, batches.run(frames)):
        for want, found in zip(executor.run(frame).outputs, together.outputs):
            found.mul_(1)  # results are the caller's
            assert want.shape == found.shape
            assert torch.allclose(want, found, rtol=1e-5, atol=1e-5)


class DataDependent(nn.Module):
    """What its results are depends on the values, so that it cannot be mapped."""

    def forward(self, image: torch.Tensor):
        return image[image > image.float().mean()]


class Mixing(nn.Module):
    """Says that it takes batches, and mixes them up."""

    def forward(self, image: torch.Tensor):
        return self.batch(image[None])

    def batch(self, images: torch.Tensor):
        return images.float() - images.float().mean()


def test_what_cannot_be_batched_is_told() -> None:
    frames = frames_of(2, 3, 8, 8)
    mapped = BatchExecutor(ModuleExecutor(DataDependent())).judge(frames)
    assert mapped.reason
    assert math.isnan(mapped.error)
    mixed = BatchExecutor(ModuleExecutor(Mixing())).judge(frames)
    assert "from single frames" in mixed.reason
    assert mixed.error > CLOSE


def test_one_frame_alone_is_the_executors_own_run() -> None:
    executor = ModuleExecutor(build_module("movenet"))
    frame = frames_of(1, 3, 64, 64)[0]
    alone = BatchExecutor(executor).run([frame])[0]
    assert all(torch.equal(a, b) for a, b in zip(alone.outputs, executor.run(frame).outputs))
    assert alone.engine == "eager"
