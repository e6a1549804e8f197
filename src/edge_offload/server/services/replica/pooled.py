"""Inferences of one model go to a pool of GPUs; its driver runs in a process of its own and is begun anew when it ends.

Nothing here imports Ray. Whatever happens to the driver, each request is answered once: with its result, or with words
on which the robot computes by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch
import zmq

from edge_offload.errors import EdgeOffloadError, ProtocolError, Refused
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.module import Execution
from edge_offload.execute.tensors import TensorSpec
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Message
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.memory import flat_bytes
from edge_offload.server.services.replica.replicas import Replica
from edge_offload.server.services.replica.service import Scheduler, ServerInference

if TYPE_CHECKING:
    from edge_offload.server.pool.settings import PoolSettings

_log = logging.getLogger(__name__)


class PoolScheduler(Scheduler):
    """Has one model computed by a pool, and leaves others to another scheduler.

    Args:
        settings: of the pool; the endpoint is chosen here.
        others: computes what is of another model or shape.
        fail: answers a request with an error.
    """

    def __init__(
        self, settings: PoolSettings, others: Scheduler, fail: Callable[[Request, BaseException], None]
    ) -> None:
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="edge-offload-pool-"))
        self._settings = replace(settings, endpoint=f"ipc://{self._folder}/driver")
        self._others, self._fail = others, fail
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: Dict[int, Tuple[ServerInference, float]] = {}
        self._outbox: List[int] = []
        self._emulated_outputs: Dict[Tuple[TensorSpec, ...], Tuple[torch.Tensor, ...]] = {}
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._driver = b""
        #: What the driver said last.
        self._status: Dict[str, Any] = {}
        self._received_s = 0.0
        self._thread = threading.Thread(target=self._run, name="edge-offload-pool", daemon=True)

    def start(self) -> None:
        """Start the driver."""
        self._thread.start()

    def close(self) -> None:
        """End the driver; waiting requests are refused."""
        self._stop.set()
        self._wakeup.wake_thread()
        if self._thread.is_alive():
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def describe_pool(self) -> Tuple[str, Dict[str, Any]]:
        """Implement :class:`~.service.Scheduler`."""
        status = self._status
        if not self._driver:
            return f"pool {self._settings.address}: its driver is not there (yet)", status
        members: Dict[str, int] = {}
        for node in status.get("nodes", []):
            if not node["problem"]:
                members[node["class"]] = members.get(node["class"], 0) + node["gpus"]
        members_text = ", ".join(f"{count} {gpu}" for gpu, count in members.items()) or "no members"
        emulated = "emulated " if any(node["emulated"] for node in status.get("nodes", [])) else ""
        rate = f"{status.get('rate', 0.0):.1f} /s"
        return f"{emulated}pool {self._settings.address}: {members_text}; {rate}; {status.get('why')}", status

    def schedule_inference(self, inference: ServerInference) -> None:
        """Implement :class:`~.service.Scheduler`."""
        if inference.opened.replica.name != self._settings.model:
            self._others.schedule_inference(inference)
            return
        if not self._driver:
            raise Refused("full: the pool's driver is not there (yet)", remedy="compute locally meanwhile")
        if len(self._waiting) >= 1024:  # requests that may wait for the pool
            raise Refused("full: too many requests wait for the pool")
        number = next(self._numbers)
        limit_s = self._settings.slo_s if inference.wait_s is None else inference.wait_s
        with self._lock:
            self._waiting[number] = inference, time.monotonic() + max(limit_s, self._settings.slo_s) + 1.0
            self._outbox.append(number)
        self._wakeup.wake_thread()

    def engine_of(self, replica: Replica) -> str:
        """Return the engine of a replica: the pool's bits are those of its members, not of this machine."""
        if replica.name == self._settings.model:
            return f"{EAGER} pool"
        return super().engine_of(replica)

    def remove_peer(self, peer: Peer) -> None:
        """Implement :class:`~.service.Scheduler`."""
        self._others.remove_peer(peer)
        with self._lock:
            for number in [key for key, (inference, _) in self._waiting.items() if inference.request.peer is peer]:
                del self._waiting[number]

    # ------------------------------------------------------------------ the pool's thread

    def _run(self) -> None:
        context = zmq.Context()
        socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.sndhwm = 0
        socket.bind(self._settings.endpoint)
        os.chmod(self._folder / "driver", 0o600)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wakeup.descriptor, zmq.POLLIN)
        started_s = pinged_s = -1e9
        restart_s = 0.2  # between two drivers, at first
        pause_s = restart_s
        while not self._stop.is_set():
            now = time.monotonic()
            if self._driver:
                pause_s = restart_s
            if self._process is None and now - started_s >= pause_s:
                started_s, pause_s = now, min(2 * pause_s, 3.0)
                self._start_driver()
            elif self._process is not None and (
                self._process.poll() is not None or (self._driver and now - self._received_s > 15.0)  # it is silent
            ):
                self._end_driver()
            if self._driver and now - pinged_s >= 1.0:  # how often the driver hears from here (seconds)
                pinged_s = now
                socket.send_multipart([self._driver, messages.pack_header(Message("ping"))])
            self._refuse_late(now)
            poller.poll(100)
            self._wakeup.clear_wakeups()
            with self._lock:
                outbox, self._outbox = self._outbox, []
            for number in outbox:
                self._forward_request(socket, number)
            while True:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                self._handle_message(frames)
        if self._driver and self._process is not None:
            socket.send_multipart([self._driver, messages.pack_header(Message("notify", 0, 0, "end"))])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)  # it ends its members
        self._end_driver()
        context.destroy(linger=0)

    def _forward_request(self, socket: zmq.Socket[Any], number: int) -> None:
        with self._lock:
            inference, _ = self._waiting.get(number, (None, 0.0))
        if inference is None:
            return
        try:
            inputs = inference.decode_inputs()
        except Exception as error:
            with self._lock:
                self._waiting.pop(number, None)
            self._fail(inference.request, inference.explain_failure(error))
            return
        body = {"inputs": [TensorSpec.of(tensor).to_dict() for tensor in inputs]}
        header = messages.pack_header(Message("request", 0, number, "infer", body))
        parts = [flat_bytes(tensor).numpy() for tensor in inputs]
        socket.send_multipart([self._driver, header, *messages.byte_views(parts)])

    def _start_driver(self) -> None:
        command = [sys.executable, "-m", "edge_offload.server.pool.gateway", self._settings.to_json()]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _end_driver(self) -> None:
        """Kill the driver, if it still runs, and refuse all waiting requests."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            code = self._process.wait()
            if not self._stop.is_set():
                _log.warning("the pool's driver ended (%d); another one begins", code)
        self._process, self._driver = None, b""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._outbox = []
        for inference, _ in waiting.values():
            self._fail(inference.request, Refused("full: the pool's driver ended", remedy="compute locally meanwhile"))

    def _refuse_late(self, now: float) -> None:
        with self._lock:
            late = [number for number, (_, until_s) in self._waiting.items() if now > until_s]
            inferences = [self._waiting.pop(number)[0] for number in late]
        for inference in inferences:
            self._fail(inference.request, Refused("full: the pool did not answer in time"))

    def _handle_message(self, frames: List[zmq.Frame]) -> None:
        self._received_s = time.monotonic()
        message = messages.unpack_header(frames[1].buffer)
        if message.type == "notify":
            self._driver, self._status = frames[0].bytes, message.body
            return
        with self._lock:
            inference, _ = self._waiting.pop(message.id, (None, 0.0))
        if inference is None:
            return
        try:
            if message.type == "error":
                raise messages.error_from(message.body)
            outputs = self._decode_outputs(inference, message.body, [frame.buffer for frame in frames[2:]])
            kind = "emulated pool" if message.body.get("emulated") else "pool"
            engine = f"{EAGER} {kind} batch {message.body.get('batch')}"
            inference.send_result(Execution(outputs, time.monotonic() - inference.started_s, engine))
        except Exception as error:
            reported = error if isinstance(error, EdgeOffloadError) else ProtocolError(f"the pool's answer: {error}")
            self._fail(inference.request, reported)

    def _decode_outputs(
        self, inference: ServerInference, body: Dict[str, Any], parts: List[Any]
    ) -> Tuple[torch.Tensor, ...]:
        """Decode the pool's outputs; an emulated pool gets fixed outputs of the model for such shapes."""
        if body.get("emulated"):
            specs = inference.opened.specs
            if specs not in self._emulated_outputs:
                executor = inference.opened.replica.executor
                self._emulated_outputs[specs] = executor.run_module([spec.zeros() for spec in specs]).outputs
            return self._emulated_outputs[specs]
        outputs = []
        if len(parts) != len(body["outputs"]):
            raise ProtocolError("the pool's answer lacks a tensor")
        for raw, part in zip(body["outputs"], parts):
            spec = TensorSpec.parse(raw)
            if memoryview(part).nbytes != spec.nbytes:
                raise ProtocolError("the pool's answer has another size than it says")
            data = torch.empty(spec.nbytes, dtype=torch.uint8)
            data.numpy()[:] = np.frombuffer(part, np.uint8)
            order = list(raw["order"])
            inverse = [order.index(dim) for dim in range(len(order))]
            shape = [spec.shape[dim] for dim in order]
            outputs.append(data.view(spec.torch_dtype).reshape(shape).permute(inverse).contiguous())
        return tuple(outputs)
