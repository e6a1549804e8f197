"""``bench fleet --real``: robots without torch in a process of their own, real sockets, and a server process.

Each robot has a key, a connection and a camera; it asks for a promise and follows its turns as a node does
(:mod:`edge_offload.runtime.promise`). What its results have cost is counted frame by frame when the run is over.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.errors import EdgeOffloadError, Refused
from edge_offload.link.transport.client import Client
from edge_offload.manager.drop import Habits
from edge_offload.manager.promise import HABITS, PromisePolicy
from edge_offload.protocol.promises import PromiseReport, PromiseRequest
from edge_offload.runtime.promise import Promise
from edge_offload.server.promises.latencies import Latencies
from edge_offload_benchmarks.simulation.fleet import (
    BEYOND,
    FAR,
    FIRST_S,
    STEADY,
    Content,
    Lines,
    Link,
    Robot,
    Tables,
    check_promise,
    simulate_single,
    windows,
)

WAIT_S = 60.0
#: Frames of the video per second.
RATE = 10.0
#: From the start until sessions are judged: everybody has asked by then (seconds).
LEAD_S = 4.0
#: Robots go on for so long after the server was asked how it served them: who has stopped sends none of its turns.
TAIL_S = 1.0
#: Sessions that are shorter are not judged (seconds).
SESSION_S = 20.0
#: Results of each robot that are held against the network's own.
RETAINED = 8
#: Robots ask one after the other, so far apart (seconds).
STAGGER_S = 0.1


#: What robots beside the others do, of which those are to notice nothing.
MISBEHAVE = ("lying", "modest", "greedy", "silent")
#: Of those that lie what they say, and after how many turns.
CLAIMS = {"lying": 1.0, "modest": 0.0}
TRUE_FIRST = 16


def measure_emulated(
    table: pathlib.Path,
    latencies: Latencies,
    robots: int,
    bound: float,
    interval: float,
    rate: float,
    seconds: float,
    misbehave: bool = False,
) -> Dict[str, Any]:
    """Run robots against a server on the device of ``table``; count which it serves within their promises.

    ``misbehave``: four more ask first. Two say truly what they lose when they ask and for some turns, and then one that
    it loses everything, though it sees one picture all the time, and one that it loses nothing; the third sends all its
    frames, with a turn or without; the last sends none of its turns.
    """
    from edge_offload_benchmarks.chaos.robot import MODEL

    setup = {
        "robots": robots, "seconds": seconds, "bound": bound, "interval": interval, "rate": rate, "model": MODEL,
        "latencies": list(latencies.seconds), "misbehave": list(MISBEHAVE if misbehave else ()),
    }  # fmt: skip
    return _measure_setup(setup, ("--allow", MODEL, "--device", f"emulated:{table}"), ())


def measure_network(
    size: int,
    first: int,
    count: int,
    folder: pathlib.Path,
    robots: int,
    bound: float,
    seconds: float,
    misbehave: bool = False,
) -> Dict[str, Any]:
    """The same with a real network, kapao_vtest, on one core, and the sample video at its 10 frames per second.

    Drops are measured on every frame: ``folder`` has what each result, carried along, has lost against the network's
    own result for each later frame (simulation/staleness.py).

    Args:
        size: long side of the network's images (px).
        first: frame of the video from which on robots replay it, each from a place of its own.
        count: of the frames.
        folder: of the table.
        robots: that ask.
        bound: that they ask for.
        seconds: of a session.
        misbehave: as in :func:`measure_emulated`.
    """
    from edge_offload_benchmarks.processes import two_cores

    setup = {
        "robots": robots, "seconds": seconds, "bound": bound, "interval": 1 / RATE, "model": "kapao_vtest",
        "network": {"size": size, "first": first, "count": count, "folder": str(folder)},
        "misbehave": list(MISBEHAVE if misbehave else ()),
    }  # fmt: skip
    return _measure_setup(setup, ("--threads", "1"), two_cores()[1:])


def _measure_setup(setup: Dict[str, Any], options: Sequence[str], cores: Sequence[int]) -> Dict[str, Any]:
    """Server and robots as processes."""
    from edge_offload_benchmarks.chaos.usage import read_usage
    from edge_offload_benchmarks.processes import Process, Server, introduce_robots

    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        setup = {**setup, "robots": setup["robots"] + len(setup["misbehave"])}
        public, stores = introduce_robots(root, [f"robot{number}" for number in range(setup["robots"])])
        with Server("--keys", str(root / "server"), "--promises", *options, cores=cores) as server:
            for store in stores.values():
                store.trust_server(server.address, public)
            setup = {**setup, "address": server.address, "directory": directory}
            with Process([sys.executable, "-m", "edge_offload_benchmarks.fleet_robots", json.dumps(setup)]) as load:
                load.wait_line("loaded")
                memory = []
                ends = time.monotonic() + LEAD_S + setup["seconds"]
                while time.monotonic() < ends:
                    memory.append(read_usage(server.pid)["memory"])
                    time.sleep(0.5)
                outcome: Dict[str, Any] = json.loads(load.wait_line("{"))
                load.end()
    fifth = len(memory) // 5
    outcome["memory_growth"] = statistics.median(memory[-5:]) / statistics.median(memory[fifth : fifth + 5]) - 1
    return outcome


@dataclass
class _Load:
    """Content and inputs of robots.

    Attributes:
        content: what their results lose.
        habits: of the task.
        opened: what the model is opened with.
        inputs: of a robot's frame: descriptors and buffers.
        latencies: of the reference.
    """

    content: Content
    habits: Habits
    opened: Dict[str, Any]
    inputs: Callable[[int, int], Tuple[List[Any], List[Any]]]
    latencies: Latencies


class _Liar(PromisePolicy):
    """Says after a while that it loses what it does not."""

    claimed: float

    def report_frame(self, now: float, captured: float) -> Optional[PromiseReport]:
        """See :class:`PromisePolicy`."""
        report = super().report_frame(now, captured)
        if report is None or self.followed <= TRUE_FIRST:
            return report
        return replace(report, slope=self.claimed, slope_error=0.0, flicker=self.claimed, noise=self.claimed)


class _Real:
    """A robot on a real link."""

    def __init__(self, number: int, setup: Dict[str, Any], load: _Load, habit: str = "") -> None:
        from edge_offload.link.security.keys import KeyStore

        self._load, self.habit, self.name = load, habit, f"robot{number}"
        loopback = Link((1e5, 0.0), (1e5, 0.0), (0.002, 0.0))
        self.virtual = Robot(number, 0.0, load.content, loopback, np.random.default_rng(number))
        self.policy = (_Liar if habit in CLAIMS else PromisePolicy)(setup["bound"], habits=load.habits)
        if isinstance(self.policy, _Liar):
            self.policy.claimed = CLAIMS[habit]
        keys = KeyStore(pathlib.Path(setup["directory"]) / f"robot{number}")
        self.client = Client(setup["address"], keys=keys, on_notify=self._notified, on_state=self._note_state)
        self.handle: Optional[int] = None
        self.promise = Promise(self.policy, self.client, lambda: self.handle)
        self.sent = self.answered = self.followed = 0
        self.errors: List[str] = []
        self.admitted_s: Optional[float] = None
        self._under_way = 0
        #: The last results, to be looked at when the run is over.
        self.last: Deque[Tuple[int, Any]] = deque(maxlen=RETAINED)

    def open(self) -> None:
        """Connect, and open the model."""
        self.client.start()
        self.client.wait_ready(WAIT_S)
        opened = self.client.request("open_model", self._load.opened, timeout_s=WAIT_S).result(WAIT_S + 1)
        self.handle = opened.body["handle"]

    def prepare_batches(self) -> None:
        """Have the server measure its batches, by a promise that is given back: that takes longer than robots wait."""
        request = PromiseRequest(self.handle or 0, 1.0, self.virtual.content.interval, True, 0, 0.0, 0.0)
        try:
            self.client.request("promise", request.to_wire(), timeout_s=WAIT_S).result(WAIT_S + 1)
        except Refused:
            return
        self.client.request("give_back", timeout_s=WAIT_S).result(WAIT_S + 1)

    def time_single_frames(self, times: int = 9) -> Latencies:
        """Measure the server's time for single frames."""
        taken = []
        for frame in range(times):
            inputs, buffers = self._load.inputs(self.virtual.number, frame)
            reply = self._request(inputs, buffers, {}).result(WAIT_S + 1)
            taken.append(reply.transfer.server_sent_s - reply.transfer.server_received_s)
        return Latencies((statistics.median(taken),))

    def run(self, started_at: float, seconds: float) -> None:
        """Frames at their times."""
        content = self.virtual.content
        frame = 0
        while frame * content.interval < seconds:
            time.sleep(max(0.0, started_at + frame * content.interval - time.monotonic()))
            captured = started_at + frame * content.interval
            due = self.promise.wants_frame(captured)
            if (due or self.habit == "greedy") and not (self.habit == "silent" and not self.promise.fallback_reason):
                turn = self.promise.describe_slot(captured) if due else {}
                if turn or self.habit == "greedy" or not self._under_way:
                    self._send(frame, captured, turn, started_at)
            if self.admitted_s is None and not self.promise.fallback_reason:
                self.admitted_s = captured - started_at
            frame += 1

    def _request(self, inputs: List[Any], buffers: List[Any], turn: Dict[str, Any]) -> Future[Any]:
        body = {"handle": self.handle, "inputs": inputs, "codec": "auto", "wait_s": None, "meta": {}, **turn}
        return self.client.request("infer", body, buffers, timeout_s=WAIT_S)

    def _send(self, frame: int, captured: float, turn: Dict[str, Any], started_at: float) -> None:
        shown = 0 if self.habit == "lying" else frame
        inputs, buffers = self._load.inputs(self.virtual.number, shown)
        future = self._request(inputs, buffers, turn)
        self.sent += 1
        self.followed += bool(turn)
        self._under_way += 1

        def record_answer(done: Future[Any]) -> None:
            self._under_way -= 1
            error = done.exception()
            if error is not None:
                self.errors.append(str(error)[:200])
                return
            self.answered += 1
            self.promise.add_transfer_times(captured, done.result().transfer)
            self.last.append((shown, done.result()))
            self._note_result(frame, time.monotonic() - started_at)

        future.add_done_callback(record_answer)

    def _note_result(self, frame: int, usable: float) -> None:
        robot, rate = self.virtual, self.virtual.content
        newest, robot.newest = robot.newest, max(robot.newest, frame)
        stride = frame - newest
        if 0 < stride <= FAR:
            lost = float(rate.drop(robot.number, np.array([frame]), np.array([stride]))[0])
            robot.drops.add_comparison(usable, stride * rate.interval, lost)
            self.promise.add_comparison(stride * rate.interval, lost)
        robot.results.append((frame, usable))

    def _notified(self, kind: str, body: Dict[str, Any], buffers: Any) -> None:
        self.promise.notified(kind, body, buffers)

    def _note_state(self, state: Any, cause: str) -> None:
        if hasattr(self, "promise"):
            self.promise.link_changed(state, cause)


