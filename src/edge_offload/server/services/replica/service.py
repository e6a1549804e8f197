"""Mode ``server``: whole models on the server's device, opened once per robot and shape, then asked per frame."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from edge_offload.errors import EdgeOffloadError, ProtocolError, Refused, RemoteError
from edge_offload.execute.engines.base import EAGER, ENGINE
from edge_offload.execute.module import Execution
from edge_offload.execute.tensors import MAX_TENSORS, TensorSpec, check_descriptors, pack_tensors, unpack_tensors
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.mode import Mode
from edge_offload.server.results import ResultFeed, ServerFrameResult
from edge_offload.server.services.base import OpenHandles, Service
from edge_offload.server.services.replica.replicas import Replica, ReplicaStore
from edge_offload.server.status import PromiseStatus, StatusBook
from edge_offload.server.worker import FairQueue, Job, JobWorker


@dataclass(frozen=True)
class RobotQuota:
    """Limits of one robot over all of its connections.

    Attributes:
        max_open: opened models (a shape each).
        max_models: different models among them, which share the places of :class:`~.replicas.ReplicaStore`.
        max_input_bytes: inputs of one inference, decoded.
    """

    max_open: int = 16
    max_models: int = 8
    max_input_bytes: int = 256 << 20


@dataclass(frozen=True)
class OpenedModel:
    """A model as opened by one robot, under a handle."""

    replica: Replica
    specs: Tuple[TensorSpec, ...]


class ServerInference:
    """A checked request. Its methods run on the thread that computes.

    Args:
        request: to be answered.
        opened: the model.
        wait_s: how long the robot waits; None: as long as it takes.
        max_input_bytes: of its inputs, decoded.
        book: counts.
        feed: gets the result.
    """

    def __init__(
        self,
        request: Request,
        opened: OpenedModel,
        wait_s: Optional[float],
        max_input_bytes: int,
        book: StatusBook,
        feed: ResultFeed,
    ) -> None:
        self.request = request
        self.opened = opened
        self.wait_s = wait_s
        self._max_input_bytes = max_input_bytes
        self._book = book
        self._feed = feed
        self._downlink = request.downlink
        self._started_s = self._decoded_s = 0.0

    @property
    def started_s(self) -> float:
        """Start of its processing (monotonic seconds)."""
        return self._started_s

    def decode_inputs(self) -> Tuple[torch.Tensor, ...]:
        """Decode the inputs when the computation begins.

        Raises:
            Refused: the robot does not wait any more.
            BadInput, ProtocolError: the inputs do not decode to what was opened.
        """
        self._started_s = time.monotonic()
        waited_s = self._started_s - self.request.received_s
        if self.wait_s is not None and waited_s > self.wait_s:
            raise Refused(f"full: the request waited {waited_s:.3f} s, longer than the robot does")
        inputs = unpack_tensors(
            self.request.body["inputs"], self.request.buffers, self.opened.specs, self._max_input_bytes
        )
        self._decoded_s = time.monotonic()
        return inputs

    def send_result(self, execution: Execution, shared_by: int = 1) -> None:
        """Send the result of a computation shared by ``shared_by`` inferences."""
        request, name = self.request, self.opened.replica.name
        self._book.record_inference(name, execution.compute_s / shared_by)
        encoding_s = time.monotonic()
        descriptors, buffers = pack_tensors(execution.outputs, request.body.get("codec", "auto"), self._downlink)
        answer: Dict[str, Any] = {
            "outputs": descriptors,
            "queue_s": self._started_s - request.received_s,
            "decode_s": self._decoded_s - self._started_s,
            "compute_s": execution.compute_s,
            "engine": execution.engine,
            "encode_s": time.monotonic() - encoding_s,
        }
        request.reply(answer, buffers)
        self._book.add_totals(bytes_out=sum(memoryview(part).nbytes for part in buffers))
        meta = request.body.get("meta", {})
        self._feed.add_computed(ServerFrameResult(request.peer.name, name, Mode.SERVER, meta, execution.outputs))

    def explain_failure(self, error: Exception) -> EdgeOffloadError:
        """Return the error for the robot if the model raised ``error``."""
        if isinstance(error, EdgeOffloadError):
            return error
        opened = self.opened
        return RemoteError(
            f"model {opened.replica.name!r} failed on {', '.join(map(str, opened.specs))}: "
            f"{type(error).__name__}: {str(error)[:500]}"
        )


class Scheduler(ABC):
    """Decides who computes an inference, when, and with which others. A server has one; nothing else decides that.

    It is the timetable of the device's worker (:class:`~edge_offload.server.worker.Timetable`): by default, nothing is
    due at a time of its own.
    """

    def start(self) -> None:  # noqa: B027
        """Start scheduling."""

    def close(self) -> None:  # noqa: B027
        """Stop scheduling."""

    @abstractmethod
    def schedule_inference(self, inference: ServerInference) -> None:
        """Have it computed and answered; returns at once.

        Raises:
            Refused: it cannot be, or not in time.
        """

    @abstractmethod
    def remove_peer(self, peer: Peer) -> None:
        """Remove waiting inferences of a peer that has disconnected."""

    def due_s(self) -> Optional[float]:
        """Return when the next due work starts (monotonic seconds); None while there is none."""
        return None

    def run_due_work(self) -> None:  # noqa: B027
        """Do the due work."""

    def engine_of(self, replica: Replica) -> str:
        """Return the engine of a replica, as reported to robots that open it."""
        return replica.executor.engine_facts().get(ENGINE, EAGER)

    def status(self) -> Tuple[int, List[PromiseStatus]]:
        """Return batches so far, and the service of each robot with a promise."""
        return 0, []

    def describe_pool(self) -> Tuple[str, Dict[str, Any]]:
        """Return the state of the pool of GPUs, in one line and in full; empty if there is none."""
        return "", {}


class FairScheduler(Scheduler):
    """Runs one inference at a time, with robots in turn.

    Args:
        queue: of the worker that owns the device.
        book: knows how long a model takes.
        service: answers what fails.
    """

    def __init__(self, queue: FairQueue[Job], book: StatusBook, service: Service) -> None:
        self._queue = queue
        self._book = book
        self._service = service

    def schedule_inference(self, inference: ServerInference) -> None:
        """Implement :class:`Scheduler`."""
        peer, cost_s = inference.request.peer, self._book.expected_inference_s(inference.opened.replica.name)
        self._check_wait(peer, cost_s, inference.wait_s)
        work = lambda: compute_alone(inference)  # noqa: E731
        self._queue.put_item(peer, lambda: self._service.answer_request(inference.request, work), cost_s)

    def remove_peer(self, peer: Peer) -> None:
        """Implement :class:`Scheduler`."""
        self._queue.remove_peer(peer)

    def _check_wait(self, peer: Peer, cost_s: float, wait_s: Optional[float]) -> None:
        if wait_s is None:
            return
        ahead_s = self._queue.ahead_s(peer)
        if ahead_s > 0 and ahead_s + cost_s > wait_s:
            raise Refused(
                f"full: a result would take {ahead_s + cost_s:.3f} s, the robot waits {wait_s:.3f} s",
                remedy="compute locally, or share the server with fewer robots",
            )


def compute_alone(inference: ServerInference) -> None:
    """Compute one inference on the device's thread; an :class:`EdgeOffloadError` is the robot's answer."""
    inputs = inference.decode_inputs()
    try:
        execution = inference.opened.replica.executor.run_module(inputs)
    except Exception as error:
        raise inference.explain_failure(error) from error
    inference.send_result(execution)


class ReplicaService(Service):
    """Answers ``open_model``, ``close_model`` and ``infer``. Its methods run on the link's thread and return at once.

    Args:
        pool: builds the models.
        scheduler: decides when what robots ask for is computed.
        device: worker that owns the device.
        loader: worker that builds models meanwhile.
        book: counts.
        feed: gets every result.
        quota: of one robot.
    """

    def __init__(
        self,
        pool: ReplicaStore,
        scheduler: Scheduler,
        device: JobWorker,
        loader: JobWorker,
        book: StatusBook,
        feed: ResultFeed,
        quota: RobotQuota,
    ) -> None:
        super().__init__(book)
        self._pool = pool
        self._device = device
        self._loader = loader
        self._feed = feed
        self._quota = quota
        self._scheduler = scheduler
        self._opened: OpenHandles[OpenedModel] = OpenHandles("model", lambda item: pool.release_replica(item.replica))

    @property
    def handlers(self) -> Dict[str, Callable[[Request], None]]:
        """Handlers by the request's kind."""
        return {"open_model": self.open_model, "close_model": self._opened.close_handle, "infer": self.submit_inference}

    def open_model(self, request: Request) -> None:
        """Answer ``{name, options, state_hash, inputs: [spec…]}`` with ``{handle, state_hash, warm_up_s, engine}``.

        Raises:
            BadInput, ProtocolError, Refused: malformed, or too much is open.
        """
        body = request.body
        state_hash, inputs = body.get("state_hash"), body.get("inputs", [])
        if state_hash is not None and not isinstance(state_hash, str):
            raise ProtocolError("state_hash is a string")
        if not isinstance(inputs, list) or len(inputs) > MAX_TENSORS:
            raise ProtocolError(f"inputs are a list of at most {MAX_TENSORS} tensors")
        specs = tuple(TensorSpec.parse(raw) for raw in inputs)
        size = sum(spec.nbytes for spec in specs)
        if size > self._quota.max_input_bytes:
            raise Refused(
                f"inputs of {size} bytes where {self._quota.max_input_bytes} are allowed",
                remedy="send smaller inputs, or start the server with a larger --max-input-mb",
            )
        if len(self._opened.items_of_robot(request.peer)) >= self._quota.max_open:
            raise Refused(f"full: this robot has {self._quota.max_open} models open", remedy="close one")
        self.submit_work(self._loader, request, lambda: self._load_model(request, specs))

    def submit_inference(self, request: Request) -> None:
        """``{handle, inputs, codec, downlink, wait_s, meta, turn}`` → ``{outputs, …_s, engine}``: seconds of stages.

        ``wait_s`` is how long the robot waits: what cannot be ready by then is refused at once, and never computed.
        ``downlink`` is what the link carries to the robot, bytes/s. ``turn`` is for the scheduler of promises.

        Raises:
            BadInput, ProtocolError, Refused: malformed, no such handle, other shapes than opened, or full.
        """
        body = request.body
        opened = self._opened.find_item(request)
        check_descriptors(body.get("inputs"), len(request.buffers), opened.specs, self._quota.max_input_bytes)
        if not isinstance(body.get("codec", "auto"), str) or not isinstance(body.get("meta", {}), dict):
            raise ProtocolError("codec is a string, meta a map")
        wait_s = body.get("wait_s")
        if wait_s is not None and (not isinstance(wait_s, (int, float)) or not 0 <= wait_s < 1e6):
            raise ProtocolError("wait_s is a number of seconds")
        inference = ServerInference(request, opened, wait_s, self._quota.max_input_bytes, self._book, self._feed)
        self._scheduler.schedule_inference(inference)

    def find_opened(self, request: Request) -> OpenedModel:
        """The model that a request's handle stands for.

        Raises:
            BadInput: none.
        """
        return self._opened.find_item(request)

    def remove_peer(self, peer: Peer) -> None:
        """Close all models of a peer that has disconnected, and remove its waiting inferences."""
        self._scheduler.remove_peer(peer)
        self._loader.queue.remove_peer(peer)
        self._opened.remove_peer(peer)

    def _load_model(self, request: Request, specs: Tuple[TensorSpec, ...]) -> None:
        """Build a model on the loader's thread, then submit its first run to the device."""
        body = request.body
        name, options = body.get("name"), body.get("options", {})
        models = {item.replica.key for item in self._opened.items_of_robot(request.peer)}
        if len(models) >= self._quota.max_models and self._pool.make_key(name, options) not in models:
            raise Refused(
                f"full: this robot has {len(models)} different models open",
                remedy="close one of them, or start the server with a larger --models-per-robot",
            )
        replica = self._pool.acquire_replica(name, options, body.get("state_hash"))
        try:
            self.submit_work(self._device, request, lambda: self._finish_open(request, replica, specs))
        except Refused:
            self._pool.release_replica(replica)
            raise

    def _finish_open(self, request: Request, replica: Replica, specs: Tuple[TensorSpec, ...]) -> None:
        """Run it once on the device's thread: the first run is slow (choice of kernels, allocation), and reply."""
        try:
            warm_up_s = replica.warm_up(specs)
        except Exception:
            self._pool.release_replica(replica)
            raise
        handle = self._opened.add_item(request, OpenedModel(replica, specs))
        if handle:
            engine = self._scheduler.engine_of(replica)
            request.reply(
                {"handle": handle, "state_hash": replica.state_hash, "warm_up_s": warm_up_s, "engine": engine}
            )
