"""Mode ``split`` on the server: models are opened, profiled and given plans; what runs is in :mod:`.split_runs`."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any, Callable, Dict, Optional, Sequence

from edge_offload.errors import BadInput, ProtocolError, Refused
from edge_offload.execute.tensors import MAX_TENSORS, TensorSpec, check_descriptors, unpack
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.protocol.blobs import BlobStore
from edge_offload.server.services.replica.replicas import ReplicaPool
from edge_offload.server.services.split import recorded as captured
from edge_offload.server.services.split.kept import KeptSplits
from edge_offload.server.services.split.models import Learnt, SplitModels
from edge_offload.server.services.split.runs import Session, SplitRuns, guarded
from edge_offload.server.worker import Worker
from edge_offload.split.model.plan import Plan
from edge_offload.split.runtime.tables import MAX_PLANS, ready

MAX_OPEN = 4
"""Splits that one robot may have open (a shape each)."""
MAX_INPUT_BYTES = 256 << 20
MAX_TABLE_BYTES = 32 << 20


class SplitService:
    """Answers ``split_open``, ``split_table``, ``split_begin``, ``split_rows``, ``split_take``, ``split_echo`` and
    ``split_close``; and for inferences that a robot recorded, ``split_have`` and ``split_put`` of their constants.

    Its methods run on the link's thread and return at once.

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
        self._runs = SplitRuns(device)
        self._sessions: Dict[Peer, Dict[int, Session]] = {}
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
            "split_begin": lambda request: self._runs.begin(request, self._find(request)),
            "split_rows": lambda request: self._runs.rows(request, self._find(request)),
            "split_take": lambda request: self._runs.take(request, self._find(request)),
            "split_close": self.close_session,
            "split_echo": self._runs.echo,
            "split_have": lambda request: self._with_constants(request, self._constants.missing),
            "split_put": lambda request: self._with_constants(request, self._constants.put),
        }

    def start(self) -> None:
        """Start the coding threads."""
        self._runs.start()

    def close(self) -> None:
        """Stop them."""
        self._runs.close()

    def forget(self, peer: Peer) -> None:
        """The peer has gone: what it had open ends."""
        self._runs.drop(peer)
        with self._lock:
            sessions = self._sessions.pop(peer, {})
        for session in sessions.values():
            self._models.release(session.learnt)

    def open(self, request: Request) -> None:
        """``{name, options, state_hash, inputs}`` and sample inputs → ``{handle, sequence}`` and the server's profile.

        ``sequence``: the hash of the robot's own trace, once it has one; what the server kept of it will do then.
        Of a recorded inference ``{constants, inputs}``, the sequence (:mod:`edge_offload.ir.wire`) and samples.

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
        self._loader.submit(request.peer, lambda: guarded(request, lambda: self._load(request, specs)))

    def table(self, request: Request) -> None:
        """``{handle}`` and a JSON list of plans as the one buffer → ``{plans}``: how many are in force now."""
        session = self._find(request)
        if len(request.buffers) != 1 or request.buffers[0].nbytes > MAX_TABLE_BYTES:
            raise ProtocolError(f"a table of plans is one buffer of at most {MAX_TABLE_BYTES} bytes")
        self._loader.submit(request.peer, lambda: guarded(request, lambda: self._take_table(request, session)))

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
            self._device.submit(request.peer, lambda: guarded(request, lambda: self._profile(request, learnt)))
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

        self._loader.submit(request.peer, lambda: guarded(request, answer))

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
                session = Session(learnt, learnt.network, learnt.profile, learnt.shared)
                self._sessions.setdefault(request.peer, {})[handle] = session
        if gone:
            self._models.release(learnt)
            return
        record = json.dumps(learnt.profile.to_record()).encode()
        body = {"handle": handle, "sequence": learnt.profile.sequence}
        request.reply(body, [record])

    def _take_table(self, request: Request, session: Session) -> None:
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

    def _find(self, request: Request) -> Session:
        handle = request.body.get("handle")
        with self._lock:
            found = self._sessions.get(request.peer, {}).get(handle) if type(handle) is int else None
        if found is None:
            raise BadInput(f"no split is open under handle {str(handle)[:32]}", remedy="open it (again)")
        return found
