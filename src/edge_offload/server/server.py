"""The server process: a front that always answers, a worker that owns the device, services by kind of request."""

from __future__ import annotations

import functools
import logging
import platform
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Hashable, List, Mapping, Optional

from edge_offload import background
from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Refused, Unsupported
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.listener import Listener
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.models.entry import Scalar
from edge_offload.server.blobs import BlobStore
from edge_offload.server.device import ComputeDevice
from edge_offload.server.results import ResultFeed, Watcher
from edge_offload.server.services.base import Service
from edge_offload.server.services.device.service import DeviceService
from edge_offload.server.services.promise.register import PromiseRegister
from edge_offload.server.services.promise.scheduler import PromiseScheduler
from edge_offload.server.services.promise.service import PromiseService
from edge_offload.server.services.replica.replicas import ReplicaStore
from edge_offload.server.services.replica.service import FairScheduler, ReplicaService, Scheduler
from edge_offload.server.services.split.service import SplitService
from edge_offload.server.settings import Compute, Limits, Models
from edge_offload.server.status import ServerStatus, StatusBook
from edge_offload.server.worker import FairQueue, Job, JobWorker

if TYPE_CHECKING:
    from edge_offload.server.pool.settings import PoolSettings

Handler = Callable[[Request], None]
_log = logging.getLogger(__name__)


def _robot_of(peer: Any) -> Hashable:
    """Return the key of a peer's robot, which all of its connections share."""
    return str(peer.key)


