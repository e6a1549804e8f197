"""Mode ``split`` on the server: models are opened, profiled and given plans; :mod:`.runs` runs their inferences."""

from __future__ import annotations

import json
from typing import Callable, Dict, Sequence

from edge_offload import background
from edge_offload.errors import ProtocolError, Refused
from edge_offload.execute.tensors import MAX_TENSORS, TensorSpec, check_descriptors, unpack_tensors
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.server import blobs
from edge_offload.server.blobs import BlobStore
from edge_offload.server.services.base import OpenHandles, Service
from edge_offload.server.services.replica.replicas import ReplicaStore
from edge_offload.server.services.split import recorded
from edge_offload.server.services.split.models import SplitModelStore, TracedModel
from edge_offload.server.services.split.runs import ServerSplit, SplitRunner
from edge_offload.server.services.split.trace_cache import TraceCache
from edge_offload.server.status import StatusBook
from edge_offload.server.worker import FairQueue, JobWorker
from edge_offload.split.model.plan import SplitPlan
from edge_offload.split.runtime.places import place_of
from edge_offload.split.runtime.tables import MAX_PLANS, compile_ready

MAX_OPEN = 4
"""Splits that one robot may have open (a shape each)."""
MAX_INPUT_BYTES = 256 << 20


class SplitService(Service):
    """Mode ``split``: models and recorded inferences.

    Answers ``split_open``, ``split_table``, ``split_begin``, ``split_rows``, ``split_take``, ``split_echo`` and
    ``split_close``; and for inferences that a robot recorded, ``split_have`` and ``split_put`` of their constants.

    Its methods run on the link's thread and return at once.

    Args:
        pool: builds the models.
        device: worker that owns the device.
        loader: worker that builds models meanwhile; tracing them takes longer, in a worker of its own.
        book: counts.
        store: where constants of recorded inferences are kept; what was learned of models is kept beside them.
    """

    def __init__(
        self, pool: ReplicaStore, device: JobWorker, loader: JobWorker, book: StatusBook, store: BlobStore
    ) -> None:
        super().__init__(book)
        self._pool = pool
        self._device = device
        self._loader = loader
        self._learner = JobWorker("edge-offload-learner", FairQueue(MAX_OPEN))
        self._store = store
        place = place_of(pool.device)
        self._runs = SplitRunner(device, place)
        self._models = SplitModelStore(pool, TraceCache(store.directory / "splits"), place)
        release = lambda split: self._models.release_model(split.traced)  # noqa: E731
        self._open: OpenHandles[ServerSplit] = OpenHandles("split", release)

    @property
    def handlers(self) -> Dict[str, Callable[[Request], None]]:
        """Handlers by the request's kind."""
        return {
            "split_open": self.open_split,
            "split_table": self.set_table,
            "split_begin": lambda request: self._runs.begin_inference(request, self._open.find_item(request)),
            "split_rows": lambda request: self._runs.receive_rows(request, self._open.find_item(request)),
            "split_take": lambda request: self._runs.take_transfer(request, self._open.find_item(request)),
            "split_close": self._open.close_handle,
            "split_echo": self.echo_workers,
            "split_have": self.find_missing,
            "split_put": self.put_blob,
        }

    def start(self) -> None:
        """Start its threads."""
        self._runs.start()
        self._learner.start()

    def close(self) -> None:
        """Stop its threads and the current learning."""
        self._models.close()
        self._learner.close()
        self._runs.close()

    def remove_peer(self, peer: Peer) -> None:
        """Close all splits of a peer that has disconnected."""
        self._runs.remove_peer(peer)
        self._open.remove_peer(peer)

    def open_split(self, request: Request) -> None:
        """``{name, options, state_hash, inputs}`` and sample inputs → ``{handle, sequence}`` and the server's profile.

        ``sequence``: the hash of the robot's own trace, once it has one; what the server kept of it will do then.
        Of a recorded inference ``{constants, inputs}``, the sequence (:mod:`edge_offload.ir.wire`) and samples.

        Raises:
            ProtocolError, Refused: malformed, or too much is open.
        """
        inputs = request.body.get("inputs")
        if not isinstance(inputs, list) or not 0 < len(inputs) <= MAX_TENSORS:
            raise ProtocolError(f"inputs are a list of 1 to {MAX_TENSORS} tensors")
        sequence_buffers = int("constants" in request.body)  # the first buffer is the sequence
        specs = tuple(check_descriptors(inputs, len(request.buffers) - sequence_buffers, max_bytes=MAX_INPUT_BYTES))
        if len(self._open.items_of_connection(request.peer)) >= MAX_OPEN:
            raise Refused(f"full: this robot has {MAX_OPEN} splits open", remedy="close one")
        self.submit_work(self._learner, request, lambda: self._load_model(request, specs))

    def set_table(self, request: Request) -> None:
        """Answer ``{handle}`` and a JSON list of plans with ``{plans}``: the number of plans in force."""
        split = self._open.find_item(request)
        most = 32 << 20
        if len(request.buffers) != 1 or request.buffers[0].nbytes > most:
            raise ProtocolError(f"a table of plans is one buffer of at most {most} bytes")
        self.submit_work(self._loader, request, lambda: self._check_table(request, split))

    def find_missing(self, request: Request) -> None:
        """Answer ``{names}`` with ``{missing}``: positions of the blobs of constants that are not here."""
        find = lambda: request.reply({"missing": blobs.find_blobs(self._store, request)[0]})  # noqa: E731
        self.submit_work(self._loader, request, find)

    def put_blob(self, request: Request) -> None:
        """Store the blob of ``{name}``; the answer is ``{}``."""

        def store_blob() -> None:
            blobs.store_blob(self._store, request)
            request.reply({})

        self.submit_work(self._loader, request, store_blob)

    def echo_workers(self, request: Request) -> None:
        """Answer ``{}`` by way of every thread that rows pass: a robot measures the cost of a request."""
        decoder, device, encoder = self._runs.decoder, self._device, self._runs.encoder
        answer = lambda: self.submit_work(encoder, request, lambda: request.reply({}))  # noqa: E731
        self.submit_work(decoder, request, lambda: self.submit_work(device, request, answer))

    # -- opening

    def _load_model(self, request: Request, specs: Sequence[TensorSpec]) -> None:
        """Build, trace and profile on the learner's thread; frames elsewhere go first."""
        with background.yielding():
            self._trace_model(request, specs)

    def _trace_model(self, request: Request, specs: Sequence[TensorSpec]) -> None:
        body = request.body
        if "constants" in body:
            traced = self._read_recorded(request, specs)
        else:
            examples = unpack_tensors(body.get("inputs"), request.buffers, specs, MAX_INPUT_BYTES)
            robot_hash = body.get("sequence")
            traced = self._models.trace_model(
                body.get("name"), body.get("options", {}), body.get("state_hash"), examples, robot_hash
            )
        if traced.profile is not None:
            self._answer_opened(request, traced)
            return
        try:
            self.submit_work(self._device, request, lambda: self._profile_model(request, traced))
        except BaseException:
            self._models.release_model(traced)
            raise

    def _read_recorded(self, request: Request, specs: Sequence[TensorSpec]) -> TracedModel:
        """Read a received sequence on the learner's thread, within the limits of one robot."""
        sequence = recorded.read_sequence(bytes(request.buffers[0]), specs)
        opened = [split.traced for split in self._open.items_of_connection(request.peer)]
        opened_sequences = [item.network.program.sequence for item in opened if item.replica is None]
        used = sum(map(recorded.count_constant_bytes, opened_sequences))
        if used + recorded.count_constant_bytes(sequence) > recorded.MAX_CONSTANT_BYTES:
            raise Refused(f"the splits of this robot hold {used >> 20} MiB of constants already", remedy="close one")
        program = recorded.add_constants(sequence, request.body["constants"], self._store)
        examples = unpack_tensors(request.body.get("inputs"), request.buffers[1:], specs, MAX_INPUT_BYTES)
        return self._models.add_recorded(program, examples)

    def _profile_model(self, request: Request, traced: TracedModel) -> None:
        """Profile on the device's thread, if necessary; frames that arrive meanwhile go first."""
        self._models.profile_model(traced, self._device.give_way)
        self._answer_opened(request, traced)

    def _answer_opened(self, request: Request, traced: TracedModel) -> None:
        assert traced.profile is not None
        handle = self._open.add_item(request, ServerSplit(traced))
        if handle:
            record = json.dumps(traced.profile.to_record()).encode()
            request.reply({"handle": handle, "sequence": traced.profile.sequence}, [record])

    def _check_table(self, request: Request, split: ServerSplit) -> None:
        """Check every plan on the loader's thread before it may run."""
        try:
            texts = json.loads(bytes(request.buffers[0]).decode())
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not a table of plans: {error}") from error
        if not isinstance(texts, list) or not 0 < len(texts) <= MAX_PLANS:
            raise ProtocolError(f"a table holds 1 to {MAX_PLANS} plans")
        if not all(isinstance(text, str) for text in texts):
            raise ProtocolError("a plan is a string of JSON")
        located, profile = split.traced.network.located, split.traced.profile
        assert profile is not None
        with background.yielding(), background.sliced():
            split.plans = tuple(compile_ready(SplitPlan.from_json(text), located, profile.sequence) for text in texts)
        request.reply({"plans": len(split.plans)})