def _make_emulated(setup: Dict[str, Any], draw: np.random.Generator) -> _Load:
    """One small picture, again and again, whose results lose accuracy at a rate of each robot's own."""
    from edge_offload.link import codecs

    picture = np.random.RandomState(1).randint(0, 256, (3, 32, 32), dtype=np.uint8)
    spec = {"dtype": "uint8", "shape": list(picture.shape)}
    coded = codecs.encode(picture)
    inputs = [{**spec, "payload": coded.descriptor, "parts": len(coded.buffers)}]
    rates = tuple(float(rate) for rate in setup["rate"] * draw.uniform(0.5, 1.5, setup["robots"]))
    return _Load(
        Lines(setup["interval"], rates), STEADY, {"name": setup["model"], "inputs": [spec]},
        lambda *_: (inputs, list(coded.buffers)), Latencies(tuple(setup["latencies"])),
    )  # fmt: skip


def _make_network(setup: Dict[str, Any]) -> _Load:
    """Frames of the sample video for a real network, which each robot replays from a place of its own."""
    from edge_offload.execute.tensors import pack_tensors
    from edge_offload.models.registry import build_estimator
    from edge_offload_benchmarks.simulation.staleness import Stretch, table

    network = setup["network"]
    first, count = network["first"], network["count"]
    stretch = Stretch("people", first, count, size=network["size"])
    drops = table(pathlib.Path(network["folder"]), stretch, lambda text: print(text, file=sys.stderr, flush=True))
    estimator = build_estimator(setup["model"], size=network["size"])
    frames = [pack_tensors([estimator.prepare(bgr)[0]], "raw") for bgr in _read_video(first, count)]
    shape = list(estimator.prepare(_read_video(first, 1)[0])[0].shape)
    needed = math.ceil((LEAD_S + setup["seconds"] + TAIL_S) * RATE)
    first_frames = np.linspace(0, count - needed, setup["robots"]).astype(int)
    content = Tables(1 / RATE, (drops.drop("carried"),), tuple((0, int(begin)) for begin in first_frames))
    opened = {
        "name": setup["model"], "options": {"size": network["size"]}, "inputs": [{"dtype": "uint8", "shape": shape}],
    }  # fmt: skip
    return _Load(
        content,
        HABITS["people"],
        opened,
        lambda robot, frame: frames[int(first_frames[robot]) + frame],
        Latencies((1.0,)),
    )


