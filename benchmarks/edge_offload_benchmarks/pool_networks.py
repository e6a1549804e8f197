"""``bench pool --networks``: real networks in stages on Ray, beside the same network undivided, bit for bit.

Members compute for real, on one thread each. That they are of two classes is this bench's saying: a P4 does the first
and the last third of a network well, an L4 the middle, and the other class takes three times as long there, so that the
plan has up to three stages.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import torch

from edge_offload.errors import RemoteError
from edge_offload.execute.threads import pin
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.models.video import Video, sample_video
from edge_offload.runtime.module import OffloadedModule
from edge_offload.server.pool import profile
from edge_offload_benchmarks.pool_rig import Pool
from edge_offload_benchmarks.processes import ONE_THREAD, Process, Server, edge_offload

GPUS = {"L4": 1, "P4": 2}
#: What blocks are said to take, over what they were measured to.
GOOD, BAD = 2.0, 6.0
#: Deadline, over what the fastest class is said to take.
DEADLINE = 6.0
START_S = 300.0
PATIENT = TimeoutLimits(floor_s=60.0, cap_s=120.0, first_s=120.0)


@dataclass(frozen=True)
class Kind:
    """A network.

    Attributes:
        name: of the registry.
        share: of the frames that it sees.
        people: it finds people in frames of the sample video; else it gets random inputs.
    """

    name: str
    share: float
    people: bool = True


KINDS = (Kind("kapao_vtest", 1.0), Kind("movenet", 0.1), Kind("resnet50", 0.1, False))


def measure_networks(frames: int, save: Callable[[List[Dict[str, Any]]], None]) -> List[Dict[str, Any]]:
    """One row for each network, with so many frames of the first one; ``save`` gets all so far, after each."""
    pin(threads=1)
    rows = []
    with Pool(store_mb=256) as pool:
        for gpu, count in GPUS.items():
            pool.join_pool(gpu, "--gpus", str(count), "--device", "cpu")
        for kind in KINDS:
            row = _run_network(pool, kind, max(1, round(kind.share * frames)))
            print(
                f"{row['model']}: {row['stages']} stages, {row['frames']} frames, {row['remote']} by the pool, "
                f"{row['equal_local']} bit-equal to the robot's, {row['equal_server']} to an undivided server's; "
                f"{row['people']} people, {row['people_equal']} frames with the same",
                flush=True,
            )
            rows.append(row)
            save(rows)
    return rows


def _run_network(pool: Pool, kind: Kind, frames: int) -> Dict[str, Any]:
    given = list(_make_inputs(kind, frames))
    spec = given[0][0]
    slo_s = _write_profile(pool, kind.name, f"{str(spec.dtype).split('.')[-1]}[{','.join(map(str, spec.shape))}]")
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(tempfile.TemporaryDirectory())
        options = ("--keys", keys, "--device", "cpu")
        plain = stack.enter_context(Server(*options, environment=ONE_THREAD))
        divided = stack.enter_context(Server(*options, *pool.server_options(kind.name, slo_s), environment=ONE_THREAD))
        divided.wait_line("listening on ")
        status = pool.wait_workers(GPUS, START_S)
        by_pool, undivided = (_make_robot(stack, kind.name, server, keys) for server in (divided, plain))
        _wait_open(by_pool, spec, "eager pool")
        _wait_open(undivided, spec, "eager")
        row: Dict[str, Any] = {
            "model": kind.name,
            "stages": max(_count_stages(status)),
            "blocks": [stage["blocks"] for stage in status["stages"]],
            "classes": [stage["class"] for stage in status["stages"]],
            "frames": frames,
            "remote": 0,
            "equal_local": 0,
            "equal_server": 0,
            "people": 0,
            "people_equal": 0,
        }
        estimator = registry.build_estimator(kind.name) if kind.people else None
        for tensor, place in given:
            local, _ = by_pool.run_inference(tensor, Mode.LOCAL)
            undivided_outputs, one = undivided.run_inference(tensor, Mode.SERVER)
            pool_outputs, other = by_pool.run_inference(tensor, Mode.SERVER)
            row["remote"] += (one.mode, other.mode) == (Mode.SERVER, Mode.SERVER)
            row["equal_local"] += _all_equal(local, pool_outputs)
            row["equal_server"] += _all_equal(undivided_outputs, pool_outputs)
            if estimator is not None:
                want, have = estimator.interpret(undivided_outputs, place), estimator.interpret(pool_outputs, place)
                row["people"] += len(want.boxes)
                same = want.boxes.shape == have.boxes.shape and np.array_equal(want.boxes, have.boxes)
                row["people_equal"] += bool(same and np.array_equal(want.keypoints, have.keypoints))
    return row


def _make_inputs(kind: Kind, frames: int) -> Iterator[Tuple[torch.Tensor, Any]]:
    if kind.people:
        estimator = registry.build_estimator(kind.name)
        yield from (estimator.prepare(frame) for _, frame in Video(sample_video()).frames(frames))
        return
    source = torch.Generator().manual_seed(1)
    yield from ((torch.randn(1, 3, 224, 224, generator=source), None) for _ in range(frames))


def _write_profile(pool: Pool, model: str, spec: str) -> float:
    """Measure here, and say so of two classes; the deadline."""
    command = ["pool", "profile", model, "--input", spec, "--batches", "1", "--blocks", "9", "--class", "L4"]
    with Process(edge_offload(*command, "--device", "cpu", "--out", str(pool.profiles))) as measured:
        measured.wait_line("", START_S)
        if measured.end(START_S):
            raise RemoteError(f"{model} was not profiled: {measured.read_stderr()[-300:]}")
    profiles = profile.load_profiles(pool.profiles)
    network = profiles[model]
    taken = network.latency_s["L4"][1]
    third = 3 * np.arange(len(taken))[:, None] // len(taken)
    tables = {"L4": {1: taken * np.where(third == 1, GOOD, BAD)}, "P4": {1: taken * np.where(third == 1, BAD, GOOD)}}
    profile.save_profiles(pool.profiles, {**profiles, model: profile.BlockProfile(model, tables, network.cut_bytes)})
    return DEADLINE * min(float(table[1][:, 0].sum()) for table in tables.values())


def _make_robot(stack: contextlib.ExitStack, model: str, server: Server, keys: str) -> OffloadedModule:
    client = stack.enter_context(Client(server.address, keys=KeyStore(pathlib.Path(keys))))
    client.wait_ready(60.0)
    robot = OffloadedModule(model, registry.build_module(model), client, hedging=False, device="cpu", patience=PATIENT)
    stack.callback(robot.close)
    return robot


def _wait_open(robot: OffloadedModule, tensor: torch.Tensor, engine: str) -> None:
    """Until frames are computed there."""
    ends = time.monotonic() + START_S
    while True:
        _, report = robot.run_inference(tensor, Mode.SERVER)
        if report.mode is Mode.SERVER and report.engine.startswith(engine):
            return
        if time.monotonic() > ends:
            raise RemoteError(f"the server does not compute: {report.fallback_reason}")
        time.sleep(0.05)


def _count_stages(status: Dict[str, Any]) -> List[int]:
    """Count the stages of each pipeline, which a status lists in order."""
    counts: List[int] = []
    for stage in status["stages"]:
        if stage["blocks"][0] == 0:
            counts.append(0)
        counts[-1] += 1
    return counts


def _all_equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
