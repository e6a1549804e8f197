"""Split inferences on the server: the other half of a plan, block by block as the robot's rows come in."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Refused
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.server.services.split.models import TracedModel
from edge_offload.server.worker import FairQueue, JobWorker
from edge_offload.split.model.plan import Side
from edge_offload.split.runtime.pieces import decode_piece, encode_piece
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.progress import SplitProgress
from edge_offload.split.runtime.tables import ReadyPlan


@dataclass
class _SplitInference:
    """An inference in flight, and the requests that its results answer."""

    number: int
    progress: SplitProgress
    replies: Dict[int, Request] = field(default_factory=dict)
    busy: bool = False


@dataclass
class ServerSplit:
    """A model that one robot has opened for splitting."""

    traced: TracedModel
    plans: Tuple[ReadyPlan, ...] = ()
    current: Optional[_SplitInference] = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class SplitRunner:
    """Runs the inferences of opened splits.

    Blocks of steps are computed by the device's worker, so that robots share it fairly; coding and decoding have a
    thread of their own each. A robot has one inference under way per opened model: a newer one ends it.

    Args:
        device: worker that owns the device.
        place: where halves are computed, on that device.

    Attributes:
        decoder, encoder: workers that decode what comes and encode what goes.
    """

    def __init__(self, device: JobWorker, place: SplitDevice) -> None:
        self._device, self._place = device, place
        self.decoder = JobWorker("edge-offload-split-decode", FairQueue(4096, 1 << 16))
        self.encoder = JobWorker("edge-offload-split-encode", FairQueue(4096, 1 << 16))

    def start(self) -> None:
        """Start the coding threads."""
        self.decoder.start()
        self.encoder.start()

    def close(self) -> None:
        """Stop them."""
        self.decoder.close()
        self.encoder.close()

    def remove_peer(self, peer: Peer) -> None:
        """Stop decoding and encoding for a peer that has disconnected."""
        for worker in (self.decoder, self.encoder):
            worker.queue.remove_peer(peer)

    def begin_inference(self, request: Request, split: ServerSplit) -> None:
        """``{handle, run, plan}``: begin inference ``run``. The reply carries the last transfer to the robot.

        Raises:
            BadInput: no such plan.
        """
        number, place = request.body.get("run"), request.body.get("plan")
        if type(number) is not int or type(place) is not int or not 0 <= place < len(split.plans):
            raise BadInput("no such plan is in force", remedy="send the table of plans again")
        chosen = split.plans[place]
        sends = chosen.sides[Side.SERVER].sends
        if not sends:
            raise BadInput("this plan needs no server")
        located, shared = split.traced.network.located, split.traced.shared
        inference = _SplitInference(number, SplitProgress(chosen, Side.SERVER, located, shared, place=self._place))
        inference.replies[sends[-1]] = request
        with split.lock:
            earlier, split.current = split.current, inference
        if earlier is not None:
            self._fail_requests(earlier, Refused("a newer inference took this one's place"))
        self._advance_inference(request.peer, split, inference)

    def take_transfer(self, request: Request, split: ServerSplit) -> None:
        """Reply to ``{handle, run, transfer}`` with that transfer, once it is computed."""
        inference = self._find_inference(request, split)
        index = request.body.get("transfer")
        if inference is None:
            raise Refused("this inference is over")
        with split.lock:
            if type(index) is not int or index in inference.replies:
                raise ProtocolError("no such transfer is to be taken")
            if index not in inference.progress.side_plan.sends:
                raise ProtocolError(f"transfer {index} does not go to the robot")
            inference.replies[index] = request
        self._advance_inference(request.peer, split, inference)

    def receive_rows(self, request: Request, split: ServerSplit) -> None:
        """``{handle, run, transfer, low, high, tensors}`` and buffers → ``{}``. Rows of an older run are dropped."""
        inference = self._find_inference(request, split)
        if inference is not None:
            self.decoder.submit_job(request.peer, lambda: self._decode_rows(request, split, inference))
        request.reply({})

    def _find_inference(self, request: Request, split: ServerSplit) -> Optional[_SplitInference]:
        number = request.body.get("run")
        with split.lock:
            current = split.current
        return current if current is not None and current.number == number else None

    def _decode_rows(self, request: Request, split: ServerSplit, inference: _SplitInference) -> None:
        """Decode rows on the decoder's thread."""
        try:
            index, low, tensor = decode_piece(inference.progress, request.body, request.buffers)
            inference.progress.add_rows(index, low, tensor)
        except EdgeOffloadError as error:
            self._fail_inference(split, inference, error)
            return
        self._advance_inference(request.peer, split, inference)

    def _advance_inference(self, peer: Peer, split: ServerSplit, inference: _SplitInference) -> None:
        """Start computing if rows are ready, and send finished transfers; on any thread."""
        with split.lock:
            replies = inference.replies
            awaited = set(inference.progress.side_plan.sends) - set(replies)
            start = inference.progress.can_compute() and not inference.busy and inference is split.current
            inference.busy = inference.busy or start
        try:
            if start:
                self._device.submit_job(peer, lambda: self._compute_blocks(peer, split, inference))
            elif not awaited:
                self._send_ready(peer, split, inference)
        except Refused as error:
            self._fail_inference(split, inference, error)

    def _compute_blocks(self, peer: Peer, split: ServerSplit, inference: _SplitInference) -> None:
        """Compute blocks on the device's thread, until the robot's rows are awaited."""
        try:
            while inference is split.current and inference.progress.can_compute():
                inference.progress.compute_block()
                self._send_ready(peer, split, inference)
        except Exception as error:
            self._fail_inference(split, inference, error)
            return
        with split.lock:
            inference.busy = False
        self._advance_again(peer, split, inference)

    def _advance_again(self, peer: Peer, split: ServerSplit, inference: _SplitInference) -> None:
        """Continue with rows that arrived just as the device stopped."""
        if inference.progress.can_compute():
            self._advance_inference(peer, split, inference)

    def _send_ready(self, peer: Peer, split: ServerSplit, inference: _SplitInference) -> None:
        """Submit finished transfers to the encoder, once the robot has requested all of them."""
        with split.lock:
            if set(inference.progress.side_plan.sends) - set(inference.replies):
                return
            ready_now = inference.progress.take_sendable()
        for index in ready_now:
            self.encoder.submit_job(peer, functools.partial(self._encode_transfer, split, inference, index))

    def _encode_transfer(self, split: ServerSplit, inference: _SplitInference, index: int) -> None:
        """Encode a transfer on the encoder's thread, and answer its request."""
        progress = inference.progress
        transfer = progress.transfer_at(index)
        request = inference.replies[index]
        started = time.monotonic()
        try:
            tensor = progress.read_payload(index, transfer.low, transfer.high)
            descriptors, buffers = encode_piece(tensor, transfer.codec)
            body = {
                "transfer": index,
                "low": transfer.low,
                "high": transfer.high,
                "tensors": descriptors,
                "compute_s": progress.compute_s,
                "spans": progress.spans.to_numbers(),
                "rows_computed": progress.rows_computed,
                "encode_s": time.monotonic() - started,
            }
            if not request.answered:
                request.reply(body, buffers)
        except Exception as error:
            self._fail_inference(split, inference, error)

    def _fail_inference(self, split: ServerSplit, inference: _SplitInference, error: Exception) -> None:
        with split.lock:
            if split.current is inference:
                split.current = None
        self._fail_requests(inference, error)

    @staticmethod
    def _fail_requests(inference: _SplitInference, error: Exception) -> None:
        for request in list(inference.replies.values()):
            try:
                if not request.answered:
                    request.fail(error)
            except BadInput:
                continue  # another thread answered just now
