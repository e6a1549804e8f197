"""Robot and server compute one inference together: the results are the reference executor's, bit for bit, and the
unsplit network's within rounding; whatever goes wrong ends in the local result."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import random
import signal
from types import SimpleNamespace

import pytest
import torch

from edge_offload.cli import main
from edge_offload.errors import ProtocolError
from edge_offload.execute.tensors import pack_tensors
from edge_offload.ir import sequence_hash
from edge_offload.manager.lateness import Lateness, TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.modes.split.robot.contest import COLD_PAIRS, DECISION_PAIRS, PlanContests
from edge_offload.modes.split.robot.plan_times import PlanTimes
from edge_offload.split.footprints.registry import EMPTY, Locality
from edge_offload.split.model.complete import complete_plan, decide_backward
from edge_offload.split.model.cost import CostModel, OperatorCost
from edge_offload.split.model.locality import unite_rows
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side
from edge_offload.split.runtime.pieces import decode_piece
from edge_offload.split.runtime.profile import Profile
from edge_offload.split.runtime.tables import compile_ready
from edge_offload_research.split.model.run_plan import run_plan
from tests.modes.split.waiting import until

pytestmark = pytest.mark.process

HEIGHT, WIDTH = 48, 64


def image(seed=0):
    return torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def random_plan(located, chooser, identity):
    """Every operator on one side, on either's own needs, or cut anywhere."""

    def decide(index, robot, server):
        low, high = unite_rows(robot, server)
        undivided = located.operators[index].kind is Locality.GLOBAL
        style = chooser.choice(["robot", "server"] if undivided else ["robot", "server", "own", "cut", "cut", "cut"])
        if style == "own":
            return robot, server
        if style == "cut":
            cut = chooser.randint(low, high)
            parts = (low, cut), (cut, high)
            return parts if chooser.random() < 0.5 else (parts[1], parts[0])
        return ((low, high), EMPTY) if style == "robot" else (EMPTY, (low, high))

    return complete_plan(located, *decide_backward(located, decide), identity=identity)


def install(robot, picture, plans, undivided=()):
    """Put these plans in force on both sides; entry k serves k MB/s."""

    def changed(planned):
        located = planned.network.located
        compiled = tuple(compile_ready(plan, located, sequence_hash(located.sequence)) for plan in plans)
        table = dataclasses.replace(
            planned.table, bandwidths=tuple(1e6 * k for k in range(len(plans))), plans=tuple(plans)
        )
        places = tuple(range(len(plans)))
        return dataclasses.replace(
            planned,
            table=table,
            plans=compiled,
            place=places,
            undivided=undivided,
            contests=PlanContests(),
            times=PlanTimes.simulate_plans(plans, planned.model) if undivided else planned.times,
        )

    return robot.runner.put_in_force([picture], changed)


