"""Faults on the real system of two processes: every frame one result, none wrong. And the judge can fail."""

import contextlib
import copy
import math
import mmap
import os
import socket

import pytest

from edge_offload import records
from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload_benchmarks.chaos.scenarios import SCENARIOS, list_scenarios
from edge_offload_benchmarks.chaos.usage import read_usage
from edge_offload_benchmarks.chaos.verdict import (
    Fault,
    Verdict,
    judge_carried,
    judge_gap,
    judge_run,
    judge_turns,
    merge_verdicts,
)
from edge_offload_benchmarks.commands.chaos import Robot, make_record, merge_records, run_scenario

USED = {"descriptors": 20, "sockets": 5, "threads": 8, "memory": 320 << 20, "private": 200 << 20, "children": 0}


def frame(number, mode="server", total_s=0.03, **more):
    base = {"frame": number, "t": number * 0.1, "total_s": total_s, "mode": mode, "asked": mode, "hedged": False}
    return {**base, "equal": True, "compute_s": total_s if mode == "local" else 0.0, "reason": "",
            "task": "", "turn": None, "round_trips": int(mode == "server"),
            "way_s": [0.001, 0.001], "why": "as forecast", **more}  # fmt: skip


def good():
    frames = [frame(n, "local" if 100 <= n < 150 else "server") for n in range(200)]
    counts = {"published": 210, "taken": 200, "superseded": 10, "results": 200}
    return frames, {"summary": counts, "exit_code": 0}


def verdict(frames, summary, back=15.1, outage=True, scenario="blackhole", robot=USED, server=USED):
    faults = [
        Fault(10.0, 12.0, 12.1, {"robot": USED, "server": USED}),
        Fault(12.5, 15.0, back, {"robot": robot, "server": server}),
    ]
    return judge_run(scenario, frames, summary, [0.03] * 20, faults, outage)


def test_a_run_without_blemish_passes_and_fits_the_schema():
    judged = verdict(*good())
    assert judged.passed, judged.failures
    records.validate("chaos", make_record(judged))


def carried():
    departed = [
        {"frame": n, "origin": "carried" if n % 2 else "fresh", "at_s": n * 0.05, "late_s": 0.01, "equal": True}
        for n in range(200)
    ]
    return {"carried": departed, "offered": 210, "taken": 200, "superseded": 10}


CARRIED_FAULTS = {
    "200 frames taken, 199": lambda told: told["carried"].pop(),
    "doubled": lambda told: told["carried"].insert(3, told["carried"].pop(4)),
    "of the frame that they name": lambda told: told["carried"][9].update(equal=False),
    "210 frames came": lambda told: told.update(superseded=9),
    "above a frame interval": lambda told: [one.update(late_s=0.06) for one in told["carried"][:5]],
}


@pytest.mark.parametrize("fault", [None, *CARRIED_FAULTS])
def test_carried_results_are_judged(fault):
    line, judged = carried(), Verdict("calm")
    if fault is not None:
        CARRIED_FAULTS[fault](line)
    judge_carried(judged, line, 20.0)
    assert [fault in failure for failure in judged.failures] == [True] * (fault is not None)


def test_frames_of_a_suspended_robot_are_not_late():
    line, judged = carried(), Verdict("robot_suspended")
    still = [Fault(1.61, 6.5, 6.6)]
    for number in (30, 31, 32):
        line["carried"][number]["late_s"] = 5.0
    judge_carried(judged, line, 20.0, still=still)
    assert judged.passed
    for number in (150, 151, 152):
        line["carried"][number]["late_s"] = 5.0
    judge_carried(judged, line, 20.0, still=still)
    assert "above a frame interval" in judged.failures[0]


def _lose(frames, summary):
    del frames[7]


def _double(frames, summary):
    frames.insert(8, copy.deepcopy(frames[8]))


def _falsify(frames, summary):
    frames[9]["equal"] = False


def _vanish(frames, summary):
    summary["summary"]["superseded"] = 9


def _crash(frames, summary):
    summary["exit_code"] = -11


def _wait(frames, summary):
    for late in frames[110:120]:
        late["total_s"] = 0.5


def _linger(frames, summary):
    for late in frames[110:112]:
        late["round_trips"], late["total_s"] = 1, 0.04


def _jump(frames, summary):
    frames[5]["way_s"] = [3600.0, -3600.0]


def _swap(frames, summary):
    frames[3], frames[4] = frames[4], frames[3]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_lose, "199 seen"),
        (_double, "more than one result"),
        (_falsify, "not bit-equal"),
        (_vanish, "superseded"),
        (_crash, "exit code -11"),
        (_jump, "absurd transfer time"),
        (_linger, "2 frames in a row waited in vain for the server"),
        (_wait, "p99 during the fault"),
        (_swap, "out of order"),
    ],
)
def test_every_violation_fails_the_verdict(harm, message):
    frames, summary = good()
    harm(frames, summary)
    judged = verdict(frames, summary)
    assert any(message in failure for failure in judged.failures), judged.failures


