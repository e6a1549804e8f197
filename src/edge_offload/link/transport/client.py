"""The robot's end of the link: requests as Futures, over a connection that heals itself and never queues for the dead.

One thread owns the sockets. Each connection is a fresh socket with a fresh epoch, so nothing written for one connection
can reach another. While the state is not READY, requests fail at once; when the link is lost, the pending ones do.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import zmq

from edge_offload.errors import BadInput, EdgeOffloadError, LinkLost
from edge_offload.link.estimate.clock import ClockReading
from edge_offload.link.estimate.estimator import LinkEstimator
from edge_offload.link.estimate.scheduling import BothEnds
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.sockets.descriptors import Deliveries, Wakeup
from edge_offload.link.transport import messages
from edge_offload.link.transport.attention import Attention
from edge_offload.link.transport.connection import DEFAULT_TIMINGS, ConnectionLost, Dialled, Target, Timings
from edge_offload.link.transport.fronts import DRAIN, Fronts
from edge_offload.link.transport.incoming import Incoming, OnNotify
from edge_offload.link.transport.messages import DEFAULT_LIMITS, Limits, Message
from edge_offload.link.transport.redial import Dialling, Redial
from edge_offload.link.transport.replies import Item, LinkState, LinkStatus, OnPart, WaitingRequests


class Keeper:
    """Keeps a connection up, on a thread of its own, which owns the sockets.

    Args:
        fronts: the servers.
        dialling: how they are dialled.
        status: where the link stands; kept up here.
        incoming: completes what waits.

    Attributes:
        clock: the server's.
        wakeup: has the thread look at what there is to do.
    """

    def __init__(self, fronts: Fronts, dialling: Dialling, status: LinkStatus, incoming: Incoming) -> None:
        self.clock = ClockReading()
        self.wakeup = Wakeup()
        self._fronts, self._dialling, self._status, self._incoming = fronts, dialling, status, incoming
        self._redial = Redial(fronts, dialling.timings)
        self._attentions: List[Attention] = []
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Begin to connect."""
        self._thread = threading.Thread(target=self._run_link, name="edge_offload-client", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect for good."""
        self._stop.set()
        self.wakeup.wake_thread()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @contextlib.contextmanager
    def attend(self) -> Iterator[Attention]:
        """See :meth:`Client.attend`."""
        attention = Attention()
        with self._status.lock:
            self._attentions = [*self._attentions, attention]
        self.wakeup.wake_thread()
        try:
            yield attention
        finally:
            with self._status.lock:
                self._attentions = [each for each in self._attentions if each is not attention]

    def _run_link(self) -> None:
        status, context = self._status, zmq.Context()
        try:
            while not self._stop.is_set():
                status.epoch = random.SystemRandom().getrandbits(62) + 1
                dialled_s = time.monotonic()
                try:
                    self._serve_connection(context)
                except (ConnectionLost, EdgeOffloadError) as error:
                    ready = isinstance(error, ConnectionLost) and status.state is LinkState.READY
                    over = self._redial.end_attempt(error, ready, dialled_s, self.clock.rtt_s)
                else:
                    break
                status.leaving = None
                self._incoming.estimator.mark_lost()
                state = LinkState.REFUSED if over.refused is not None else LinkState.LOST
                status.change_state(state, over.reason, over.refused)
                self._incoming.fail_all(LinkLost(f"the connection to {status.address} was lost: {over.reason}"))
                status.address = self._fronts.current
                self._stop.wait(over.pause_s)
        finally:
            status.change_state(LinkState.CLOSED, "closed")
            self._incoming.fail_all(LinkLost(f"the connection to {status.address} was closed"))
            context.destroy(linger=0)

    def _serve_connection(self, context: zmq.Context[Any]) -> None:
        """One connection, from dialling to its end; returns only when the client is closed."""
        how, status, waits = self._dialling, self._status, self._incoming.waits
        body = {"app": how.hello() if callable(how.hello) else how.hello, "session": how.session}
        public, pair = how.keys.server_public(status.address), how.keys.ensure_pair("client")
        target = Target(status.address, self._fronts.next_endpoint, public, pair)
        timings = replace(how.timings, connect_s=self._redial.connect_s)
        dialled = Dialled(context, target, body, status.epoch, timings, how.limits, waits.far)
        with dialled:
            waits.find_threads()
            poller = zmq.Poller()
            poller.register(self.wakeup.descriptor, zmq.POLLIN)
            for socket in dialled.sockets:
                poller.register(socket, zmq.POLLIN)
            while not self._stop.is_set():
                dialled.arrivals.wake_at_data(poller, bool(dialled.count_awaited(self._incoming.busy)))
                if self.wakeup.descriptor in dict(poller.poll(math.ceil(self._poll_s(dialled) * 1e3))):
                    self.wakeup.clear_wakeups()
                if dialled.ready:  # before all bookkeeping: a frame waits for it
                    self._send_waiting(dialled)
                if waits.take_sample(time.monotonic()):
                    self._incoming.estimator.late_s = sum(waits.typical_s)
                # what has arrived is looked at before any timeout: this thread may itself have been late
                for message, received_s, size in dialled.receive_messages():
                    self._incoming.take_message(message, received_s, size, status.epoch, self.clock)
                attentions, pulse = self._attentions, dialled.pulse
                dialled.check_link(self._incoming.busy, bool(attentions))
                for attention in attentions:
                    attention.note_overdue(time.monotonic(), pulse.quiet_since_s(), *pulse.read_progress())
                self._measure_link(dialled)
                if dialled.ready and status.state is not LinkState.READY:
                    self._mark_ready(dialled)
                    self._send_waiting(dialled)
                self._incoming.expire_requests()
                leaving = status.leaving
                if leaving is not None and (not self._incoming.busy or time.monotonic() > leaving[0]):
                    raise ConnectionLost(leaving[1], over=True)

    def _measure_link(self, dialled: Dialled) -> None:
        now, estimator = time.monotonic(), self._incoming.estimator
        reading = dialled.clock.reading
        if reading is not self.clock:
            self.clock = reading
            estimator.round_trip(now, reading.latest_s)
        if dialled.ready:
            pulse = dialled.pulse
            pulse.sampled_bytes = max(Deliveries.LEAST_BYTES, estimator.uplink * Deliveries.LEAST_S)
            counts = pulse.delivered, dialled.count_awaited(self._incoming.busy)
            estimator.add_progress(now, *pulse.read_progress(), self._incoming.waits.under_way, *counts)

    def _poll_s(self, dialled: Dialled) -> float:
        due_s = dialled.due_s(self._incoming.busy, bool(self._attentions))
        return max(0.0, min(due_s, self._incoming.requests.due_s()) - time.monotonic())

    def _mark_ready(self, dialled: Dialled) -> None:
        status = self._status
        with status.lock:
            status.welcome, status.terms, status.leaving = dialled.welcome, dialled.terms, None
        self._fronts.mark_connected()
        self._incoming.counters["connections"] += 1
        status.change_state(LinkState.READY, f"connected to {status.address}")

    def _send_waiting(self, dialled: Dialled) -> None:
        while True:
            item = self._incoming.requests.take_next()
            if item is None:
                return
            dialled.send_message(item.header, item.message.buffers)


class Client:
    """A connection to one server, kept up by a thread of its own.

    Of several servers it takes one that has room, keeps it while it answers, and goes on with the next when it does
    not.

    Args:
        address: ``tcp://host:port`` of the server (or of an emulated link in front of it), or of several, with commas.
        keys: key directory; the default one if None.
        hello: dict for the server's ``welcome`` callable, or a function that makes it anew for every connection.
        on_state: called with (state, cause) on every change, on the link's thread; must return at once.
        on_notify: called with (kind, body, buffers) for what the server sends unasked, on the link's thread.
        timings: timeouts and heartbeat.
        limits: bounds on one message, both ways.
        max_pending: requests that may wait for an answer; more fail at once. The server's own limits on requests and
            bytes that wait are kept, too.

    Attributes:
        session: of this client, over all its connections.
        estimator: what the link carries, learnt from every transfer.
        counters: what has happened, by name.
    """

    def __init__(
        self,
        address: str,
        *,
        keys: Optional[KeyStore] = None,
        hello: Union[Dict[str, Any], Callable[[], Dict[str, Any]], None] = None,
        on_state: Optional[Callable[[LinkState, str], None]] = None,
        on_notify: Optional[OnNotify] = None,
        timings: Timings = DEFAULT_TIMINGS,
        limits: Limits = DEFAULT_LIMITS,
        max_pending: int = 64,
    ) -> None:
        self.counters: Counter[Any] = Counter()
        self.session = os.urandom(16).hex()
        self.estimator = LinkEstimator()
        self._fronts = Fronts(address, begin=int(self.session, 16))
        self._keys = keys if keys is not None else KeyStore()
        self._limits, self._max_pending = limits, max_pending
        self._ids = itertools.count(1)
        self._on_notify = on_notify
        self._status = LinkStatus(self._fronts.current, on_state)
        self._requests, self._waits = WaitingRequests(), BothEnds()
        incoming = Incoming(self._status, self._requests, self.estimator, self._waits, self.counters, self._notify_app)
        dialling = Dialling(self._keys, hello if hello is not None else {}, self.session, timings, limits)
        self._keeper = Keeper(self._fronts, dialling, self._status, incoming)

    @property
    def address(self) -> str:
        """Address of the server that is connected, or dialled."""
        return self._status.address

    @property
    def welcome(self) -> Dict[str, Any]:
        """Result of the server's ``welcome`` callable for the latest connection."""
        return self._status.welcome

    @property
    def clock(self) -> ClockReading:
        """The server's clock: ``offset_s``, ``error_s``, ``rtt_s``, ``warning``."""
        return self._keeper.clock

    @property
    def state(self) -> LinkState:
        """State of the link."""
        return self._status.state

    @property
    def cause(self) -> str:
        """Cause of the state, in words."""
        return self._status.cause

    @property
    def busy(self) -> bool:
        """Tell whether a request waits for its answer."""
        return self._requests.count > 0

    @property
    def scheduling_s(self) -> Tuple[float, float]:
        """Robot, server: how long a thread of the link waits for a processor, of late; 0 where that is not known."""
        return self._waits.typical_s

    def start(self) -> Client:
        """Begin to connect; returns at once.

        Raises:
            BadInput: no key is known for the server.
        """
        for address in self._fronts.all:
            self._keys.server_public(address)
        self._keys.ensure_pair("client")
        self._keeper.start()
        return self

    def close(self) -> None:
        """Disconnect for good; what is pending fails with LinkLost."""
        self._keeper.close()

    def leave(self, reason: str) -> bool:
        """Go on with another server once what has been asked is answered; False where there is no other."""
        if not self._fronts.several:
            return False
        if self._status.leaving is None and self.state is LinkState.READY:
            # answers are waited for so long before a server is left for another one
            self._status.leaving = (time.monotonic() + 1.0, reason)
            self._keeper.wakeup.wake_thread()
        return True

    def __enter__(self) -> Client:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def wait_ready(self, timeout_s: float) -> Dict[str, Any]:
        """Wait until requests can be sent; returns :attr:`welcome`.

        Raises:
            Refused: the server turned this robot away.
            LinkLost: there was no connection within ``timeout_s``.
        """
        self._status.wait_ready(timeout_s, self.address)
        return self.welcome

    def request(
        self,
        kind: str,
        body: Optional[Dict[str, Any]] = None,
        buffers: Sequence[Any] = (),
        timeout_s: float = 5.0,
        on_part: Optional[OnPart] = None,
    ) -> Future[Any]:
        """Ask the server; the Future yields a :class:`Reply`, or raises what went wrong.

        ``buffers`` are C-contiguous (bytes, numpy arrays) and must not be changed until the Future is done: large ones
        are not copied. Callbacks of the Future run on the link's thread, and so does ``on_part``, which is called with
        (body, buffers, bytes on the wire) for what the server sends ahead of the answer.

        The Future raises LinkLost (no connection, connection broke, no answer in ``timeout_s``, too much waiting
        already), or the error that the server answered with.

        Raises:
            BadInput: the request cannot travel (name, body, size).
        """
        future: Future[Any] = Future()
        problem = self._submit_request("request", kind, body, messages.byte_views(buffers), future, timeout_s, on_part)
        if problem is not None:
            future.set_exception(problem)
        return future

    @contextlib.contextmanager
    def attend(self) -> Iterator[Attention]:
        """Watch the link closely meanwhile; see :mod:`edge_offload.link.transport.attention`."""
        with self._keeper.attend() as attention:
            yield attention

    def let_go(self, timeout_s: float) -> None:
        """Wait until what was asked for has been given to ZeroMQ, but no longer than ``timeout_s``.

        The link's thread needs the interpreter lock for that: a thread that goes on to compute would keep it waiting.
        """
        self._requests.sent.wait(timeout_s)

    def notify(self, kind: str, body: Optional[Dict[str, Any]] = None, buffers: Sequence[Any] = ()) -> None:
        """Tell the server something; no answer follows. ``buffers`` are copied.

        Raises:
            BadInput: it cannot travel.
            LinkLost: there is no connection.
        """
        copies = [memoryview(bytes(view)) for view in messages.byte_views(buffers)]
        problem = self._submit_request("notify", kind, body, copies, None, 0.0)
        if problem is not None:
            raise problem

    def _submit_request(
        self,
        type_: str,
        kind: str,
        body: Optional[Dict[str, Any]],
        buffers: List[memoryview],
        future: Optional[Future[Any]],
        timeout_s: float,
        on_part: Optional[OnPart] = None,
    ) -> Optional[LinkLost]:
        now = time.monotonic()
        message = Message(
            type_, self._status.epoch, next(self._ids), messages.check_name(kind), body or {}, (), buffers
        )
        header = messages.pack_header(message, self._limits)
        sizes = [len(header), *(view.nbytes for view in buffers)]
        problem = messages.first_over(sizes, self._limits)
        if problem:
            raise BadInput(problem, remedy="send it in pieces")
        size = messages.wire_bytes(sizes)
        with self._status.lock:
            if self.state is not LinkState.READY or message.epoch != self._status.epoch:
                return LinkLost(f"no connection to {self.address}: {self.cause}")
            if self._status.leaving is not None:
                return LinkLost(f"no connection to {self.address}: {self._status.leaving[1]}")
            terms = self._status.terms
            problem = messages.first_over(sizes, terms.message) if terms.message else None
            if problem:
                raise BadInput(f"{problem} of the server", remedy="send it in pieces")
            item = Item(message, header, future, now, now + timeout_s, bytes_up=size, on_part=on_part)
            in_the_way = self._requests.admit_request(item, min(self._max_pending, terms.requests), terms.bytes)
            if in_the_way:
                return LinkLost(f"{in_the_way} for {self.address} already")
        self._keeper.wakeup.wake_thread()
        return None

    def _notify_app(self, kind: str, body: Dict[str, Any], buffers: List[memoryview]) -> None:
        if kind == DRAIN:
            self.leave("it is being taken away")
        elif self._on_notify is not None:
            self._on_notify(kind, body, buffers)
