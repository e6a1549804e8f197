"""``bench fleet --real``: robots without torch in a process of their own, real sockets, and a server process.

Each robot has a key, a connection and a camera; it asks for a promise and follows its turns as a node does
(:mod:`edge_offload.runtime.promise`). What its results have cost is counted frame by frame when the run is over.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from typing import Any, Dict, List, Optional

import numpy as np

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.transport.client import Client
from edge_offload.manager.promise import PromisePolicy
from edge_offload.runtime.promise import Promise
from edge_offload.server.promises.latencies import Latencies
from edge_offload_benchmarks.simulation.fleet import (
    BEYOND,
    FAR,
    FIRST_S,
    STEADY,
    Lines,
    Link,
    Robot,
    alone,
    kept,
    windows,
)

WAIT_S = 60.0
#: From the start until sessions are judged: everybody has asked by then (seconds).
LEAD_S = 4.0
#: Sessions that are shorter are not judged (seconds).
SESSION_S = 20.0
#: Robots ask one after the other, so far apart (seconds).
APART_S = 0.1


def measure(
    table: pathlib.Path, latencies: Latencies, robots: int, bound: float, interval: float, rate: float, seconds: float
) -> Dict[str, Any]:
    """So many robots ask a server on the device of ``table``; whom it holds, and whether it keeps its promises."""
    from edge_offload_benchmarks.chaos.robot import MODEL
    from edge_offload_benchmarks.chaos.usage import usage
    from edge_offload_benchmarks.processes import Process, Server, introduced

    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        public, stores = introduced(root, [f"robot{number}" for number in range(robots)])
        options = ("--keys", str(root / "server"), "--allow", MODEL, "--promises", "--device", f"emulated:{table}")
        with Server(*options) as server:
            for store in stores.values():
                store.trust_server(server.address, public)
            told: Dict[str, Any] = {
                "address": server.address, "directory": directory, "robots": robots, "seconds": seconds, "model": MODEL,
                "bound": bound, "interval": interval, "rate": rate, "latencies": list(latencies.of),
            }  # fmt: skip
            with Process([sys.executable, "-m", "edge_offload_benchmarks.fleet_robots", json.dumps(told)]) as load:
                load.wait_line("loaded")
                memory = []
                ends = time.monotonic() + LEAD_S + seconds
                while time.monotonic() < ends:
                    memory.append(usage(server.pid)["memory"])
                    time.sleep(0.5)
                found: Dict[str, Any] = json.loads(load.wait_line("{"))
                load.end()
    fifth = len(memory) // 5
    found["memory_growth"] = statistics.median(memory[-5:]) / statistics.median(memory[fifth : fifth + 5]) - 1
    return found


class _Real:
    """A robot on a real link."""

    def __init__(self, number: int, told: Dict[str, Any], body: Dict[str, Any], buffers: List[Any]) -> None:
        from edge_offload.link.security.keys import KeyStore

        self._body, self._buffers = body, buffers
        content = Lines(told["interval"], tuple(told["rates"]))
        loopback = Link((1e5, 0.0), (1e5, 0.0), (0.002, 0.0))
        self.virtual = Robot(number, 0.0, content, loopback, np.random.default_rng(number))
        self.policy = PromisePolicy(told["bound"], habits=STEADY)
        keys = KeyStore(pathlib.Path(told["directory"]) / f"robot{number}")
        self.client = Client(told["address"], keys=keys, on_notify=self._notified, on_state=self._changed)
        self.handle: Optional[int] = None
        self.promise = Promise(self.policy, self.client, lambda: self.handle)
        self.sent = self.answered = self.followed = 0
        self.errors: List[str] = []
        self.held_since: Optional[float] = None
        self._under_way = 0
        self._open = {"name": told["model"], "inputs": [told["spec"]]}

    def open(self) -> None:
        """Connect, and open the model."""
        self.client.start()
        self.client.wait_ready(WAIT_S)
        opened = self.client.request("open_model", self._open, timeout_s=WAIT_S).result(WAIT_S + 1)
        self.handle = opened.body["handle"]

    def run(self, began: float, seconds: float) -> None:
        """Frames at their times."""
        content = self.virtual.content
        frame = 0
        while frame * content.interval < seconds:
            time.sleep(max(0.0, began + frame * content.interval - time.monotonic()))
            captured = began + frame * content.interval
            if self.promise.wants(captured):
                turn = self.promise.turn(captured)
                if turn or not self._under_way:
                    self._send(frame, captured, turn, began)
            if self.held_since is None and not self.promise.alone:
                self.held_since = captured - began
            frame += 1

    def _send(self, frame: int, captured: float, turn: Dict[str, Any], began: float) -> None:
        body = {**self._body, "handle": self.handle, **turn}
        future = self.client.request("infer", body, self._buffers, timeout_s=WAIT_S)
        self.sent += 1
        self.followed += bool(turn)
        self._under_way += 1

        def came(done: Future[Any]) -> None:
            self._under_way -= 1
            error = done.exception()
            if error is not None:
                self.errors.append(str(error)[:200])
                return
            self.answered += 1
            self.promise.travelled(captured, done.result().transfer)
            self._result(frame, time.monotonic() - began)

        future.add_done_callback(came)

    def _result(self, frame: int, usable: float) -> None:
        robot, rate = self.virtual, self.virtual.content
        newest, robot.newest = robot.newest, max(robot.newest, frame)
        stride = frame - newest
        if 0 < stride <= FAR:
            lost = float(rate.drop(robot.number, np.array([frame]), np.array([stride]))[0])
            robot.drops.compared(usable, stride * rate.interval, lost)
            self.promise.compared(stride * rate.interval, lost)
        robot.results.append((frame, usable))

    def _notified(self, kind: str, body: Dict[str, Any], buffers: Any) -> None:
        self.promise.notified(kind, body, buffers)

    def _changed(self, state: Any, cause: str) -> None:
        if hasattr(self, "promise"):
            self.promise.link_changed(state, cause)


def _main(told: Dict[str, Any]) -> None:
    """The robots, in a process without torch."""
    from edge_offload.link import codecs

    picture = np.random.RandomState(1).randint(0, 256, (3, 32, 32), dtype=np.uint8)
    told["spec"] = spec = {"dtype": "uint8", "shape": list(picture.shape)}
    coded = codecs.encode(picture)
    descriptor = {**spec, "payload": coded.descriptor, "parts": len(coded.buffers)}
    body: Dict[str, Any] = {"inputs": [descriptor], "codec": "auto", "wait_s": None, "meta": {}}
    draw = np.random.default_rng(0)
    told["rates"] = [float(rate) for rate in told["rate"] * draw.uniform(0.5, 1.5, told["robots"])]
    robots = [_Real(number, told, body, coded.buffers) for number in range(told["robots"])]
    for robot in robots:
        robot.open()
    print("loaded", flush=True)
    seconds, latencies = LEAD_S + told["seconds"], Latencies(tuple(told["latencies"]))
    began = time.monotonic() + 0.2
    offsets = [float(offset) for offset in draw.uniform(0, told["interval"], len(robots))]
    threads = [
        threading.Thread(target=robot.run, args=(began + APART_S * place + offset, seconds))
        for place, (robot, offset) in enumerate(zip(robots, offsets))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status: Dict[str, Any] = {}
    try:
        status = robots[0].client.request("status", timeout_s=WAIT_S).result(WAIT_S + 1).body
    except EdgeOffloadError as error:
        robots[0].errors.append(str(error))
    assert "torch" not in sys.modules, "an emulated robot needs no torch"
    held = [robot for robot in robots if not robot.promise.alone]
    means, parts, broken = [], [], 0
    for robot in held:
        if seconds - (robot.held_since or 0.0) < SESSION_S:
            continue
        reference = alone(robot.virtual, latencies, seconds)
        # a session begins with its promise
        first_s = (robot.held_since or 0.0) + FIRST_S
        fine, mean = kept(robot.virtual, reference, told["bound"], seconds, first_s)
        broken += not fine
        means.append(mean)
        parts += windows(robot.virtual, reference, seconds, first_s)
    promised = status.get("promises", [])
    turns = sum(one["turns"] for one in promised)
    print(
        json.dumps(
            {
                "robots": len(robots),
                "seconds": told["seconds"],
                "bound": told["bound"],
                "held": len(held),
                "broken": broken,
                "drop_mean": float(np.mean(means)) if means else 0.0,
                "drop_most": max(means, default=0.0),
                "windows_within": float(np.mean([part <= BEYOND * told["bound"] for part in parts])) if parts else 1.0,
                "judged": len(means),
                "late": sum(one["late"] * one["turns"] for one in promised) / max(1, turns),
                "idle": status.get("idle"),
                "batches": status.get("batches"),
                "sent": sum(robot.sent for robot in robots),
                "followed": sum(robot.followed for robot in robots),
                "answered": sum(robot.answered for robot in robots),
                "alone": sorted({robot.promise.alone for robot in robots if robot.promise.alone})[:5],
                "errors": sorted({error for robot in robots for error in robot.errors})[:5],
            }
        ),
        flush=True,
    )
    for robot in robots:
        robot.client.close()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
