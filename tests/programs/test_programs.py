"""Unmodified programs print the same on the virtual device as on the CPU, in every mode, for the promised round trips.

One process per mode runs all programs in turn (their devices, caches and predictions are shared on purpose).
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from edge_offload.native import libraries

RUNNER = pathlib.Path(__file__).parent / "run_programs.py"
PROGRAMS = [
    "sampler",
    "conv_net",
    "in_place_state",
    "branches",
    "suppression",
    "two_models",
    "two_threads",
    "deviation",
    "buffers",
    "saved",
    "scalars",
    "random_loops:0:12",
    "classes:36",
    "late_uploads",
    *(f"{name}:{turn}" for name in ("branches", "suppression") for turn in ("second", "third")),
    *(f"copies:{count}:{kind}" for kind in ("static", "dependent") for count in (20, 40)),
    "sizes:200:none",
    *(f"sizes:20:{place}" for place in ("first", "after a size", "in place", "in the loop", "a read", "at the end")),
    "two_heads",
    "concatenations",
    "tokens:same",
    "tokens:lengths",
    *(f"lengths:{kind}" for kind in ("text", "audio", "image", "graph")),
    "comparisons",
    "names",
    "composites",
    "sparse",
    "ragged",
    "gradients",
    "loops:36",
    "loops:27:asked",
    "random_programs:0:8:12",
]
#: Of the device itself: what they print says whether all went as it should.
ABOUT = ["surface", "calls", "memory"]
STEADY = ["conv_net:12", "conv_net:32"]
MODES = ["per_op", "cached", "lazy", "replay"]
needs_compiler = pytest.mark.skipif(
    not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built"
)
pytestmark = [pytest.mark.process, needs_compiler, pytest.mark.slow]


def run(command: List[str]) -> Dict[str, Dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {record["program"]: record for record in records}


@pytest.fixture(scope="module")
def local() -> Dict[str, Dict[str, Any]]:
    return run([sys.executable, str(RUNNER), *PROGRAMS])


@pytest.fixture(
    scope="module",
    params=[pytest.param(mode, marks=pytest.mark.release if mode in ("per_op", "cached") else ()) for mode in MODES],
)
def remote(request: pytest.FixtureRequest) -> Dict[str, Any]:
    libraries.build_device()
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--threads", "1", "--mode", request.param, "--"]
    return {"mode": request.param, **run([*command, sys.executable, str(RUNNER), *PROGRAMS, *ABOUT, *STEADY])}


def test_programs_print_the_same_bits_as_on_the_cpu(local: Dict[str, Any], remote: Dict[str, Any]) -> None:
    for name in PROGRAMS:
        assert not remote[name]["error"], remote[name]["error"]
        assert remote[name]["output"] == local[name]["output"], name


@pytest.mark.parametrize("about", ABOUT)
def test_torch_cuda_answers_as_a_program_expects(remote: Dict[str, Any], about: str) -> None:
    assert not remote[about]["error"], remote[about]["error"]
    assert remote[about]["output"] == f"{about} ok\n"


def trips_of_the_last(lines: int, record: Dict[str, Any]) -> int:
    """Round trips from the end of one line to the end of the one that is printed ``lines`` later, the last."""
    trips: List[int] = record["trips"]
    return trips[-1] - trips[-1 - lines]


def test_round_trips_of_a_steady_model(remote: Dict[str, Any]) -> None:
    each = {"per_op": None, "cached": None, "lazy": 2, "replay": 1}[remote["mode"]]
    steady = remote["conv_net:32"]
    if each is None:
        assert trips_of_the_last(20, steady) >= 20 * 10
    else:
        assert trips_of_the_last(20, steady) == 20 * each
        assert steady["spent"]["defined"] <= 1


def test_constants_that_are_compared_are_read_together(remote: Dict[str, Any]) -> None:
    if remote["mode"] not in ("lazy", "replay"):
        pytest.skip("the others ask of each pair")
    compared = remote["comparisons"]
    begun, done = compared["output"].splitlines().index("folded"), compared["trips"]
    assert done[begun + 1] - done[begun] <= 2


def test_one_round_trip_however_many_copies_and_one_more_for_an_upload_that_depends_on_a_read(
    remote: Dict[str, Any],
) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    for kind, lines, each in (("static", 2, 1), ("dependent", 3, 2)):
        assert trips_of_the_last(20 * lines, remote[f"copies:40:{kind}"]) == 20 * each, kind


def test_an_early_and_a_late_output_are_one_round_trip(remote: Dict[str, Any]) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    trips: List[int] = remote["two_heads"]["trips"]
    assert trips[2 * 9 - 1] - trips[2 * 5 - 1] == 4  # four inferences, known and as expected


def test_generated_tokens_are_one_round_trip_where_a_length_has_been_seen(remote: Dict[str, Any]) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    assert trips_of_the_last(3, remote["tokens:same"]) == 3


def test_tokens_after_a_prompt_of_a_new_length_are_two_round_trips_at_most(remote: Dict[str, Any]) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    assert trips_of_the_last(4, remote["tokens:lengths"]) <= 4 * 2


def test_a_loop_that_uploads_noise_is_a_round_trip_for_each_upload_that_comes_after_a_read(
    remote: Dict[str, Any],
) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    assert trips_of_the_last(3, remote["sampler"]) == 3 * (1 + 3)


@pytest.mark.parametrize("kind", ["text", "audio", "image", "graph"])
def test_a_new_length_after_three_others_is_two_round_trips_at_most(remote: Dict[str, Any], kind: str) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    trips: List[int] = remote[f"lengths:{kind}"]["trips"]
    assert max(after - before for before, after in zip(trips[-4:], trips[-3:])) <= 2


def test_constants_are_compared_on_the_robot_once_each_of_them_has_been_read(remote: Dict[str, Any]) -> None:
    if remote["mode"] in ("per_op", "cached"):
        pytest.skip("there every call is a round trip")
    compared = remote["comparisons"]
    end = compared["output"].splitlines().index("folded")
    before, first, second = compared["trips"][end - 3 : end]
    assert first - before <= 1 + 12
    assert second == first


def test_sizes_of_parts_of_parts_are_derived(remote: Dict[str, Any]) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    assert trips_of_the_last(8, remote["concatenations"]) == 8


def test_dynamic_programs_reuse_the_segments_of_each_branch(remote: Dict[str, Any]) -> None:
    if remote["mode"] in ("per_op", "cached"):
        pytest.skip("every call is a segment of its own")
    for name in ("branches", "suppression"):
        # what ran ahead was never defined as a segment: a deviation may do that late
        late = 0 if remote["mode"] == "lazy" else remote[name]["spent"]["defined"] // 10
        assert remote[f"{name}:third"]["spent"]["defined"] <= late
        assert remote[f"{name}:third"]["spent"]["segments"] <= remote[name]["spent"]["segments"]


def test_sizes_that_depend_on_data_cost_no_round_trip_once_they_are_understood(remote: Dict[str, Any]) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    steady = remote["sizes:200:none"]
    assert steady["spent"]["segments"] >= 200 * 5
    assert trips_of_the_last(100, steady) <= 120
    assert steady["spent"]["accepted"] >= 200 * 3


def test_the_server_starts_before_a_constant_is_uploaded_and_undoes_that_when_it_is_another_one(
    remote: Dict[str, Any],
) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    program = remote["late_uploads"]
    assert program["spent"]["undone"] == 1
    assert trips_of_the_last(8, program) == 8


def test_suppression_class_by_class_costs_about_one_round_trip_once_it_is_understood(remote: Dict[str, Any]) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    trips: List[int] = remote["classes:36"]["trips"]
    last = sorted(after - before for before, after in zip(trips[17:], trips[18:]))
    # some 25 host reads each; empty classes, another number of boxes each time, and classes that were not seen before
    assert last[len(last) // 2] <= 2
    assert sum(last) <= 6 * len(last)


def test_replay_survives_every_deviation_by_undoing_what_ran_ahead(remote: Dict[str, Any]) -> None:
    if remote["mode"] != "replay":
        pytest.skip("only replay runs ahead")
    assert remote["deviation"]["spent"]["undone"] >= 10
    assert remote["deviation"]["spent"]["accepted"] >= 40