class OffloadServer:
    """Serves robots: mode ``server``, status, and their per-frame reports.

    The link's thread only checks and queues, so heartbeats are answered while the device computes.

    Args:
        bind: ``tcp://host:port``, port 0 for a free one.
        compute: device and engine.
        models: what robots may open.
        limits: what robots may take.
        keys: key directory; the default one if None.
        blobs: where weights that robots send are kept; by default in the user's cache.
        promises: whether robots may ask for promises of accuracy (:mod:`edge_offload.server.promises`).
        gpus: a pool of GPUs that computes one of the models.

    Raises:
        BadInput, Unsupported: the device is unknown or absent, or the engine unknown; both promises and a pool.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        compute: Compute = Compute(),  # noqa: B008
        models: Models = Models(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        keys: Optional[KeyStore] = None,
        blobs: Optional[BlobStore] = None,
        promises: bool = False,
        gpus: Optional[PoolSettings] = None,
    ) -> None:
        if promises and gpus is not None:
            raise BadInput("a pool and promises are two ways to share a GPU", remedy="choose one")
        self._compute = device = ComputeDevice(compute)
        self._draining = False
        self._book = book = StatusBook(device.name)
        self._feed = ResultFeed()
        self.pool = ReplicaStore(
            device.placed, models.allow, models.overrides, models.most, compute.engine, device.emulated
        )
        queue: FairQueue[Job] = FairQueue(limits.queue_per_peer, limits.queue_total, _robot_of)
        background.yield_to(queue)  # what is traced meanwhile gives way to it
        self._answers = Service(book)
        self._scheduler: Scheduler = FairScheduler(queue, book, self._answers)
        if promises:
            fail, notify = self._answers.fail_request, self._notify_peer
            self._scheduler = PromiseScheduler(self._scheduler, PromiseRegister(), queue, fail, notify)
        elif gpus is not None:
            from edge_offload.server.services.replica.pooled import PoolScheduler

            self._scheduler = PoolScheduler(gpus, self._scheduler, self._answers.fail_request)
        prepare = functools.partial(device.prepare_device, limits.devices.storage_bytes)
        self._device = JobWorker("edge-offload-device", queue, prepare, self._scheduler)
        self._loader = JobWorker("edge-offload-loader", FairQueue(limits.queue_per_peer, limits.queue_total, _robot_of))
        self._replicas = ReplicaService(
            self.pool, self._scheduler, self._device, self._loader, book, self._feed, limits.robot
        )
        self._blobs = blobs = blobs if blobs is not None else BlobStore()
        cores = tuple(sorted(compute.cores or ()))
        self._devices = DeviceService(str(device.placed), compute.threads or 0, cores, limits.devices, blobs)
        self._splits = SplitService(self.pool, self._device, self._loader, book, blobs)
        self._handlers: Dict[str, Handler] = {
            **self._splits.handlers,
            **self._replicas.handlers,
            **self._devices.handlers,
            "status": self._answer_status,
            "report": self._add_report,
        }
        if isinstance(self._scheduler, PromiseScheduler):
            self._handlers.update(PromiseService(self._scheduler, self._replicas, self._device, book).handlers)
        welcome, handle, gone = self._welcome_peer, self._handle_request, self._remove_peer
        self._listener = Listener(bind, welcome=welcome, handle=handle, on_gone=gone, keys=keys)

    @property
    def address(self) -> str:
        """``tcp://host:port`` really bound."""
        return self._listener.address

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``, or the emulated one by name."""
        return self._compute.name

    def start(self) -> OffloadServer:
        """Prepare the device, bind and serve.

        Raises:
            BadInput: the address cannot be bound, or the cores cannot be used.
        """
        self._device.start()
        try:
            self._loader.start()
            self._splits.start()
            self._feed.start()
            self._scheduler.start()
            self._listener.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop. An inference that runs is waited for, at most ``timeout_s``; robots fall back to local."""
        self._listener.close()
        self._scheduler.close()
        for worker in (self._loader, self._device):
            if not worker.close(timeout_s):
                _log.warning("a computation was still running %g s after the server was told to stop", timeout_s)
        self._splits.close()
        self._devices.close()
        self._blobs.flush()
        self._feed.close()

    def drain(self, timeout_s: float = 5.0) -> int:
        """Let nobody in any more, send robots to their other servers; returns how many are left after ``timeout_s``.

        Whatever they have asked for is answered. A robot that knows no other server stays until :meth:`close`.
        """
        self._draining = True
        self._listener.drain()
        end_s = time.monotonic() + timeout_s
        while self._listener.peers() and time.monotonic() < end_s:
            time.sleep(0.02)
        return len(self.robots())

    def __enter__(self) -> OffloadServer:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def preload(self, name: str, **options: Scalar) -> None:
        """Build a model now and keep it for as long as the server runs. Call it before :meth:`start`.

        Raises:
            Refused, BadInput, RemoteError: as a robot that opens it would be told.
        """
        self.pool.acquire_replica(name, options, None)

    def on_result(self, watcher: Watcher) -> None:
        """Call ``watcher`` with every frame's result, computed here or reported by a robot, in a thread of its own."""
        self._feed.add_watcher(watcher)

    def status(self) -> ServerStatus:
        """Return load, queue, sessions and latencies now."""
        status = self._book.make_status(len(self._device.queue), len(self._listener.peers()))
        batches, promises = self._scheduler.status()
        return replace(status, batches=batches, promises=promises)

    def robots(self) -> List[str]:
        """Return the names of connected robots, each once however many connections it has."""
        return list({peer.key: peer.name for peer in self._listener.peers()}.values())

    @property
    def engine(self) -> str:
        """What computes replicas where it can: ``eager`` (torch), or an inference engine with version and precision.

        Engines of models that are loaded come first; why one of these is with torch all the same follows in words.
        """
        warnings = [f"{model}: {state}" for model, (state, degraded) in self.pool.engine_states().items() if degraded]
        pooled, _ = self._scheduler.describe_pool()
        return "; ".join([*filter(None, [pooled]), *(self.pool.list_engines() or [self._compute.engine]), *warnings])

    @property
    def gpus(self) -> Dict[str, Any]:
        """Status of the pool of GPUs; empty if there is none."""
        return self._scheduler.describe_pool()[1]

    def _notify_peer(self, peer: Peer, kind: str, body: Dict[str, Any]) -> None:
        self._listener.notify(peer, kind, body)

    def _welcome_peer(self, peer: Peer, hello: Mapping[str, Any]) -> Dict[str, Any]:
        if self._draining:
            raise Refused(
                "full: this server is being taken away", remedy="name another one, too: --server a:5700,b:5700"
            )
        _log.info("robot %s connected", peer.name)
        if hello.get("device") is True:
            self._devices.prepare_executor(peer)
        return {
            "fingerprint": self._compute.fingerprint, "device": self.device, "python": platform.python_version(),
            "gpu": self._compute.facts, "promises": "promise" in self._handlers,
        }  # fmt: skip

    def _remove_peer(self, peer: Peer, reason: str) -> None:
        _log.info("robot %s left: %s", peer.name, reason)
        self._replicas.remove_peer(peer)
        self._splits.remove_peer(peer)
        self._devices.detach_peer(peer)

    def _handle_request(self, request: Request) -> None:
        self._book.add_totals(bytes_in=request.bytes_up)
        handler = self._handlers.get(request.kind)
        try:
            if handler is None and request.kind == "promise":
                raise Unsupported("this server makes no promises", remedy="start it with: serve --promises")
            if handler is None:
                raise ProtocolError(f"this server answers no {request.kind!r}", "use the same release on both sides")
            handler(request)
        except EdgeOffloadError as error:
            self._answers.fail_request(request, error)

    def _answer_status(self, request: Request) -> None:
        request.reply(self.status().to_dict())

    def _add_report(self, request: Request) -> None:
        self._feed.add_reported(request.peer.name, request.body, request.buffers)
