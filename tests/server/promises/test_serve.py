"""A server process with --promises on an emulated device, and robots over real sockets."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from typing import Any, Dict, List

import pytest
import torch

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Unsupported
from edge_offload.execute.tensors import TensorSpec, pack
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.protocol.promises import TURNS, Ask, Report, Turns
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
        self.client = Client(address, keys=KeyStore(keys), timings=TIMINGS, on_notify=self._told).start()
        self.welcome = self.client.wait_ready(60)
        body: Dict[str, Any] = {"name": NET, "options": {"seconds": 0.001}}
        body["inputs"] = [TensorSpec.of(tensor).to_dict() for tensor in X]
        self.handle = self.ask("open_model", body)["handle"]
        self.began = time.monotonic()

    def _told(self, kind: str, body: Dict[str, Any], _: Any) -> None:
        if kind == TURNS:
            self.plan.append((time.monotonic(), Turns.parse(body)))

    def ask(self, kind: str, body: Dict[str, Any], buffers: Any = ()) -> Dict[str, Any]:
        found: Dict[str, Any] = self.client.request(kind, body, buffers, timeout_s=60).result(60).body
        return found

    def promise(self, bound: float = 0.2, **more: Any) -> Dict[str, Any]:
        frame = int((time.monotonic() - self.began) / FRAME_S)
        age = time.monotonic() - self.began - frame * FRAME_S
        ask = Ask(self.handle, bound, FRAME_S, True, frame, age, 0.01, 0.0, 0.005, 0.005)
        return self.ask("promise", {**ask.to_wire(), **more})

    def infer(self, frame: int) -> Dict[str, Any]:
        descriptors, buffers = pack(X, "raw")
        turn = Report(frame, 0.01, 0.0, 0.005, 0.005).to_wire()
        return self.ask("infer", {"handle": self.handle, "inputs": descriptors, "codec": "raw", "turn": turn}, buffers)


def test_promises_over_real_sockets(own_server: Any, keys: pathlib.Path, table: pathlib.Path) -> None:
    server = own_server(extra=["--promises", "--device", f"emulated:{table}"])
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
    _told, turns = robot.plan[-1]
    (frame, _begin), *_ = [turn for turn in turns.turns if turn[1] > 0.1]
    time.sleep(max(0.0, robot.began + frame * FRAME_S - time.monotonic()))
    assert robot.infer(frame)["engine"] == f"emulated:{table}"
    assert robot.infer(frame - 1000)["engine"] == f"emulated:{table}", "a frame without a turn is computed, too"
    command = [sys.executable, "-m", "edge_offload.cli", "status", "--server", server.address, "--keys", str(keys)]
    status = robot.ask("status", {})
    assert (status["device"], len(status["promises"]), status["promises"][0]["bound"]) == (f"emulated:{table}", 1, 0.2)
    assert robot.ask("give_back", {}) == {"had": True}
    assert robot.ask("status", {})["promises"] == []
    shown = json.loads(subprocess.run([*command, "--json"], stdout=subprocess.PIPE, check=True, text=True).stdout)
    assert (shown["device"], shown["promises"], shown["inferences"]) == (f"emulated:{table}", [], 2)
    robot.client.close()


def test_a_server_without_promises_says_so(server: Any, keys: pathlib.Path) -> None:
    with Client(server.address, keys=KeyStore(keys), timings=TIMINGS) as client:
        assert client.wait_ready(60)["promises"] is False
        with pytest.raises(EdgeOffloadError, match="makes no promises") as refusal:
            client.request("promise", {}, timeout_s=60).result(60)
        assert isinstance(refusal.value, Unsupported)