def _read_video(first: int, count: int) -> List[Any]:
    from edge_offload.models.video import read_frames, sample_video

    return list(read_frames(sample_video(), range(first, first + count)).values())


def _count_wrong(setup: Dict[str, Any], robots: Sequence[_Real]) -> int:
    """Count the last results that differ from the network's on that very frame (within 1e-5)."""
    from edge_offload.execute.tensors import unpack_tensors
    from edge_offload.models.registry import build_estimator

    network = setup["network"]
    estimator, frames = (
        build_estimator(setup["model"], size=network["size"]),
        _read_video(network["first"], network["count"]),
    )
    other = 0
    for robot in robots:
        content = robot.virtual.content
        assert isinstance(content, Tables)
        for frame, reply in robot.last:
            received = unpack_tensors(reply.body["outputs"], reply.buffers)
            expected = estimator.module(estimator.prepare(frames[content.places[robot.virtual.number][1] + frame])[0])
            other += not all(
                one.shape == two.shape
                and (not two.numel() or bool((one - two).abs().max() <= 1e-5 * max(1.0, float(two.abs().max()))))
                for one, two in zip(received, expected)
            )
    return other


def _describe_fate(robot: _Real, served: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """Describe the outcome of a robot that misbehaves."""
    facts = {
        "sent": robot.sent,
        "answered": robot.answered,
        "followed": robot.followed,
        "alone": robot.promise.fallback_reason,
    }
    if served is None:
        return facts
    # of who had no result there is nothing to say: a record has no number that is none
    measured = {key: value for key, value in served.items() if not (isinstance(value, float) and math.isnan(value))}
    return {**facts, **{key: measured.get(key) for key in ("drop", "interval", "late", "note")}}


def _run_robots(setup: Dict[str, Any]) -> None:
    """The robots, in a process without torch."""
    draw = np.random.default_rng(0)
    load = _make_network(setup) if "network" in setup else _make_emulated(setup, draw)
    habits = setup["misbehave"] + [""] * setup["robots"]
    robots = [_Real(number, setup, load, habits[number]) for number in range(setup["robots"])]
    for robot in robots:
        robot.open()
    robots[0].prepare_batches()
    latencies = robots[0].time_single_frames() if "network" in setup else load.latencies
    print("loaded", flush=True)
    seconds = LEAD_S + setup["seconds"]
    started_at = time.monotonic() + 0.2
    offsets = [float(offset) for offset in draw.uniform(0, setup["interval"], len(robots))]
    threads = [
        threading.Thread(target=robot.run, args=(started_at + STAGGER_S * place + offset, seconds + TAIL_S))
        for place, (robot, offset) in enumerate(zip(robots, offsets))
    ]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, started_at + seconds - time.monotonic()))
    status: Dict[str, Any] = {}
    admitted = [robot for robot in robots if not robot.promise.fallback_reason and not robot.habit]
    try:
        status = robots[0].client.request("status", timeout_s=WAIT_S).result(WAIT_S + 1).body
    except EdgeOffloadError as error:
        robots[0].errors.append(str(error))
    for thread in threads:
        thread.join()
    assert "network" in setup or "torch" not in sys.modules, "an emulated robot needs no torch"
    means, parts, broken = [], [], 0
    for robot in admitted:
        if seconds - (robot.admitted_s or 0.0) < SESSION_S:
            continue
        reference = simulate_single(robot.virtual, latencies, seconds)
        # a session begins with its promise
        first_s = (robot.admitted_s or 0.0) + FIRST_S
        fine, mean = check_promise(robot.virtual, reference, setup["bound"], seconds, first_s)
        broken += not fine
        means.append(mean)
        parts += windows(robot.virtual, reference, seconds, first_s)
    served = {one["robot"]: one for one in status.get("promises", [])}
    promised = [served[robot.name] for robot in robots if robot.name in served and not robot.habit]
    turns = sum(one["turns"] for one in promised)
    print(
        json.dumps(
            {
                "robots": sum(not robot.habit for robot in robots),
                "misbehave": {
                    robot.habit: _describe_fate(robot, served.get(robot.name)) for robot in robots if robot.habit
                },
                "seconds": setup["seconds"],
                "bound": setup["bound"],
                "held": len(admitted),
                "broken": broken,
                "drop_mean": float(np.mean(means)) if means else 0.0,
                "drop_most": max(means, default=0.0),
                "windows_within": float(np.mean([part <= BEYOND * setup["bound"] for part in parts])) if parts else 1.0,
                "judged": len(means),
                "late": sum(one["late"] * one["turns"] for one in promised) / max(1, turns),
                "idle": status.get("idle"),
                "batches": status.get("batches"),
                "sent": sum(robot.sent for robot in robots),
                "followed": sum(robot.followed for robot in robots),
                "answered": sum(robot.answered for robot in robots),
                "network_s": latencies.batch_latency(1),
                "other_results": _count_wrong(setup, robots) if "network" in setup else None,
                "alone": sorted({robot.promise.fallback_reason for robot in robots if robot.promise.fallback_reason})[
                    :5
                ],
                "errors": sorted({error for robot in robots for error in robot.errors})[:5],
            }
        ),
        flush=True,
    )
    for robot in robots:
        robot.client.close()


if __name__ == "__main__":
    _run_robots(json.loads(sys.argv[1]))