def close_to(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_random_plans_give_the_references_bits_and_the_networks_results(bot):
    picture = image()
    planned = bot.open(picture)
    located, program = planned.network.located, planned.network.program
    identity = sequence_hash(located.sequence)
    chooser = random.Random(5)
    plans = [random_plan(located, chooser, identity) for _ in range(12)]
    plans = [plan for plan in plans if not plan.is_local]
    assert any(plan.splits_an_operator for plan in plans)
    install(bot, picture, plans)
    for place, plan in enumerate(plans):
        bot.runner.bandwidth = 1e6 * place
        picture = image(place)
        got, report = bot.offloaded.run_inference([picture], Mode.SPLIT)
        assert report.mode is Mode.SPLIT, report.fallback_reason
        want = run_plan(plan, located, program.constants, [picture])
        for one, other in zip(got, want):
            assert torch.equal(one, other)
        with torch.no_grad():
            close_to(got, bot.module(picture))
        counted = bot.runner.counts
        assert counted.plan == place
        for side, rows in ((Side.ROBOT, counted.rows_robot), (Side.SERVER, counted.rows_server)):
            expected = sum(step.high - step.low for step in plan.steps_of(side))
            assert rows == expected or (side is Side.SERVER and 0 < rows <= expected)


def test_a_read_out_of_unknown_length_is_one_operator_of_either_side(server, robot):
    bot = robot(server.address, "listed")
    planned = bot.open(image())
    located = planned.network.located
    assert located.sequence.operators[-1].name == "edge_offload.opaque.default"
    assert located.operators[-1].kind is Locality.GLOBAL
    with torch.no_grad():
        want = bot.module(image(1))
    for bandwidth in (0.0, 2e6, 9e6, 30e6):
        bot.runner.bandwidth = bandwidth
        got, report = bot.offloaded.run_inference([image(1)], Mode.SPLIT)
        assert report.mode is Mode.SPLIT, report.fallback_reason
        close_to(got, want)
    install(bot, image(), [server_only(located)])
    got, report = bot.offloaded.run_inference([image(1)], Mode.SPLIT)
    assert report.mode is Mode.SPLIT, report.fallback_reason
    assert all(torch.equal(one, other) for one, other in zip(got, want))
    maps = planned.network.program.sequence.values[located.sequence.operators[-1].input_ids()[-1]].nbytes
    assert 0 < bot.runner.counts.bytes_down < maps / 2, "results come back, maps do not"


def test_while_plans_are_made_frames_are_local_and_report_progress(server, robot):
    new = robot(server.address)
    picture = image()
    with torch.no_grad():
        want = new.module(picture)
    steps = []

    def split():
        got, report = new.offloaded.run_inference([picture], Mode.SPLIT)
        close_to(got, want)
        if report.fallback_reason:
            assert report.mode is Mode.LOCAL
            assert all(torch.equal(one, other) for one, other in zip(got, want))
            steps.extend(report.fallback_reason.split("is being opened: ")[1:])
        return report.mode is Mode.SPLIT

    until(split, 400.0)
    assert len(set(steps)) > 1, "traced; timed or planned"


def test_a_split_frame_reports_its_overlap(bot):
    picture = image(3)
    located = bot.open(picture).network.located
    identity = sequence_hash(located.sequence)
    chooser = random.Random(11)
    divided = next(plan for plan in (random_plan(located, chooser, identity) for _ in range(200))
                   if plan.splits_an_operator)  # fmt: skip
    local = complete_plan(located, *decide_backward(
        located, lambda index, robot, server: (unite_rows(robot, server), EMPTY)), identity=identity)  # fmt: skip
    install(bot, picture, [divided, server_only(located), local])
    overlaps = []
    for place in range(3):
        bot.runner.bandwidth = 1e6 * place
        _, report = bot.offloaded.run_inference([picture], Mode.SPLIT)
        assert report.mode is Mode.SPLIT, report.fallback_reason
        overlaps.append(report.overlap_s)
        assert all(0 <= share <= 1 for share in report.idle())
    assert overlaps[0] >= 0.0, "known"
    assert overlaps[1:] == [0.0, 0.0], "one side computes nothing"
    _, report = bot.offloaded.run_inference([picture], Mode.LOCAL)
    assert math.isnan(report.overlap_s)


def test_a_value_of_unknown_length_is_bounded_and_of_its_kind(bot):
    progress = SimpleNamespace(expect_rows=lambda index, low, high: ("float32", (-1, -1)))
    head = {"transfer": 0, "low": 0, "high": 1}
    for tensor, bound in ((torch.zeros(3, 5), None), (torch.zeros(3), r"2 dimensions"),
                          (torch.zeros(3, 5, dtype=torch.float64), "float32"),
                          (torch.zeros(2049, 2049), "allowed")):  # fmt: skip
        descriptors, buffers = pack_tensors([tensor], "raw")
        body = {**head, "tensors": descriptors}
        views = [memoryview(part) for part in buffers]
        if bound is None:
            assert decode_piece(progress, body, views)[2].shape == (3, 5)
        else:
            with pytest.raises(ProtocolError, match=bound):
                decode_piece(progress, body, views)


def test_a_plan_that_divides_operators_runs_in_turns_with_the_best_undivided_one_until_one_is_measured_faster(bot):
    picture = image(4)
    located = bot.open(picture).network.located
    identity = sequence_hash(located.sequence)
    chooser = random.Random(11)
    plans = (random_plan(located, chooser, identity) for _ in range(200))
    divided = next(plan for plan in plans if plan.splits_an_operator)
    planned = install(bot, picture, [divided, server_only(located)], undivided=(1, 1)).planned
    bot.runner.bandwidth = 0.5e6
    with torch.no_grad():
        want = bot.module(picture)

    def ran():
        got, report = bot.offloaded.run_inference([picture], Mode.SPLIT)
        assert report.mode is Mode.SPLIT, report.fallback_reason
        close_to(got, want)
        return bot.runner.counts.plan

    assert [ran() for _ in range(6)] == [0, 1, 1, 0, 0, 1]
    contest, other = planned.find_contest(0.5e6)
    assert (other, contest.in_use, planned.plan_in_use(0.5e6)) == (1, None, 0)
    for _ in range(COLD_PAIRS + DECISION_PAIRS[0]):
        contest.add_pair(1.2, 1.0)
    assert [ran() for _ in range(4)] == [1, 1, 1, 1]
    assert planned.expected(0.5e6).remote, "for the manager that is a mode that leaves everything to the server"
    assert "1 measured not faster (1.20)" in bot.runner.state()


def test_plans_include_the_best_undivided_ones(bot):
    planned = bot.open(image())
    runner = bot.runner
    costs = (OperatorCost(0.0, 1e-3),) * len(planned.network.located.operators)
    model = CostModel(planned.network.located, costs, costs)
    for objective in (Objective(), Objective("energy")):
        runner.opener.settings.objective = objective
        try:
            made = runner.opener.make_plans(planned.network, model, planned.shared)
        finally:
            runner.opener.settings.objective = None
        divides = [made.plans[place].plan.splits_an_operator for place in made.place]
        assert any(divides), "both sides are as fast"
        if objective.kind == "energy":
            assert made.undivided == (), "for energy plans are used by what is expected of them"
            continue
        assert len(made.undivided) == len(made.place)
        for index, divided in enumerate(divides):
            mine, other = made.place[index], made.undivided[index]
            assert (mine != other) is divided
            assert not made.plans[other].plan.splits_an_operator


def test_intermediates_travel_coded_both_ways_and_exactly(bot):
    picture = image(3)
    planned = bot.open(picture)
    located, program = planned.network.located, planned.network.program
    identity = sequence_hash(located.sequence)
    chooser = random.Random(8)
    inner = {number for number in located.sequence.values if number not in located.sequence.inputs}
    plain = next(plan for plan in (random_plan(located, chooser, identity) for _ in range(200))
                 if {item.sender for item in plan.transfers if item.value in inner} == set(Side))  # fmt: skip
    coded = dataclasses.replace(plain, transfers=tuple(dataclasses.replace(t, codec="shuffle+zstd")
                                                       for t in plain.transfers))  # fmt: skip
    install(bot, picture, [plain, coded])
    counted = []
    for place in (0, 1):
        bot.runner.bandwidth = 1e6 * place
        got, report = bot.offloaded.run_inference([picture], Mode.SPLIT)
        assert report.mode is Mode.SPLIT, report.fallback_reason
        want = run_plan(plain, located, program.constants, [picture])
        assert all(torch.equal(one, other) for one, other in zip(got, want))
        counted.append(bot.runner.counts)
    assert counted[1].bytes_up != counted[0].bytes_up or counted[1].bytes_down != counted[0].bytes_down


def test_profile_command_measures_the_server_too(server, keys, tmp_path):
    files = [str(tmp_path / "robot.json"), str(tmp_path / "server.json")]
    given = ["mobilenet_v3_large", "--option", "size=32", "--repeats", "1"]
    given += ["--server", server.address, "--keys", str(keys)]
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    assert main(["profile", *given, "--out", files[0], "--server-out", files[1]]) == 0
    mine, theirs = map(Profile.read, files)
    assert mine.sequence == theirs.sequence
    assert len(mine.points) == len(theirs.points) > 100
    assert mine.points != theirs.points, "measured apart"


def test_the_local_plan_uses_no_link(bot):
    planned = bot.open(image())
    located = planned.network.located
    install(
        bot, image(), [complete_plan(located, *decide_backward(located, lambda i, r, s: (unite_rows(r, s), EMPTY)))]
    )
    got, report = bot.offloaded.run_inference([image()], Mode.SPLIT)
    with torch.no_grad():
        for one, other in zip(got, bot.module(image())):
            assert torch.equal(one, other)
    assert (report.bytes_up, report.round_trips) == (0, 0)


def server_only(located):
    return complete_plan(located, *decide_backward(located, lambda i, r, s: (EMPTY, unite_rows(r, s))))


def test_a_killed_server_ends_in_the_local_result(killable_server, robot):
    bot = robot(killable_server.address)
    planned = bot.open(image())
    install(bot, image(), [server_only(planned.network.located)])
    assert bot.offloaded.run_inference([image()], Mode.SPLIT)[1].mode is Mode.SPLIT
    killable_server.process.send_signal(signal.SIGSTOP)  # silent in the middle of an inference
    bot.offloaded._lateness = Lateness(TimeoutLimits(first_s=0.3), hedging=False)
    got, report = bot.offloaded.run_inference([image(7)], Mode.SPLIT)
    assert report.mode is Mode.LOCAL
    assert "did not answer within" in report.fallback_reason
    with torch.no_grad():
        want = bot.module(image(7))
    assert all(torch.equal(one, other) for one, other in zip(got, want))
    killable_server.stop(signal.SIGKILL)
    until(lambda: bot.offloaded.unavailable_reason(Mode.SPLIT, [image()]) is not None, 60.0)
    got, report = bot.offloaded.run_inference([image(7)], Mode.SPLIT)
    assert report.mode is Mode.LOCAL
    assert all(torch.equal(one, other) for one, other in zip(got, want))


@pytest.mark.parametrize("harm", ["plan", "rows", "piece"])
def test_what_a_hostile_robot_sends_is_refused_and_the_server_lives(bot, harm):
    planned = bot.open(image())
    located = planned.network.located
    plan = server_only(located)
    handle = install(bot, image(), [plan]).handle

    def send_request(kind, body, *buffers):
        return bot.client.request(kind, {"handle": handle, **body}, buffers, timeout_s=60.0)

    if harm == "plan":
        first = plan.server[0]
        narrow = dataclasses.replace(plan, server=(first._replace(high=first.high - 1), *plan.server[1:]))
        with pytest.raises(Exception, match=r"nobody computes|needs rows"):
            send_request("split_table", {}, json.dumps([narrow.to_json()]).encode()).result(61.0)
    else:
        begun = send_request("split_begin", {"run": 1 << 40, "plan": 0})
        take = [send_request("split_take", {"run": 1 << 40, "transfer": k}) for k, t in enumerate(plan.transfers)
                if t.sender is Side.SERVER][:-1]  # fmt: skip
        rows = {"run": 1 << 40, "transfer": 0, "low": 0, "high": HEIGHT * 99, "tensors": []}
        if harm == "piece":
            rows.update(high=2, tensors=[{"dtype": "uint8", "shape": [1], "payload": {}, "parts": 0}])
        send_request("split_rows", rows)
        with pytest.raises(Exception, match=r"not awaited|do not fit"):
            begun.result(61.0)
        del take
    got, report = bot.offloaded.run_inference([image(2)], Mode.SPLIT)
    assert report.mode is Mode.SPLIT, report.fallback_reason
    with torch.no_grad():
        close_to(got, bot.module(image(2)))


def test_plans_are_remade_for_another_objective_with_a_notice(robot, server):
    made = robot(server.address)
    picture = image()
    made.open(picture)
    want = made.offloaded.run_inference([picture], Mode.LOCAL)[0]
    before = made.runner.planned([picture])
    made.offloaded.aim(Objective())
    assert made.offloaded.unavailable_reason(Mode.SPLIT, [picture]) is None, "that is what they are made for already"
    made.offloaded.aim(Objective("energy"))
    assert made.runner.planned([picture]) is before, "no plan changes under a frame"
    assert "is being opened" in made.offloaded.unavailable_reason(Mode.SPLIT, [picture])
    until(lambda: made.offloaded.unavailable_reason(Mode.SPLIT, [picture]) is None, 400.0)
    assert made.runner.planned([picture]) is not before
    assert {entry.objective for entry in made.runner._handles.all()} == {Objective("energy")}
    outputs, report = made.offloaded.run_inference([picture], Mode.SPLIT)
    assert report.mode is Mode.SPLIT
    close_to(outputs, want)
