"""A server process with --promises on an emulated device, and robots over real sockets."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List

import pytest
import torch

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Unsupported
from edge_offload.execute.tensors import TensorSpec, pack_tensors
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.protocol.promises import SCHEDULE, PromiseReport, PromiseRequest, SlotSchedule
from tests.server.server_rig import TIMINGS, until

pytestmark = pytest.mark.process

FRAME_S = 0.1
X = [torch.tensor([1.0, 2.0])]
NET = "tests.server.small_nets:slow"


@pytest.fixture
def table(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "gpu.csv"
    path.write_text("batch,latency_ms\n1,20\n2,30\n3,40\n")
    return path


class TinyRobot:
    """Follows its turns on a virtual camera."""

    def __init__(self, address: str, keys: pathlib.Path) -> None:
        self.plan: List[Any] = []
        self.ended: List[str] = []
        self.client = Client(address, keys=KeyStore(keys), timings=TIMINGS, on_notify=self._notified).start()
        self.welcome = self.client.wait_ready(60)
        body: Dict[str, Any] = {"name": NET, "options": {"seconds": 0.001}}
        body["inputs"] = [TensorSpec.of(tensor).to_dict() for tensor in X]
        self.handle = self.request("open_model", body)["handle"]
        self.started_at = time.monotonic()

    def _notified(self, kind: str, body: Dict[str, Any], _: Any) -> None:
        if kind == SCHEDULE:
            self.plan.append((time.monotonic(), SlotSchedule.parse(body)))
        else:
            self.ended.append(body["reason"])

    def request(self, kind: str, body: Dict[str, Any], buffers: Any = ()) -> Dict[str, Any]:
        result: Dict[str, Any] = self.client.request(kind, body, buffers, timeout_s=60).result(60).body
        return result

    def promise(self, bound: float = 0.2, **more: Any) -> Dict[str, Any]:
        frame = int((time.monotonic() - self.started_at) / FRAME_S)
        age = time.monotonic() - self.started_at - frame * FRAME_S
        promise_request = PromiseRequest(self.handle, bound, FRAME_S, True, frame, age, 0.01, 0.0, 0.005, 0.005)
        return self.request("promise", {**promise_request.to_wire(), **more})

    def infer(self, frame: int, slope: float = 0.01) -> Dict[str, Any]:
        descriptors, buffers = pack_tensors(X, "raw")
        turn = PromiseReport(frame, slope, 0.0, 0.005, 0.005).to_wire()
        return self.request(
            "infer", {"handle": self.handle, "inputs": descriptors, "codec": "raw", "turn": turn}, buffers
        )


def test_promises_over_real_sockets(killable_server: Any, keys: pathlib.Path, table: pathlib.Path) -> None:
    server = killable_server(extra=["--promises", "--device", f"emulated:{table}"])
    robot = TinyRobot(server.address, keys)
    assert robot.welcome["device"] == f"emulated:{table}"
    with pytest.raises(ProtocolError, match="bound is nan"):
        robot.promise(float("nan"))
    assert robot.promise() == {"bound": 0.2, "batch": 3, "note": ""}
    other = TinyRobot(server.address, keys)
    with pytest.raises(BadInput, match="has a promise already"):
        other.promise()
    other.client.close()
    until(lambda: bool(robot.plan), 60)
    _, turns = robot.plan[-1]
    (frame, _begin), *_ = [turn for turn in turns.slots if turn[1] > 0.1]
    time.sleep(max(0.0, robot.started_at + frame * FRAME_S - time.monotonic()))
    assert robot.infer(frame)["engine"] == f"emulated:{table}"
    assert robot.infer(frame - 1000)["engine"] == f"emulated:{table}", "a frame without a turn is computed, too"
    command = [sys.executable, "-m", "edge_offload.cli", "status", "--server", server.address, "--keys", str(keys)]
    status = robot.request("status", {})
    assert (status["device"], len(status["promises"]), status["promises"][0]["bound"]) == (f"emulated:{table}", 1, 0.2)
    assert robot.request("give_back", {}) == {"had": True}
    assert robot.request("status", {})["promises"] == []
    shown = json.loads(subprocess.run([*command, "--json"], stdout=subprocess.PIPE, check=True, text=True).stdout)
    assert (shown["device"], shown["promises"], shown["inferences"]) == (f"emulated:{table}", [], 2)
    robot.client.close()


@pytest.mark.slow
def test_lying_flooding_and_silent_robots_cost_others_no_promise(
    killable_server: Any, keys: pathlib.Path, tmp_path: pathlib.Path, table: pathlib.Path
) -> None:
    """A robot of each kind beside two that do as they are told."""
    names = ["honest0", "honest1", "lying", "greedy", "silent"]
    stores = {name: KeyStore(tmp_path / name) for name in names}
    for name, store in stores.items():
        KeyStore(keys).trust_client(name, store.new_pair("client").public)
    server = killable_server(extra=["--promises", "--device", f"emulated:{table}"])
    for store in stores.values():
        store.trust_server(server.address, KeyStore(keys).pair("server").public)
    robots = {name: TinyRobot(server.address, tmp_path / name) for name in names}
    for robot in robots.values():
        robot.promise(0.05)
    ends, answered = time.monotonic() + 6.0, dict.fromkeys(names, 0)

    def follows(name: str) -> None:
        robot, sent = robots[name], -1
        while time.monotonic() < ends:
            turns = [frame for frame, _ in robot.plan[-1][1].slots if frame > sent] if robot.plan else []
            if name == "greedy" or not turns:
                frame = int((time.monotonic() - robot.started_at) / FRAME_S) if name == "greedy" else None
            else:
                frame = turns[0]
            if frame is None or name == "silent":
                time.sleep(0.02)
                continue
            sent = frame
            time.sleep(max(0.0, robot.started_at + frame * FRAME_S - time.monotonic()))
            robot.infer(frame, slope=1.0 if name == "lying" else 0.01)
            answered[name] += 1

    threads = [threading.Thread(target=follows, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = {one["robot"] for one in robots["honest0"].request("status", {})["promises"]}
    ended = {name: robot.ended for name, robot in robots.items()}
    assert {"honest0", "honest1"} <= served, ended
    assert "silent" not in served
    assert ended["silent"][0].startswith("none of its frames came for")
    assert all(answered[name] > 5 for name in names if name != "silent")
    for robot in robots.values():
        robot.client.close()


def test_a_server_without_promises_refuses_with_a_message(server: Any, keys: pathlib.Path) -> None:
    with Client(server.address, keys=KeyStore(keys), timings=TIMINGS) as client:
        assert client.wait_ready(60)["promises"] is False
        with pytest.raises(EdgeOffloadError, match="makes no promises") as refusal:
            client.request("promise", {}, timeout_s=60).result(60)
        assert isinstance(refusal.value, Unsupported)
