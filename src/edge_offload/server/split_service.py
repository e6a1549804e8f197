"""Mode ``split`` on the server: the other half of a plan, block by block on the device as the robot's rows come in."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.capture.blobs import BlobStore
from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Refused, RemoteError
from edge_offload.execute.tensors import MAX_TENSORS, TensorSpec, check_descriptors, unpack
from edge_offload.link.peers import Peer, Request
from edge_offload.server import captured
from edge_offload.server.fair_queue import FairQueue
from edge_offload.server.kept_splits import KeptSplits
from edge_offload.server.replicas import ReplicaPool
from edge_offload.server.split_models import Learnt, SplitModels
from edge_offload.server.worker import Worker
from edge_offload.split.networks import Network
from edge_offload.split.plan import Plan, Side
from edge_offload.split.profile import Profile
from edge_offload.split.runtime.pieces import decode_piece, encode_piece
from edge_offload.split.runtime.progress import Progress
from edge_offload.split.runtime.tables import MAX_PLANS, ReadyPlan, ready

MAX_OPEN = 4
"""Splits that one robot may have open (a shape each)."""
MAX_INPUT_BYTES = 256 << 20
MAX_TABLE_BYTES = 32 << 20

_log = logging.getLogger(__name__)


@dataclass
class _Inference:
    """One inference under way, and the requests that its results answer."""

    number: int
    progress: Progress
    replies: Dict[int, Request] = field(default_factory=dict)
    busy: bool = False


@dataclass
class _Session:
    """A model that one robot has opened for splitting."""

    learnt: Learnt
    network: Network
    profile: Profile
    shared: Mapping[int, torch.Tensor]
    plans: Tuple[ReadyPlan, ...] = ()
    current: Optional[_Inference] = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class SplitService:
    """Answers ``split_open``, ``split_table``, ``split_begin``, ``split_rows``, ``split_take``, ``split_echo`` and
    ``split_close``; and for inferences that a robot recorded, ``split_have`` and ``split_put`` of their constants.

    Its methods run on the link's thread and return at once. Blocks of steps are computed by the device's worker, so
    that robots share it fairly; coding and decoding have a thread of their own each. A robot has one inference under
    way per opened model: a newer one ends it.

    Args:
        pool: builds the models.
        device: worker that owns the device, a CPU.
        loader: worker that builds and traces models meanwhile.
        blobs: where constants of recorded inferences are kept; what was learned of models is kept beside them.
    """

    def __init__(self, pool: ReplicaPool, device: Worker, loader: Worker, blobs: Optional[BlobStore] = None) -> None:
        self._pool = pool
        self._device = device
        self._loader = loader
        self._decoder = Worker("edge-offload-split-decode", FairQueue(4096, 1 << 16))
        self._encoder = Worker("edge-offload-split-encode", FairQueue(4096, 1 << 16))
        self._sessions: Dict[Peer, Dict[int, _Session]] = {}
        blobs = blobs if blobs is not None else BlobStore()
        self._models = SplitModels(pool, KeptSplits(blobs.directory / "splits"))
        self._constants = captured.Constants(blobs)
        self._handles = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def handlers(self) -> Dict[str, Callable[[Request], None]]:
        """What it answers, by the request's kind."""
        return {
            "split_open": self.open,
            "split_table": self.table,
            "split_begin": self.begin,
            "split_rows": self.rows,
            "split_take": self.take,
            "split_close": self.close_session,
            "split_echo": self.echo,
            "split_have": lambda request: self._with_constants(request, self._constants.missing),
            "split_put": lambda request: self._with_constants(request, self._constants.put),
        }

    def start(self) -> None:
        """Start the coding threads."""
        self._decoder.start()
        self._encoder.start()

    def close(self) -> None:
        """Stop them."""
        self._decoder.close()
        self._encoder.close()

    def forget(self, peer: Peer) -> None:
        """The peer has gone: what it had open ends."""
        for worker in (self._decoder, self._encoder):
            worker.queue.drop(peer)
        with self._lock:
            sessions = self._sessions.pop(peer, {})
        for session in sessions.values():
            self._models.release(session.learnt)

    def open(self, request: Request) -> None:
        """``{name, options, state_hash, inputs}`` and sample inputs → ``{handle, sequence}`` and the server's profile.

        ``sequence``: the hash of the robot's own trace, once it has one; what the server kept of it will do then.
        Of a recorded inference ``{constants, inputs}``, the sequence (:mod:`edge_offload.sequence.wire`) and samples.

        Raises:
            ProtocolError, Refused: malformed, or too much is open.
        """
        inputs = request.body.get("inputs")
        if not isinstance(inputs, list) or not 0 < len(inputs) <= MAX_TENSORS:
            raise ProtocolError(f"inputs are a list of 1 to {MAX_TENSORS} tensors")
        own = int("constants" in request.body)  # the first buffer is the sequence
        specs = tuple(check_descriptors(inputs, len(request.buffers) - own, max_bytes=MAX_INPUT_BYTES))
        if self._pool.device.type != "cpu":
            raise Refused(f"this server computes on {self._pool.device}; a split runs on its CPU alone so far",
                          remedy="start a server with --device cpu, or use mode server or replay")  # fmt: skip
        with self._lock:
            if len(self._sessions.get(request.peer, ())) >= MAX_OPEN:
                raise Refused(f"full: this robot has {MAX_OPEN} splits open", remedy="close one")
        self._loader.submit(request.peer, lambda: self._guarded(request, lambda: self._load(request, specs)))

    def table(self, request: Request) -> None:
        """``{handle}`` and a JSON list of plans as the one buffer → ``{plans}``: how many are in force now."""
        session = self._find(request)
        if len(request.buffers) != 1 or request.buffers[0].nbytes > MAX_TABLE_BYTES:
            raise ProtocolError(f"a table of plans is one buffer of at most {MAX_TABLE_BYTES} bytes")
        self._loader.submit(request.peer, lambda: self._guarded(request, lambda: self._take_table(request, session)))

    def begin(self, request: Request) -> None:
        """``{handle, run, plan}``: begin inference ``run``. The reply carries the last transfer to the robot.

        Raises:
            BadInput, ProtocolError: no such session or plan.
        """
        session = self._find(request)
        number, place = request.body.get("run"), request.body.get("plan")
        if type(number) is not int or type(place) is not int or not 0 <= place < len(session.plans):
            raise BadInput("no such plan is in force", remedy="send the table of plans again")
        chosen = session.plans[place]
        sends = chosen.sides[Side.SERVER].sends
        if not sends:
            raise BadInput("this plan needs no server")
        inference = _Inference(number, Progress(chosen, Side.SERVER, session.network.located, session.shared))
        inference.replies[sends[-1]] = request
        with session.lock:
            earlier, session.current = session.current, inference
        if earlier is not None:
            self._end(earlier, Refused("a newer inference took this one's place"))
        self._advance(request.peer, session, inference)

    def take(self, request: Request) -> None:
        """``{handle, run, transfer}``: the reply carries that transfer."""
        session = self._find(request)
        inference = self._inference(request, session)
        index = request.body.get("transfer")
        if inference is None:
            raise Refused("this inference is over")
        with session.lock:
            if type(index) is not int or index in inference.replies:
                raise ProtocolError("no such transfer is to be taken")
            if index not in inference.progress.mine.sends:
                raise ProtocolError(f"transfer {index} does not go to the robot")
            inference.replies[index] = request
        self._advance(request.peer, session, inference)

    def rows(self, request: Request) -> None:
        """``{handle, run, transfer, low, high, tensors}`` and buffers → ``{}``. Rows of an older run are dropped."""
        session = self._find(request)
        inference = self._inference(request, session)
        if inference is not None:
            self._decoder.submit(request.peer, lambda: self._decode(request, session, inference))
        request.reply({})

    def echo(self, request: Request) -> None:
        """``{}`` → ``{}``, by way of every thread that rows go through: a robot learns what a request costs here."""

        def passed(worker: Worker, job: Callable[[], None]) -> None:
            worker.submit(request.peer, lambda: self._guarded(request, job))

        passed(self._decoder, lambda: passed(self._device, lambda: passed(self._encoder, lambda: request.reply({}))))

    def close_session(self, request: Request) -> None:
        """``{handle}`` → ``{}``."""
        session = self._find(request)
        with self._lock:
            del self._sessions[request.peer][request.body["handle"]]
        self._models.release(session.learnt)
        request.reply({})

    # -- opening

    def _load(self, request: Request, specs: Sequence[TensorSpec]) -> None:
        """On the loader's thread: build and trace; then profile on the device's."""
        body = request.body
        if "constants" in body:
            learnt = self._recorded(request, specs)
        else:
            examples = unpack(body.get("inputs"), request.buffers, specs, MAX_INPUT_BYTES)
            known = body.get("sequence")
            learnt = self._models.trace(
                body.get("name"), body.get("options", {}), body.get("state_hash"), examples, known
            )
        if learnt.profile is not None:
            self._opened(request, learnt)
            return
        try:
            self._device.submit(request.peer, lambda: self._guarded(request, lambda: self._profile(request, learnt)))
        except BaseException:
            self._models.release(learnt)
            raise

    def _recorded(self, request: Request, specs: Sequence[TensorSpec]) -> Learnt:
        """On the loader's thread: an inference that came as a sequence, within what one robot may hold."""
        sequence = captured.read(bytes(request.buffers[0]), specs)
        with self._lock:
            opened = list(self._sessions.get(request.peer, {}).values())
        held = sum(captured.constant_bytes(item.network.program.sequence) for item in opened
                   if item.learnt.replica is None)  # fmt: skip
        if held + captured.constant_bytes(sequence) > captured.MAX_CONSTANT_BYTES:
            raise Refused(f"the splits of this robot hold {held >> 20} MiB of constants already", remedy="close one")
        program = self._constants.program(sequence, request.body["constants"])
        examples = unpack(request.body.get("inputs"), request.buffers[1:], specs, MAX_INPUT_BYTES)
        return self._models.recorded(program, examples)

    def _with_constants(self, request: Request, work: Callable[[Request], Dict[str, Any]]) -> None:
        """On the loader's thread: it reads and writes files."""

        def answer() -> None:
            request.reply(work(request))

        self._loader.submit(request.peer, lambda: self._guarded(request, answer))

    def _profile(self, request: Request, learnt: Learnt) -> None:
        """On the device's thread."""
        self._models.profile(learnt)
        self._opened(request, learnt)

    def _opened(self, request: Request, learnt: Learnt) -> None:
        assert learnt.profile is not None
        handle = next(self._handles)
        with self._lock:
            gone = request.peer.gone
            if not gone:
                session = _Session(learnt, learnt.network, learnt.profile, learnt.shared)
                self._sessions.setdefault(request.peer, {})[handle] = session
        if gone:
            self._models.release(learnt)
            return
        record = json.dumps(learnt.profile.to_record()).encode()
        body = {"handle": handle, "sequence": learnt.profile.sequence}
        request.reply(body, [record])

    def _take_table(self, request: Request, session: _Session) -> None:
        """On the loader's thread: every plan is checked before it may run."""
        try:
            texts = json.loads(bytes(request.buffers[0]).decode())
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not a table of plans: {error}") from error
        if not isinstance(texts, list) or not 0 < len(texts) <= MAX_PLANS:
            raise ProtocolError(f"a table holds 1 to {MAX_PLANS} plans")
        if not all(isinstance(text, str) for text in texts):
            raise ProtocolError("a plan is a string of JSON")
        located, identity = session.network.located, session.profile.sequence
        session.plans = tuple(ready(Plan.from_json(text), located, identity) for text in texts)
        request.reply({"plans": len(session.plans)})

    # -- one inference

    def _find(self, request: Request) -> _Session:
        handle = request.body.get("handle")
        with self._lock:
            found = self._sessions.get(request.peer, {}).get(handle) if type(handle) is int else None
        if found is None:
            raise BadInput(f"no split is open under handle {str(handle)[:32]}", remedy="open it (again)")
        return found

    def _inference(self, request: Request, session: _Session) -> Optional[_Inference]:
        number = request.body.get("run")
        with session.lock:
            current = session.current
        return current if current is not None and current.number == number else None

    def _decode(self, request: Request, session: _Session, inference: _Inference) -> None:
        """On the decoder's thread."""
        try:
            index, low, tensor = decode_piece(inference.progress, request.body, request.buffers)
            inference.progress.arrive(index, low, tensor)
        except EdgeOffloadError as error:
            self._fail(session, inference, error)
            return
        self._advance(request.peer, session, inference)

    def _advance(self, peer: Peer, session: _Session, inference: _Inference) -> None:
        """Let the device compute what can be computed, and send what can be sent; any thread."""
        with session.lock:
            replies = inference.replies
            awaited = set(inference.progress.mine.sends) - set(replies)
            start = inference.progress.computable() and not inference.busy and inference is session.current
            inference.busy = inference.busy or start
        try:
            if start:
                self._device.submit(peer, lambda: self._compute(peer, session, inference))
            elif not awaited:
                self._send(peer, session, inference)
        except Refused as error:
            self._fail(session, inference, error)

    def _compute(self, peer: Peer, session: _Session, inference: _Inference) -> None:
        """On the device's thread: blocks, until the robot's rows are awaited."""
        try:
            while inference is session.current and inference.progress.computable():
                inference.progress.compute()
                self._send(peer, session, inference)
        except Exception as error:
            known = isinstance(error, EdgeOffloadError)
            self._fail(session, inference, error if known else RemoteError(f"{type(error).__name__}: {error}"))
            return
        with session.lock:
            inference.busy = False
        self._advance_again(peer, session, inference)

    def _advance_again(self, peer: Peer, session: _Session, inference: _Inference) -> None:
        """Rows that came just as the device let go are not forgotten."""
        if inference.progress.computable():
            self._advance(peer, session, inference)

    def _send(self, peer: Peer, session: _Session, inference: _Inference) -> None:
        """Hand what can leave to the encoder, once the robot has asked for everything that it will take."""
        with session.lock:
            if set(inference.progress.mine.sends) - set(inference.replies):
                return
            ready_now = inference.progress.sendable()
        for index in ready_now:
            self._encoder.submit(peer, functools.partial(self._encode, session, inference, index))

    def _encode(self, session: _Session, inference: _Inference, index: int) -> None:
        """On the encoder's thread: answer the request that takes this transfer."""
        progress = inference.progress
        transfer = progress.transfer(index)
        request = inference.replies[index]
        began = time.monotonic()
        try:
            tensor = progress.payload(index, transfer.low, transfer.high)
            descriptors, buffers = encode_piece(tensor, transfer.codec)
            body = {
                "transfer": index,
                "low": transfer.low,
                "high": transfer.high,
                "tensors": descriptors,
                "compute_s": progress.compute_s,
                "rows_computed": progress.rows_computed,
                "encode_s": time.monotonic() - began,
            }
            if not request.answered:
                request.reply(body, buffers)
        except Exception as error:
            known = isinstance(error, EdgeOffloadError)
            self._fail(session, inference, error if known else RemoteError(f"{type(error).__name__}: {error}"))

    def _fail(self, session: _Session, inference: _Inference, error: Exception) -> None:
        with session.lock:
            if session.current is inference:
                session.current = None
        self._end(inference, error)

    @staticmethod
    def _end(inference: _Inference, error: Exception) -> None:
        for request in list(inference.replies.values()):
            try:
                if not request.answered:
                    request.fail(error)
            except BadInput:
                continue  # another thread answered just now

    def _guarded(self, request: Request, work: Callable[[], None]) -> None:
        """Run ``work``; whatever it raises is the answer to ``request``."""
        try:
            work()
        except EdgeOffloadError as error:
            self._refuse(request, error)
        except (Exception, SystemExit) as error:
            _log.exception("%s of %s failed", request.kind, request.peer.name)
            self._refuse(request, RemoteError(f"{type(error).__name__}: {error}"))

    @staticmethod
    def _refuse(request: Request, error: EdgeOffloadError) -> None:
        if not request.answered:
            request.fail(error)