@pytest.mark.parametrize("side", ["robot", "server"])
@pytest.mark.parametrize(
    ("what", "more"), [("descriptors", 5), ("sockets", 3), ("threads", 3), ("private", 9 << 20), ("children", 1)]
)
def test_a_leak_is_detected_on_either_side(side, what, more):
    judged = verdict(*good(), **{side: {**USED, what: USED[what] + more}})
    assert [f"{what} of the {side} grew" in failure for failure in judged.failures] == [True]


def test_a_split_frame_counts_as_remote_only_if_it_needed_the_server():
    frames, summary = good()
    for item in frames:
        if item["mode"] == "server":
            item["mode"] = "split"
    assert verdict(frames, summary, scenario="calm (split)", outage=False).figures["remote"] == 150
    for item in frames[:50]:
        item["round_trips"] = 0
    judged = verdict(frames, summary, scenario="calm (split)", outage=False)
    assert judged.figures["remote"] == 100
    assert any("only 100 of 200" in failure for failure in judged.failures)


def test_usage_sees_what_a_process_opens():
    before = read_usage(os.getpid())
    with socket.socket(), open(os.devnull):
        after = read_usage(os.getpid())
    assert (after["sockets"], after["descriptors"]) == (before["sockets"] + 1, before["descriptors"] + 2)
    assert after["memory"] > after["private"] > 1 << 20
    assert after["threads"] >= 1


def test_pages_of_a_file_are_nothing_that_a_process_holds_for_itself(tmp_path):
    file, size = tmp_path / "code", 64 << 20
    file.write_bytes(bytes(size))
    before = read_usage(os.getpid())
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert not any(pages[place] for place in range(0, size, mmap.PAGESIZE))
        read = read_usage(os.getpid())
        private = bytearray(b"1") * size
        after = read_usage(os.getpid())
    assert len(private) == size
    assert read["memory"] - before["memory"] > 0.9 * size
    assert abs(read["private"] - before["private"]) < 0.1 * size
    assert after["private"] - read["private"] > 0.9 * size


def taking_turns():
    """Frames of two networks: each turn ends before the next one begins."""
    frames = []
    for number in range(100):
        went = [number, number * 0.1, number * 0.1 + 0.03] if number < 80 else None
        frames.append(frame(number, "server" if went else "local", task="ab"[number % 2], turn=went))
    return frames


TURN_FAULTS = {
    "1 times two offloads": lambda frames: frames[7].update(turn=[7, 0.7, 0.81]),
    "2 frames asked the server without": lambda frames: [frames[place].update(round_trips=1) for place in (90, 91)],
    "b had no turn": lambda frames: [one.update(turn=None, round_trips=0) for one in frames[1::2]],
}


@pytest.mark.parametrize("fault", [None, *TURN_FAULTS])
def test_turns_are_judged(fault):
    frames, judged = taking_turns(), Verdict("calm")
    if fault is not None:
        TURN_FAULTS[fault](frames)
    judge_turns(judged, frames, ["a", "b"])
    assert [fault in failure for failure in judged.failures] == [True] * (fault is not None)
    assert sum(judged.figures["turns"].values()) == (40 if fault == "b had no turn" else 80)


def test_networks_of_one_robot_are_judged_each_and_counted_together():
    one, other = verdict(*good()), verdict(*good())
    assert merge_verdicts("calm", {"": one}) is one
    other.failures.append("results are out of order")
    other.figures.update(back_s=None, during_max_s=9.0)
    both = merge_verdicts("calm", {"a": one, "b": other})
    assert both.failures == ["b: results are out of order"]
    assert (both.figures["frames"], both.figures["faults"]) == (400, 2)
    assert (both.figures["back_s"], both.figures["during_max_s"]) == (None, 9.0)
    assert both.figures["robot"] == one.figures["robot"]
    died = merge_verdicts("calm", {"a": one, "b": Verdict("calm", failures=["the robot ended with exit code 1"])})
    assert (died.figures, died.failures) == ({}, ["b: the robot ended with exit code 1"])


def test_where_members_of_a_pool_are_lost_frames_may_wait():
    frames, summary = good()
    _wait(frames, summary)
    faults = [Fault(10.0, 12.0, 12.1, {"robot": USED, "server": USED})]
    judged = judge_run("pool_node", frames, summary, [0.03] * 20, faults, outage=False, allows_s=math.inf)
    assert judged.passed, judged.failures


def test_coming_back_late_or_never_is_detected():
    failure = verdict(*good(), back=18.0).failures[0]
    assert "only after 3.00 s" in failure
    assert "as forecast" in failure
    assert "no frame went to the server again" in verdict(*good(), back=None).failures


