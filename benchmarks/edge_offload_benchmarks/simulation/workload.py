"""What a frame of a real model costs on this machine: measured between two processes, for the robot in virtual time."""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from edge_offload.errors import BadInput, RemoteError
from edge_offload.mode import Mode, parse_mode
from edge_offload.outputs import write_text
from edge_offload_benchmarks.processes import (
    ONE_THREAD,
    LinkEmulator,
    Process,
    Server,
    modes_robot,
    patient_client,
    wait_open,
)
from edge_offload_benchmarks.simulation.closed_loop import ModeCost

if TYPE_CHECKING:
    from edge_offload_benchmarks.simulation.planned_cost import PlannedCost

Workload = Tuple[List[ModeCost], Optional["PlannedCost"]]

#: Seconds that opening a model, or its plans, may take.
OPEN_S = 300.0
#: Planning is bounded by the plans that are tried; on a busy machine they take long.
PLANNING_S = 60.0
#: Times that every operator is measured.
PROFILE_REPEATS = 5
#: Frames that are not counted: kernels are chosen, and the server's engine takes over.
WARM = 12
#: Round trip of the link over which frames are measured (ms).
RTT_MS = 2.6
#: Bytes per second of a link that takes no time.
FREE = 1e12
#: Headers of a request and of its reply (bytes).
HEADERS_UP, HEADERS_DOWN = 400, 600


def measure(model: str, slowdowns: Sequence[float], frames: int, plans: bool, bytes_per_s: float) -> List[Workload]:
    """One workload per slowdown, from frames of the sample video.

    ``local`` is what the robot's process takes for the network, times the slowdown. ``server`` is what a request takes
    between the two processes without its time on the link; coding on the robot is slowed, too. ``replay`` is what it
    takes a robot's process on the virtual device, whose own part is slowed. Plans for ``split`` are
    simulated from the times of the operators here, corrected by what the simulation of the whole request was off.

    Args:
        model: in the registry.
        slowdowns: of the robot against this machine, 1 or more.
        frames: measured in every mode.
        plans: whether ``split`` is measured, too.
        bytes_per_s: rate of the emulated link between the processes: it decides how tensors are coded.

    Raises:
        BadInput: the sample video is shorter than that.
        RemoteError: the server did not open the model.
    """
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as keys, Server("--keys", keys) as server, LinkEmulator(
        server.address, 8e-6 * bytes_per_s, RTT_MS
    ) as emulator:
        return _measure(emulator.address, keys, model, slowdowns, frames, plans, bytes_per_s)


def _measure(
    address: str, keys: str, model: str, slowdowns: Sequence[float], frames: int, plans: bool, bytes_per_s: float
) -> List[Workload]:
    from edge_offload.manager.lateness import TimeoutLimits
    from edge_offload.models.registry import build_estimator
    from edge_offload.models.video import read_frames, sample_video
    from edge_offload.runtime.module import OffloadedModule

    estimator = build_estimator(model)
    inputs = [[estimator.prepare(image)[0]] for image in read_frames(sample_video(), range(frames)).values()]
    with patient_client(address, keys) as client:
        client.wait_ready(60.0)
        slow = TimeoutLimits(floor_s=60.0, cap_s=60.0, first_s=60.0)
        module = OffloadedModule(model, estimator.module, client, hedging=False, patience=slow)
        wait_open(module, Mode.SERVER, inputs[0], OPEN_S)
        compute_s, coding_s, serving_s, pauses_s = [], [], [], []
        sizes = []
        down = 0
        for number, frame in enumerate([*itertools.islice(itertools.cycle(inputs), WARM), *inputs]):
            _, local = module.run_inference(frame)
            with client.attend() as attention:
                outputs, report = module.run_inference(frame, Mode.SERVER)
            if report.mode is not Mode.SERVER:
                raise RemoteError(f"a frame did not run on the server: {report.fallback_reason}")
            if number < WARM:
                continue
            coding_time_s = _time_coding_s(frame, outputs, bytes_per_s)
            stages = report.stages_s
            compute_s.append(local.stages_s["compute_robot"])
            coding_s.append(coding_time_s)
            serving_s.append(max(0.0, report.total_s - stages["uplink"] - stages["downlink"] - coding_time_s))
            sizes.append(report.bytes_up + HEADERS_UP)
            down = report.bytes_down + HEADERS_DOWN
            pauses_s.append(attention.longest_s)
        replayed = _replayed(address, keys, model, frames)
        workloads: List[Workload] = []
        for slowdown in slowdowns:
            costs = [
                ModeCost(Mode.LOCAL, [slowdown * seconds for seconds in compute_s]),
                ModeCost(Mode.SERVER, [slowdown * seconds for seconds in coding_s], serving_s, sizes, down, pauses_s),
            ]
            if replayed["robot_s"]:
                costs.append(replay_cost(replayed, slowdown, pauses_s))
            unlinked_s = [slowdown * code_s + rest_s for code_s, rest_s in zip(coding_s, serving_s)]
            planned = _planned(model, estimator.module, slowdown, inputs[0], unlinked_s) if plans else None
            workloads.append((costs, planned))
        module.close()
    return workloads


def _replayed(address: str, keys: str, model: str, frames: int) -> Dict[str, Any]:
    """Measure frames of mode ``replay``; nothing, with a line of text, where this machine cannot run them."""
    with Process(modes_robot(address, keys, model), ONE_THREAD) as robot:
        lacks = robot.request_answer({"prepare": Mode.REPLAY.value}, OPEN_S)["lacks"]
        costs = robot.request_answer({"costs": 0 if lacks else frames}, OPEN_S)
        robot.end()
    if not costs["robot_s"]:
        print(f"without mode replay: {lacks or 'no frame took one round trip'}", file=sys.stderr)
    return costs


