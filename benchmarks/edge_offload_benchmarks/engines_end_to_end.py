"""What engines change for a robot: calls in modes local and server, bits on both sides, people that are found."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.errors import RemoteError
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.module import ModuleExecutor
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.runtime.module import OffloadedModule
from edge_offload_benchmarks.processes import ONE_THREAD, Server
from edge_offload_research.emulate.emulator import Emulator
from edge_offload_research.emulate.trace import named_link

LOOPBACK, WIFI = "loopback", "wifi_93mbps"
#: Seconds until both sides compute by their engines.
READY_S = 600.0
#: A loaded machine must not turn a call in mode server into a local one.
PATIENT = TimeoutLimits(floor_s=60.0, cap_s=120.0, first_s=120.0)
#: Seconds in which a server that nobody asks is watched.
IDLE_S = 10.0

Robots = Dict[str, OffloadedModule]


def end_to_end(model: str, engines: Sequence[str], frames: Sequence[Array], turns: int, fresh: int) -> Dict[str, Any]:
    """Calls of a robot with each engine and with torch, in turns on the same frames.

    Args:
        model: a person estimator of the registry.
        engines: on robot and server alike.
        frames: uint8 [h, w, 3].
        turns: of each link.
        fresh: inputs on which modes local and server are compared to the bit, for each engine.
    """
    names = (EAGER, *engines)
    estimator = registry.build_estimator(model)
    inputs = [estimator.prepare(frame)[0] for frame in frames]
    links, bits, idle = [], [], []
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(tempfile.TemporaryDirectory())
        cores = sorted(os.sched_getaffinity(0))
        options = ("--keys", keys, "--threads", "1", "--device", "cpu", "--engine")
        # robot and servers do not take each other's processor where there are two
        servers = {
            name: stack.enter_context(Server(*options, name, environment=ONE_THREAD, cores=cores[1:])) for name in names
        }
        for link in (LOOPBACK, WIFI):
            with _make_robots(model, servers, link, keys, inputs) as robots:
                links += _take_turns(robots, link, inputs, turns)
                if link == LOOPBACK:
                    bits = [_count_equal_bits(robots[name], name, inputs, fresh) for name in names]
                    idle = [{"engine": name, "share_of_a_core": _measure_idle(servers[name].pid)} for name in names]
    return {"model": model, "links": links, "bits": bits, "idle": idle}


@contextlib.contextmanager
def _make_robots(
    model: str, servers: Dict[str, Server], link: str, keys: str, inputs: Sequence[torch.Tensor]
) -> Iterator[Robots]:
    """A robot for each server, over ``link``, both with the server's engine in force."""
    robots: Robots = {}
    with contextlib.ExitStack() as stack:
        for name, server in servers.items():
            address = server.address
            if link != LOOPBACK:
                to = address[len("tcp://") :]
                address = stack.enter_context(Emulator("127.0.0.1:0", to, named_link(link))).address
            client = stack.enter_context(Client(address, keys=KeyStore(keys)))
            client.wait_ready(60.0)
            module = registry.build_estimator(model).module
            robot = OffloadedModule(model, module, client, engine=name, hedging=False, patience=PATIENT)
            stack.callback(robot.close)
            robots[name] = robot
        for name, robot in robots.items():
            _wait_engine(robot, name, inputs)
        yield robots


def _wait_engine(robot: OffloadedModule, name: str, inputs: Sequence[torch.Tensor]) -> None:
    ends, at = time.monotonic() + READY_S, 0
    for mode in (Mode.LOCAL, Mode.SERVER):
        while True:
            _, report = robot.run_inference(inputs[at % len(inputs)], mode)
            at += 1
            if report.mode is mode and report.engine.startswith(name):
                break
            if time.monotonic() > ends:
                raise RemoteError(f"engine {name} is not in force in mode {mode}: {robot.state()}")
            time.sleep(0.05)