def test_the_longest_time_without_the_server_is_judged_where_a_pool_loses_a_member():
    frames, _ = good()  # local from 10 to 15 s
    faults = [Fault(9.95, 12.0, 12.1), Fault(16.0, 17.0, 17.1)]
    for most_s, failures in ((6.0, 0), (4.0, 1)):
        judged = Verdict("pool_node")
        judge_gap(judged, frames, faults, most_s)
        assert (judged.figures["gap_s"], len(judged.failures)) == (pytest.approx(5.07, abs=0.1), failures)


def test_a_manager_that_stays_local_or_hedges_always_fails_the_calm_scenario():
    frames, summary = good()
    assert any("only 150 of 200" in failure for failure in verdict(frames, summary, scenario="calm").failures)
    for item in frames:
        item["mode"], item["hedged"] = "server", True
    assert any("hedged without a fault" in failure for failure in verdict(frames, summary, scenario="calm").failures)


def test_the_list_names_every_scenario_and_a_wrong_name_is_refused(capsys):
    assert main(["chaos", "--list"]) == 0
    line = capsys.readouterr().out
    assert all(name in line for name in SCENARIOS)
    assert main(["chaos", "earthquake"]) == 1
    assert "no scenario 'earthquake'" in capsys.readouterr().err
    assert len(SCENARIOS) >= 13


def test_a_file_of_results_is_updated_scenario_by_scenario(tmp_path):
    path = tmp_path / "chaos.json"
    frames, summary = good()
    before = ("rtt (replay)", "reset (split)", "reset", "calm")
    older = [make_record(verdict(frames, summary, scenario=name)) for name in before]
    records.write(path, "chaos", merge_records([], older))
    newer = make_record(verdict(frames, summary, back=18.0, scenario="calm"))
    assert not newer["passed"]
    updated = merge_records(records.read_list(path, "chaos"), [newer])
    passed = [(item["scenario"], item["passed"]) for item in updated]
    assert passed == [("calm", False), ("reset", True), ("reset (split)", True), ("rtt (replay)", True)]
    path.write_text("[1]")
    with pytest.raises(BadInput, match="holds something else"):
        records.read_list(path, "chaos")


def test_an_interrupted_run_saves_its_verdicts_and_resumes(tmp_path, monkeypatch):
    path, ran = tmp_path / "chaos.json", []
    frames, summary = good()

    def scenario(name, *_):
        ran.append(name)
        if name == "reset" and ran.count("reset") == 1:
            raise KeyboardInterrupt
        return verdict(frames, summary, scenario=name)

    monkeypatch.setattr("edge_offload_benchmarks.commands.chaos.run_scenario", scenario)
    command = ["chaos", "blackhole", "reset", "stalls", "rtt", "--json", str(path)]
    with contextlib.suppress(KeyboardInterrupt):
        main(command)
    assert [item["scenario"] for item in records.read_list(path, "chaos")] == ["blackhole"]
    assert main([*command, "--resume"]) == 0
    assert ran == ["blackhole", "reset", "reset", "stalls", "rtt"]
    assert [item["scenario"] for item in records.read_list(path, "chaos")] == ["blackhole", "reset", "stalls", "rtt"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "repeat", "robot"),
    [
        ("server_kill", 2, Robot(in_flight=2)),
        ("two_managers", 2, Robot()),
        pytest.param("reset", 1, Robot("split", in_flight=2), marks=pytest.mark.release),
        pytest.param("blackhole", 1, Robot(carry=True, turns=True), marks=pytest.mark.release),
    ],
)
def test_the_real_thing(name, repeat, robot):
    judged = run_scenario(name, 1.5, repeat, timing=False, robot=robot)
    assert judged.passed, judged.failures
    assert judged.figures["results"] > 10
    assert judged.figures.get("two_outstanding") == (0 if robot.turns else None)


@pytest.mark.parametrize("mode", ["split", "replay"])
def test_a_pool_is_harmed_in_mode_server_alone(mode):
    assert not [name for name in list_scenarios(mode) if name.startswith("pool_")]
    assert "pool_actor" in list_scenarios("server")
    assert main(["chaos", "pool_actor", "--mode", mode]) == 1


def test_over_packets_every_fault_is_done_but_those_of_a_pool():
    assert set(list_scenarios("server", "packet")) == {name for name in SCENARIOS if not name.startswith("pool_")}
    assert main(["chaos", "pool_actor", "--level", "packet"]) == 1


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", ["half_open", pytest.param("corrupt", marks=pytest.mark.release)])
def test_the_real_thing_over_packets(name):
    judged = run_scenario(name, 1.5, 1, timing=False, level="packet")
    if judged.skipped:
        pytest.skip(judged.skipped)
    assert judged.passed, judged.failures
    assert judged.figures["results"] > 10
