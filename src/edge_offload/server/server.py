"""The server process: a front that always answers, a worker that owns the device, services by kind of request."""

from __future__ import annotations

import logging
import pathlib
import platform
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Hashable, Iterable, List, Mapping, Optional, Tuple

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, ProtocolError, Refused, Unsupported
from edge_offload.execute import devices
from edge_offload.execute.emulated import EMULATED, Emulation
from edge_offload.execute.engines import table
from edge_offload.execute.engines.base import EAGER, ENGINE, FASTEST_EXACT, facts, stated
from edge_offload.execute.fingerprint import fingerprint
from edge_offload.execute.threads import pin
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.listener import Listener
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.models.entry import Scalar
from edge_offload.server.blobs import BlobStore
from edge_offload.server.promises.tables import load_csv
from edge_offload.server.quota import DeviceQuota
from edge_offload.server.results import ResultFeed, Watcher
from edge_offload.server.services.device.service import DeviceService
from edge_offload.server.services.promise.service import PromiseService
from edge_offload.server.services.replica.replicas import ReplicaPool
from edge_offload.server.services.replica.service import Quota, ReplicaService
from edge_offload.server.services.split.service import SplitService
from edge_offload.server.status import ServerStatus, StatusBook
from edge_offload.server.worker import FairQueue, Worker

if TYPE_CHECKING:
    from edge_offload.server.pool.settings import Settings
    from edge_offload.server.services.replica.pooled import Pooled

Handler = Callable[[Request], None]
_log = logging.getLogger(__name__)


def _robot_of(peer: Any) -> Hashable:
    """A robot is known by its key, however many connections it has."""
    return str(peer.key)


def _emulated(device: str) -> Optional[Emulation]:
    """The emulated device that is meant by ``emulated:TABLE.csv``; None: a real one is."""
    kind, _, path = device.partition(":")
    return Emulation(device, load_csv(pathlib.Path(path)).of) if kind == EMULATED else None


def _pooled(gpus: Settings, replicas: ReplicaService) -> Pooled:
    from edge_offload.server.services.replica.pooled import Pooled

    made = Pooled(gpus, replicas.scheduler, replicas.failed)
    replicas.scheduler, replicas.engine_of = made, made.engine_of
    return made


