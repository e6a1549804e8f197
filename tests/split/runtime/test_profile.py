"""Profiles round trip, make a cost model for their own network only; the verifier sees what is not exact."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import random
from dataclasses import replace
from typing import List, Tuple

import pytest
import torch
from torch import nn

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.tensors import pack_tensors
from edge_offload.ir import build
from edge_offload.ir.build import TracedProgram
from edge_offload.models.video import synthetic_frame
from edge_offload.split.model.check import BadPlan, check_plan
from edge_offload.split.model.complete import complete_plan
from edge_offload.split.model.locality import analyse_locality
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.space import Space
from edge_offload.split.planners.table import PLANNERS, Effort, plan_table
from edge_offload.split.runtime import profile as profiling
from edge_offload.split.runtime.profile import Profile, make_cost_model, measure_profile, time_copies
from edge_offload.split.runtime.tracing import trace_module
from edge_offload.subcommands import options
from edge_offload_research.commands.plan import bandwidth_bins
from edge_offload_research.networks import classifier_input
from edge_offload_research.split.model.draw import draw_plan
from edge_offload_research.split.model.exactness import Verifier, random_split
from tests.split.split_chains import Chain


def network(rows: int = 24) -> TracedNetwork:
    chain = Chain(torch.rand(1, 3, rows, 16))
    for _ in range(3):
        chain.call("aten.conv2d.default", chain.tail, torch.randn(3, 3, 3, 3), torch.randn(3), [1, 1], [1, 1])
        chain.call("aten.relu.default", chain.tail)
    chain.call("aten.mean.dim", chain.tail, [2, 3])
    program = TracedProgram(chain.finish(), chain.blobs)
    return TracedNetwork("stack", program, analyse_locality(program.sequence, {0: 2}), (chain.tensors[0],))


def test_profile_round_trips_and_plans(tmp_path: pathlib.Path) -> None:
    given = network()
    profile = replace(measure_profile(given, repeats=2), copies=time_copies(torch.clone, torch.zeros))
    profile.write(tmp_path / "robot.json")
    loaded = Profile.read(tmp_path / "robot.json")
    assert loaded == profile
    assert [len(points) > 1 for points in loaded.points] == [True] * 6 + [False], "a global operator has one size"
    model = make_cost_model(given.located, loaded, loaded, slowdown=5.0)
    assert model.robot[0].seconds_for(24) == pytest.approx(5.0 * model.server[0].seconds_for(24))
    table = plan_table(Space(model, [1e6]), "dsccs")
    assert set(model.copies) == set(Side)
    assert model.copies[Side.ROBOT].to_device.seconds_for(1 << 23) > 0
    assert profile.alone_s > 0
    assert model.alone_s == 5.0 * profile.alone_s
    local_s = model.alone_s + sum(model.local_copies_s(table.plans[0].robot))
    assert table.predicted_s[0] <= local_s * (1 + 1e-12)  # sums in another order round differently
    draw_plan(table.plans[0], model, 1e6, tmp_path / "plan.png", "stack")
    assert (tmp_path / "plan.png").stat().st_size > 10_000


class Maps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, picture: torch.Tensor) -> Tuple[torch.Tensor]:
        return (self.layer(picture),)


class Readout(nn.Module):
    """Counts its inferences in a buffer; with ``sizes`` its result has as many values as the data says."""

    def __init__(self, sizes: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.register_buffer("count", torch.zeros(1))

    def forward(self, maps: torch.Tensor) -> Tuple[torch.Tensor]:
        self.count.add_(1)
        return (maps[maps > 0] if self.sizes else maps + 1,)


class Counting(nn.Module):
    def __init__(self, sizes: bool) -> None:
        super().__init__()
        self.network, self.readout = Maps(), Readout(sizes)

    def forward(self, picture: torch.Tensor) -> Tuple[torch.Tensor]:
        output: Tuple[torch.Tensor] = self.readout(*self.network(picture))
        return output


@pytest.mark.parametrize("exports", [True, False])
def test_timing_a_network_preserves_its_state(exports: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    exports = exports and build.can_export()
    monkeypatch.setattr(build, "can_export", lambda: exports)
    pictures = (torch.rand(1, 3, 16, 16),)
    plain = Counting(sizes=False).eval()
    # where torch does not export, its readout is one operator
    refusal = pytest.raises(Unsupported, match="changes its own buffers") if exports else contextlib.nullcontext()
    with refusal:
        trace_module("counting", plain, pictures)
    assert plain.readout.count == 0
    module = Counting(sizes=True).eval()
    traced = trace_module("counting", module, pictures)
    before = module.readout.count.clone()
    assert before == 0
    assert traced.module is not None
    with torch.no_grad():
        assert torch.equal(traced.module(*pictures)[0], module(*pictures)[0])
    assert module.readout.count == before + 1, "the robot's own inference, no other"


def test_a_slow_network_is_timed_less_often_and_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    given = network()
    passes = []
    time_operators = profiling._NetworkPasses._time_operators
    monkeypatch.setattr(
        profiling._NetworkPasses, "_time_operators", lambda *args: passes.append(1) or time_operators(*args)
    )
    monkeypatch.setattr(profiling, "PASSES_S", math.inf)
    measure_profile(given, repeats=4, codecs=False)
    assert len(passes) == 5, "one to warm up"
    monkeypatch.setattr(profiling, "PASSES_S", 0.0)
    monkeypatch.setattr(profiling, "SLOW_S", 0.0)
    passes.clear()
    reports: List[str] = []
    measured = measure_profile(given, repeats=4, codecs=False, report=reports.append)
    assert len(passes) == 2
    assert [len(points) for points in measured.points] == [4] * 6 + [1], "every slice size is there all the same"
    assert all(points[-1][0] == 24 and points[-1][1] > 0 for points in measured.points[:6])
    assert reports[0] == "timing the network as a whole"
    warm = reports.count("timing the network as a whole, pass 1")
    assert warm >= 2 * profiling.PAUSE_STEPS, "others are given way in the pauses, too"
    assert reports[-1] == f"timing operator {len(measured.points)} of {len(measured.points)}"


def test_what_operators_make_is_coded_too_where_that_pays() -> None:
    given = network(rows=64)
    half_zero = [op.outputs[0] for op in given.program.sequence.operators if op.name == "aten.relu.default"]
    profile = measure_profile(given, repeats=1)
    model = make_cost_model(given.located, profile, profile, slowdown=4.0)
    value = half_zero[0]
    options = model.codecs[value]
    assert all(option.ratio > 1.05 for option in options)
    slow = options[0]
    assert slow.encode_s(1e6, Side.ROBOT) == pytest.approx(4.0 * slow.encode_s(1e6, Side.SERVER))
    assert slow.decode_s(1e6, Side.SERVER) == pytest.approx(4.0 * slow.decode_s(1e6, Side.ROBOT))
    both_ways = {0: (0, 64), 1: (0, 64), 4: (0, 64), 5: (0, 64), 6: (0, 1)}, {2: (0, 64), 3: (0, 64)}
    assert {transfer.sender for transfer in complete_plan(given.located, *both_ways).transfers} == set(Side)
    space = Space(model, [2e4])
    scored = space.score_ranges(*both_ways)
    plan = space.make_plan(scored, 2e4)
    assert {(t.sender, t.codec != "raw") for t in plan.transfers} == {(Side.ROBOT, True), (Side.SERVER, True)}
    plain = Space(model, [2e4], codecs=False)
    assert all(t.codec == "raw" for t in plain.make_plan(scored, 2e4).transfers)
    assert scored.makespan_s[0] < plain.score_ranges(scored.robot, scored.server).makespan_s[0]


def test_profile_of_another_network_or_no_profile_is_refused(tmp_path: pathlib.Path) -> None:
    profile = measure_profile(network(), repeats=1, codecs=False)
    with pytest.raises(BadInput, match="another network"):
        make_cost_model(network(rows=32).located, profile, profile)
    path = tmp_path / "broken.json"
    for text in ("{", "[]", json.dumps({**profile.to_record(), "operators": [[[0, 1.0]]]})):
        path.write_text(text)
        with pytest.raises(BadInput):
            Profile.read(path)


def test_input_has_256_values_a_channel_as_a_camera_gives() -> None:
    x = classifier_input(synthetic_frame(), 64)
    assert x.shape == (1, 3, 64, 64)
    assert max(len(channel.unique()) for channel in x[0]) <= 256


def test_options_take_the_types_of_the_defaults() -> None:
    defaults = {"size": 224, "fused": False, "conf": 0.5}
    given = ["size=96", "fused=yes", "conf=0.25", "checkpoint=a.safetensors"]
    assert options(given, defaults) == {"size": 96, "fused": True, "conf": 0.25, "checkpoint": "a.safetensors"}
    for wrong in ("size", "=3"):
        with pytest.raises(BadInput):
            options([wrong], defaults)
    assert len(bandwidth_bins()) == 31


def test_verifier_passes_every_planner_and_random_plans_and_refuses_a_missing_halo() -> None:
    given = network()
    profile = measure_profile(given, repeats=1, codecs=False)
    model = make_cost_model(given.located, profile, profile, slowdown=8.0)
    verifier = Verifier(given)
    for name in PLANNERS:
        plans = plan_table(Space(model, [1e4, 1e5, 1e6]), name, effort=Effort(60.0, 40)).plans
        record = verifier.make_record("stack", name, plans)
        assert record["exact"], record
    plan = next(plan for plan in (random_split(given.located, random.Random(k)) for k in range(100))
                if plan.splits_an_operator and plan.transfers)  # fmt: skip
    assert verifier.make_record("stack", "random", [check_plan(plan, given.located)])["splits"] == 1
    first, *rest = plan.transfers
    with pytest.raises(BadPlan):
        verifier.plan_errors(replace(plan, transfers=(replace(first, high=first.high - 1), *rest)))


def test_what_codecs_save_is_measured_all_over_a_picture_not_in_its_middle() -> None:
    """A street between a plain wall and plain grass: the middle alone would be coded twice as badly."""
    rows = torch.zeros(3, 384, 512, dtype=torch.uint8)
    rows[:, 128:256] = torch.randint(0, 64, (3, 128, 512), dtype=torch.uint8)
    for picture in (rows, rows.roll(128, 1)):
        ratios = {speed.name: speed.ratio for speed in profiling.measure_codecs(picture)}
        _, buffers = pack_tensors([picture], "gradient+zstd")
        really = picture.nelement() / sum(memoryview(buffer).nbytes for buffer in buffers)
        assert ratios["gradient+zstd"] == pytest.approx(really, rel=0.25)