def _take_turns(robots: Robots, link: str, inputs: Sequence[torch.Tensor], turns: int) -> List[Dict[str, Any]]:
    names = list(robots)
    modes = (Mode.LOCAL, Mode.SERVER) if link == LOOPBACK else (Mode.SERVER,)
    seconds: Dict[Tuple[str, Mode], List[float]] = {(name, mode): [] for name in names for mode in modes}
    for turn in range(turns):
        for mode in modes:
            for place in range(len(names)):
                name = names[(place + turn) % len(names)]
                started_at = time.perf_counter()
                _, report = robots[name].run_inference(inputs[turn % len(inputs)], mode)
                seconds[name, mode].append(time.perf_counter() - started_at)
                if report.mode is not mode or not report.engine.startswith(name):
                    raise RemoteError(f"{mode} with {name}: {report.engine} in {report.mode}: {report.fallback_reason}")
    return [
        {
            "link": link,
            "mode": mode.value,
            "engine": name,
            "eager_ms": 1e3 * statistics.median(seconds[EAGER, mode]),
            "engine_ms": 1e3 * statistics.median(seconds[name, mode]),
            "faster": statistics.median(s / f for s, f in zip(seconds[EAGER, mode], seconds[name, mode])),
        }
        for mode in modes
        for name in names[1:]
    ]


def _count_equal_bits(robot: OffloadedModule, name: str, inputs: Sequence[torch.Tensor], count: int) -> Dict[str, Any]:
    """Count which of ``count`` fresh inputs (frames under noise) have the same bits in both modes."""
    draw = torch.Generator().manual_seed(1)
    equal = 0
    for number in range(count):
        frame = inputs[number % len(inputs)]
        noise = torch.randint(0, 16, frame.shape, dtype=torch.uint8, generator=draw)
        given = frame ^ noise
        (mine, _), (theirs, report) = robot.run_inference(given, Mode.LOCAL), robot.run_inference(given, Mode.SERVER)
        equal += report.mode is Mode.SERVER and len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))
    return {"engine": name, "inputs": count, "equal": equal}


def _measure_idle(pid: int) -> float:
    """Share of a core that a process and its children take while nobody asks for anything."""
    import psutil

    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]

    def spent() -> float:
        return sum(sum(one.cpu_times()[:2]) for one in family)

    before, started_at = spent(), time.monotonic()
    time.sleep(IDLE_S)
    return (spent() - before) / (time.monotonic() - started_at)


def compare_people(model: str, engines: Sequence[str], frames: Dict[int, Array]) -> List[Dict[str, Any]]:
    """People that each engine finds beside those of torch, on all of ``frames``."""
    estimator = registry.build_estimator(model)
    placed = [estimator.prepare(frame) for frame in frames.values()]
    eager = ModuleExecutor(estimator.module)
    rows = []
    for name in engines:
        executor = ModuleExecutor(estimator.module, engine=name)
        executor.run_module([placed[0][0]])
        executor.engine_ready(READY_S)
        for image, _ in placed[1:3]:
            executor.run_module([image])
        row: Dict[str, Any] = {
            "engine": name,
            "frames": len(placed),
            "people": 0,
            "other_count": 0,
            "box_px": 0.0,
            "keypoint_px": 0.0,
        }
        for image, place in placed:
            done = executor.run_module([image])
            if done.engine == EAGER:
                raise RemoteError(f"engine {name} is not in force: {executor.engine_state()[0]}")
            want = estimator.interpret(eager.run_module([image]).outputs, place)
            have = estimator.interpret(done.outputs, place)
            row["people"] += len(want.boxes)
            if len(want.boxes) != len(have.boxes):
                row["other_count"] += 1
            elif len(want.boxes):
                order = _pair_scores(want.boxes, have.boxes)
                row["box_px"] = max(row["box_px"], float(np.abs(want.boxes - have.boxes[order]).max()))
                off = np.abs(want.keypoints[..., :2] - have.keypoints[order][..., :2])
                row["keypoint_px"] = max(row["keypoint_px"], float(off.max()))
        executor.close()
        rows.append(row)
    return rows


def _pair_scores(want: Array, have: Array) -> Array:
    """Match ``have`` with ``want``: scores that are equal but for rounding may change places."""
    from scipy.optimize import linear_sum_assignment

    order: Array = linear_sum_assignment(np.abs(want[:, None] - have[None]).sum(-1))[1]
    return order