class OffloadServer:
    """Serves robots: mode ``server``, status, and their per-frame reports.

    The link's thread only checks and queues, so heartbeats are answered while the device computes.

    Args:
        bind: ``tcp://host:port``, port 0 for a free one.
        device: ``auto``, ``cpu``, ``cuda``, or ``emulated:TABLE.csv``.
        engine: what computes the replicas of mode ``server``, as :func:`~edge_offload.execute.engines.table.chosen`
            takes it; torch computes where an engine is not installed, and :attr:`engine` says so.
        threads, cores: compute threads and CPU cores of this process; None leaves them.
        allow: factories (``package.module:factory``) that robots may open besides the models of the registry.
        overrides: options by model name that replace those that a robot sends.
        keys: key directory; the default one if None.
        queue_per_peer: requests that one robot may have waiting for the device.
        queue_total: requests that may wait in all.
        max_models: models kept at once.
        quota: what one robot may hold.
        device_quota: what virtual devices may take.
        blobs: where their weights are kept; by default in the user's cache.
        promises: whether robots may ask for promises of accuracy (:mod:`edge_offload.server.promises`).
        gpus: a pool of GPUs that computes one of the models.

    Raises:
        BadInput, Unsupported: the device is unknown or absent, or the engine unknown.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        device: str = devices.AUTO,
        engine: str = FASTEST_EXACT,
        threads: Optional[int] = None,
        cores: Optional[Iterable[int]] = None,
        allow: Iterable[str] = (),
        overrides: Optional[Mapping[str, Mapping[str, Scalar]]] = None,
        keys: Optional[KeyStore] = None,
        queue_per_peer: int = 4,
        queue_total: int = 64,
        max_models: int = 12,
        quota: Optional[Quota] = None,
        device_quota: Optional[DeviceQuota] = None,
        blobs: Optional[BlobStore] = None,
        promises: bool = False,
        gpus: Optional[Settings] = None,
    ) -> None:
        self._emulated = _emulated(device)
        self._device_name = devices.pick("cpu" if self._emulated else device)
        self._threads = threads
        self._cores = None if cores is None else frozenset(cores)
        self._draining = False
        self._fingerprint: Dict[str, Any] = {}
        self._facts: Dict[str, Any] = {}
        self._book = StatusBook(self.device)
        self._feed = ResultFeed()
        self.pool = ReplicaPool(self._device_name, allow, overrides, max_models, engine, self._emulated)
        self._default_engine, self._told_engine = self._name_engine()
        self._device = Worker(
            "edge-offload-device", FairQueue(queue_per_peer, queue_total, _robot_of), self._prepare_device
        )
        background.first(self._device.queue)  # what is traced meanwhile gives way to it
        self._loader = Worker("edge-offload-loader", FairQueue(queue_per_peer, queue_total, _robot_of))
        self._replicas = ReplicaService(self.pool, self._device, self._loader, self._book, self._feed, quota)
        blobs = blobs if blobs is not None else BlobStore()
        self._devices = DeviceService(
            str(self._device_name), threads or 0, tuple(sorted(self._cores or ())), device_quota, blobs
        )
        self._splits = SplitService(self.pool, self._device, self._loader, self._book, blobs)
        self._promises = PromiseService(self._replicas, self._device, self._book, self._tell) if promises else None
        self._pooled = None if gpus is None else _pooled(gpus, self._replicas)
        self._handlers: Dict[str, Handler] = {
            **({} if self._promises is None else self._promises.handlers),
            **self._splits.handlers,
            **self._replicas.handlers,
            **self._devices.handlers,
            "status": self._answer_status,
            "report": self._take_report,
        }
        self._listener = Listener(bind, welcome=self._welcome, handle=self._handle, gone=self._gone, keys=keys)

    @property
    def address(self) -> str:
        """``tcp://host:port`` really bound."""
        return self._listener.address

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``, or the emulated one by name."""
        return self._emulated.name if self._emulated else str(self._device_name)

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
            if self._pooled is not None:
                self._pooled.start()
            self._listener.start()
            if self._promises is not None:
                self._promises.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop. An inference that runs is waited for, at most ``timeout_s``; robots fall back to local."""
        self._listener.close()
        if self._pooled is not None:
            self._pooled.close()
        if self._promises is not None:
            self._promises.close()
        for worker in (self._loader, self._device):
            if not worker.close(timeout_s):
                _log.warning("a computation was still running %g s after the server was told to stop", timeout_s)
        self._splits.close()
        self._devices.close()
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
        self.pool.acquire(name, options, None)

    def on_result(self, watcher: Watcher) -> None:
        """Call ``watcher`` with every frame's result, computed here or reported by a robot, in a thread of its own."""
        self._feed.watch(watcher)

    def status(self) -> ServerStatus:
        """Load, queue, sessions and latencies now."""
        status = self._book.snapshot(len(self._device.queue), len(self._listener.peers()))
        if self._promises is None:
            return status
        batches, promises = self._promises.promises.status()
        return replace(status, batches=batches, promises=promises)

    def robots(self) -> List[str]:
        """Names of the robots that are connected, each once however many connections it has."""
        return list({peer.key: peer.name for peer in self._listener.peers()}.values())

    @property
    def engine(self) -> str:
        """What computes replicas where it can: ``eager`` (torch), or an inference engine with version and precision.

        Engines of models that are loaded come first; why one of these is with torch all the same follows in words.
        """
        amber = [f"{model}: {words}" for model, (words, wrong) in self.pool.engines().items() if wrong]
        pooled = [] if self._pooled is None else [self._pooled.words()]
        return "; ".join([*pooled, *(self.pool.engines_meant() or [self._default_engine]), *amber])

    @property
    def gpus(self) -> Dict[str, Any]:
        """What the pool of GPUs says of itself; empty where there is none."""
        return {} if self._pooled is None else self._pooled.status

    def _name_engine(self) -> Tuple[str, str]:
        """The engine of models that are not named, for people; and what the fingerprint says of it."""
        try:
            backend = table.pick(self.pool.engine_of(""), self._device_name.type)
        except Unsupported as error:
            return f"{EAGER}: {error}", ""
        return (EAGER if backend is None else str(facts(backend))), stated(backend)

    def _prepare_device(self) -> None:
        pin(self._threads, self._cores)
        self._fingerprint = fingerprint(devices.settle(self._device_name))
        if self._emulated:
            self._told_engine = self._emulated.name
        if self._told_engine:
            self._fingerprint[ENGINE] = self._told_engine
        self._facts = devices.facts(self._device_name, self._devices.quota.storage_bytes)

    def _tell(self, peer: Peer, kind: str, body: Dict[str, Any]) -> None:
        self._listener.notify(peer, kind, body)

    def _welcome(self, peer: Peer, _hello: Mapping[str, Any]) -> Dict[str, Any]:
        if self._draining:
            raise Refused(
                "full: this server is being taken away", remedy="name another one, too: --server a:5700,b:5700"
            )
        _log.info("robot %s connected", peer.name)
        return {
            "fingerprint": self._fingerprint, "device": self.device, "python": platform.python_version(),
            "gpu": self._facts, "promises": self._promises is not None,
        }  # fmt: skip

    def _gone(self, peer: Peer, reason: str) -> None:
        _log.info("robot %s left: %s", peer.name, reason)
        self._replicas.forget(peer)
        self._splits.forget(peer)
        self._devices.forget(peer)

    def _handle(self, request: Request) -> None:
        self._book.add(bytes_in=request.bytes_up)
        handler = self._handlers.get(request.kind)
        try:
            if handler is None and request.kind == "promise":
                raise Unsupported("this server makes no promises", remedy="start it with: serve --promises")
            if handler is None:
                raise ProtocolError(f"this server answers no {request.kind!r}", "use the same release on both sides")
            handler(request)
        except EdgeOffloadError as error:
            self._replicas.failed(request, error)

    def _answer_status(self, request: Request) -> None:
        request.reply(self.status().to_dict())

    def _take_report(self, request: Request) -> None:
        self._feed.reported(request.peer.name, request.body, request.buffers)
