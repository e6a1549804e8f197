"""Several frames at once: the same results as one by one, as far as a batch's verdict says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from edge_offload.execute.batches import MAX_RELATIVE_ERROR, BatchExecutor
from edge_offload.execute.engines.base import EXACT, Direct
from edge_offload.execute.engines.seat import Seat
from edge_offload.execute.module import ModuleExecutor
from edge_offload.models.registry import build_module
from tests.execute.emulated_graphs import EmulatedDriver


def frames_of(count: int, *shape: int, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    return [[torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)] for _ in range(count)]


@pytest.mark.parametrize("name", ["kapao_vtest", "movenet"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_batch_of_people_networks_is_what_single_frames_are(name: str, size: int) -> None:
    executor = ModuleExecutor(build_module(name))
    batches = BatchExecutor(executor)
    frames = frames_of(size, 3, 128, 192, seed=size)
    verdict = batches.compare_batch(frames)
    assert not verdict.reason
    assert verdict.error <= MAX_RELATIVE_ERROR
    for frame, together in zip(frames, batches.run(frames)):
        single = executor.run_module(frame)
        assert len(single.outputs) == len(together.outputs)
        assert together.engine == f"eager batch {size}"
        for want, batched in zip(single.outputs, together.outputs):
            if verdict.equal:
                assert torch.equal(want, batched)
            elif want.shape == batched.shape:
                assert torch.allclose(want.float(), batched.float(), rtol=1e-3, atol=1e-3)


class CustomNet(nn.Module):
    """A module of a user's, which knows of no batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor, gain: torch.Tensor):
        maps = self.conv(image.float()[None])
        return maps.mean(dim=(2, 3)) * gain, maps.amax(dim=1)


def test_a_module_without_batches_is_mapped_over_them() -> None:
    torch.manual_seed(0)
    executor = ModuleExecutor(CustomNet())
    batches = BatchExecutor(executor)
    frames = [[*frame, torch.full((1,), 0.5 + n)] for n, frame in enumerate(frames_of(4, 3, 20, 24))]
    verdict = batches.compare_batch(frames)
    assert not verdict.reason
    for frame, together in zip(frames, batches.run(frames)):
        for want, batched in zip(executor.run_module(frame).outputs, together.outputs):
            batched.mul_(1)  # results are the caller's
            assert want.shape == batched.shape
            assert torch.allclose(want, batched, rtol=1e-5, atol=1e-5)


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


def test_unbatchable_inputs_are_reported() -> None:
    frames = frames_of(2, 3, 8, 8)
    mapped = BatchExecutor(ModuleExecutor(DataDependent())).compare_batch(frames)
    assert mapped.reason
    assert math.isnan(mapped.error)
    mixed = BatchExecutor(ModuleExecutor(Mixing())).compare_batch(frames)
    assert "from single frames" in mixed.reason
    assert mixed.error > MAX_RELATIVE_ERROR


def test_one_frame_runs_as_in_the_executor() -> None:
    executor = ModuleExecutor(build_module("movenet"))
    frame = frames_of(1, 3, 64, 64)[0]
    single = BatchExecutor(executor).run([frame])[0]
    assert all(torch.equal(a, b) for a, b in zip(single.outputs, executor.run_module(frame).outputs))
    assert single.engine == "eager"


class OnGraphs(Direct):
    """CUDA graphs, emulated on a CPU."""

    name, accuracy, distributions, device = "graphs", EXACT, ("torch",), "cpu"

    def capture(self, run, inputs):
        return EmulatedEngine(run, inputs)


class EmulatedEngine:
    def __init__(self, run, inputs):
        self._inputs = [one.clone() for one in inputs]
        self._outputs = []
        self._graph = EmulatedDriver().capture(lambda: self._outputs.extend(run(self._inputs)))

    def run(self, inputs):
        with torch.inference_mode():
            for mine, given in zip(self._inputs, inputs):
                mine.copy_(given)
            self._graph.replay()
            return [one.clone() for one in self._outputs]


@pytest.mark.parametrize("name", ["kapao_vtest", "own"])
def test_prepared_batches_are_graphs_with_the_bits_of_torch(name: str) -> None:
    torch.manual_seed(0)
    executor = ModuleExecutor(CustomNet() if name == "own" else build_module(name))
    eager = BatchExecutor(executor)
    executor._seat = Seat(executor.module, lambda inputs: (), OnGraphs())
    batches = BatchExecutor(executor)
    for size in (2, 3):
        for seed in range(3):
            frames = frames_of(size, 3, 64, 64, seed=10 * size + seed)
            if name == "own":
                frames = [[*frame, torch.full((1,), 0.5 + n + seed)] for n, frame in enumerate(frames)]
            if not seed:
                batches.prepare_batch(frames)
            for want, batched in zip(eager.run(frames), batches.run(frames)):
                assert batched.engine.startswith("graphs ")
                assert batched.engine.endswith(f" batch {size}")
                assert all(torch.equal(a, b) for a, b in zip(want.outputs, batched.outputs))


def test_batches_of_a_servers_network_are_compiled_steps_with_the_bits_of_torch() -> None:
    executor = ModuleExecutor(build_module("movenet"), engine="exact")
    batches, eager = BatchExecutor(executor), BatchExecutor(ModuleExecutor(executor.module))
    batches.prepare_batch(frames_of(2, 3, 64, 64, seed=1))
    frames = frames_of(2, 3, 64, 64, seed=2)
    for want, together in zip(eager.run(frames), batches.run(frames)):
        assert together.engine.startswith("eager+steps ")
        assert all(torch.equal(a, b) for a, b in zip(want.outputs, together.outputs))


def test_a_batch_that_cannot_be_captured_is_computed_by_torch() -> None:
    class Refusing(OnGraphs):
        def capture(self, run, inputs):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    executor = ModuleExecutor(CustomNet())
    executor._seat = Seat(executor.module, lambda inputs: (), Refusing())
    batches = BatchExecutor(executor)
    frames = [[*frame, torch.ones(1)] for frame in frames_of(2, 3, 20, 24)]
    batches.prepare_batch(frames)
    assert [one.engine for one in batches.run(frames)] == ["eager batch 2"] * 2