def replay_cost(costs: Mapping[str, Any], slowdown: float, pauses_s: Sequence[float]) -> ModeCost:
    """Mode ``replay`` of a robot that is so much slower; ``costs``: what a robot said of its frames.

    Args:
        costs: ``robot_s``, ``server_s``, ``bytes_up`` and ``bytes_down``, a number per frame.
        slowdown: of the robot's part.
        pauses_s: see :class:`ModeCost`.
    """
    return ModeCost(
        Mode.REPLAY,
        [slowdown * seconds for seconds in costs["robot_s"]],
        costs["server_s"],
        [size + HEADERS_UP for size in costs["bytes_up"]],
        max(costs["bytes_down"]) + HEADERS_DOWN,
        pauses_s,
    )


def _time_coding_s(inputs: Sequence[Any], outputs: Sequence[Any], bytes_per_s: float) -> float:
    """Time the robot's coding of the input and decoding of the answer, for a link of that rate."""
    from edge_offload.execute.tensors import pack_tensors, unpack_tensors

    descriptors, buffers = pack_tensors(outputs, link_bytes_per_s=bytes_per_s)
    started_at = time.perf_counter()
    pack_tensors(inputs, link_bytes_per_s=bytes_per_s)
    unpack_tensors(descriptors, [bytes(part) for part in buffers], max_bytes=1 << 30)
    return time.perf_counter() - started_at


def _planned(
    model: str, module: Any, slowdown: float, inputs: Sequence[Any], unlinked_s: Sequence[float]
) -> PlannedCost:
    """Plans for ``split``, simulated from the times of the operators here.

    Args:
        model: of the registry.
        module: its network.
        slowdown: how many times slower than this machine the robot is.
        inputs: tensors of one inference.
        unlinked_s: what requests for the whole network really took apart from the link: what is simulated is off by as
            much as it is for these.
    """
    from edge_offload.modes.split.robot.opening import BANDWIDTHS, REQUEST_S
    from edge_offload.split.model.cost import LinkCosts
    from edge_offload.split.planners.space import Space
    from edge_offload.split.planners.table import DEFAULT_PLANNER, Effort, plan_table
    from edge_offload.split.runtime.profile import make_cost_model
    from edge_offload.split.runtime.profile import measure_profile as profile_of
    from edge_offload.split.runtime.tracing import trace_module
    from edge_offload_benchmarks.simulation.planned_cost import PlannedCost
    from edge_offload_research.split.model.plan_cost import simulate_plan

    network = trace_module(model, module, inputs)
    profile = profile_of(network, PROFILE_REPEATS)
    costs = make_cost_model(network.located, profile, profile, LinkCosts(), request_s=REQUEST_S, slowdown=slowdown)
    space = Space(costs, BANDWIDTHS, True)
    table = plan_table(space, DEFAULT_PLANNER, None, Effort(seconds=PLANNING_S))
    # as if the link were not there
    (remote,) = plan_table(Space(costs, [FREE], True), "server_only", None, Effort()).plans
    simulated_s = simulate_plan(remote, costs, FREE).makespan_s - 2 * costs.link.latency_s
    return PlannedCost.of(costs, table, [seconds / simulated_s for seconds in unlinked_s])


def load_workload(path: pathlib.Path) -> List[ModeCost]:
    """Components from a file (see the module).

    Raises:
        BadInput: it is not of that form.
    """
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
        costs = [
            ModeCost(
                parse_mode(item["mode"]),
                [float(s) for s in item["robot_s"]],
                [float(s) for s in item.get("server_s", [])],
                [int(size) for size in item.get("bytes_up", [])],
                int(item.get("bytes_down", 0)),
                [float(s) for s in item.get("pauses_s", [])],
            )
            for item in items
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path} is no workload: {error}", remedy="see 'edge-offload bench adaptive --help'") from error
    if Mode.LOCAL not in {cost.mode for cost in costs} or not all(cost.robot_s for cost in costs):
        raise BadInput(f"{path}: a workload needs the mode local, and robot_s in every mode")
    return costs


def save_workload(path: pathlib.Path, costs: Sequence[ModeCost]) -> None:
    """Write components as :func:`load_workload` reads them."""
    items = [
        {
            "mode": cost.mode.value,
            "robot_s": list(cost.robot_s),
            "server_s": list(cost.server_s),
            "bytes_up": list(cost.bytes_up),
            "bytes_down": cost.bytes_down,
            "pauses_s": list(cost.pauses_s),
        }
        for cost in costs
    ]
    write_text(path, json.dumps(items, indent=1) + "\n")


def describe(costs: Sequence[ModeCost]) -> str:
    """The components in one line."""
    parts = []
    for cost in costs:
        robot = sum(cost.robot_s) / len(cost.robot_s)
        text = f"{cost.mode} {robot * 1e3:.0f} ms on the robot"
        if cost.server_s and cost.bytes_up:
            server, size = sum(cost.server_s) / len(cost.server_s), sum(cost.bytes_up) / len(cost.bytes_up)
            text += (
                f", {server * 1e3:.0f} ms on the server, {size / 1e3:.0f} kB up, {cost.bytes_down / 1e3:.0f} kB down"
            )
        parts.append(text)
    return "; ".join(parts)
