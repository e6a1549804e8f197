"""Temporal prediction: code a tensor as its difference to the last one of the same input that the peer has for sure.

One :class:`SendStream` and one :class:`ReceiveStream` per input (a camera, a LiDAR). The sender refers only to arrays
that the receiver has acknowledged to this very sender, so lost, late and reordered messages cost ratio, never results:

    encoded = sender.encode(frame)                                # robot; travels like any other payload
    frame = receiver.decode(encoded.descriptor, encoded.buffers)  # server
    sender.acknowledge(receiver.acknowledgement(descriptor))      # with the reply, whenever that arrives

A receiver that lost the reference (it restarted, or its ring went round) raises :class:`ReferenceMissing`; the sender
is told (:meth:`SendStream.reference_missing`) and sends the tensor again without one.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError
from edge_offload.link.codecs.choice import AUTO
from edge_offload.link.codecs.payload import (
    DEFAULT_MAX_BYTES,
    Encoded,
    Header,
    check_array,
    check_buffers,
    check_descriptor,
    take_int,
)
from edge_offload.link.codecs.table import codec_named, decode, encode_as
from edge_offload_research.temporal import fingerprint
from edge_offload_research.temporal.choice import TemporalSelector
from edge_offload_research.temporal.difference import TEMPORAL, decode_difference, encode_difference

DEFAULT_RING = 8
_HASH_LIMIT = (1 << 64) - 1
_SEQ_LIMIT = (1 << 63) - 1

Acknowledgement = Dict[str, int]


class ReferenceMissing(EdgeOffloadError):
    """The receiver does not hold the array that a temporal payload refers to.

    Attributes:
        session, seq: which payload could not be decoded.
    """

    def __init__(self, session: int, seq: int, reference: int) -> None:
        super().__init__(
            f"reference {reference} of stream {session:#x} is not here",
            remedy=f"send payload {seq} again without a reference",
        )
        self.session = session
        self.seq = seq


class SendStream:
    """The sender's half for one input.

    Args:
        ring: how many arrays, besides the reference in use, wait for their acknowledgement.
        max_bytes: most memory for all of them; the oldest go first.
        session: nonce of this sender's lifetime; drawn at random unless given.
        selector: measurements for ``auto``; a new one unless given, so that inputs do not mix.

    Safe to call from several threads.
    """

    def __init__(
        self,
        ring: int = DEFAULT_RING,
        max_bytes: int = DEFAULT_MAX_BYTES,
        session: Optional[int] = None,
        selector: Optional[TemporalSelector] = None,
    ) -> None:
        _check_ring(ring, max_bytes)
        self.session = secrets.randbits(63) if session is None else session
        self.selector = selector or TemporalSelector()
        self._ring = ring
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sent: Dict[int, Tuple[Array, int]] = {}  # number -> (array, fingerprint), oldest first
        self._next = 0
        self._base: Optional[int] = None  # number of the newest acknowledged array
        self._peer_ring = ring

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays kept."""
        with self._lock:
            return sum(stored.nbytes for stored, _ in self._sent.values())

    def reset(self) -> None:
        """Forget every reference and start a new session: the peer restarted, or the link was opened anew."""
        with self._lock:
            self.session = secrets.randbits(63)
            self._drop_references()

    def _drop_references(self) -> None:
        self._sent.clear()
        self._base = None

    def select(self, array: Array, link_bytes_per_s: Optional[float] = None) -> str:
        """Name of the codec that ``auto`` would take for ``array`` now."""
        array = check_array(array)
        with self._lock:
            match = self._reference_for(array)
        with self.selector.against(match[1] if match else None):
            return self.selector.select(array, link_bytes_per_s)

    def _reference_for(self, array: Array) -> Optional[Tuple[int, Array, int]]:
        if self._base is None or self._next - self._base > self._peer_ring or self._base not in self._sent:
            return None
        stored, digest = self._sent[self._base]
        if stored.shape != array.shape or stored.dtype != array.dtype:
            return None
        return self._base, stored, digest

    def encode(
        self, array: Array, codec: str = AUTO, link_bytes_per_s: Optional[float] = None, **options: Any
    ) -> Encoded:
        """Encode the next array of this input.

        Args:
            array: of the dtype and shape that the input has.
            codec: ``auto``; a codec of :data:`~.difference.TEMPORAL` (``auto`` while there is no reference); or any
                other one. Arrays sent by lossless codecs become references, whichever codec it was.
            link_bytes_per_s: goodput of the link, for ``auto``; None: not known.
            **options: of the codec.

        Raises:
            BadInput: as :func:`edge_offload.link.codecs.encode`.
        """
        array = check_array(array)
        with self._lock:
            seq, session = self._next, self.session
            match = self._reference_for(array)
            self._next += 1
        stream = {"session": session, "seq": seq}
        reference = match[1] if match else None
        if codec in TEMPORAL and reference is not None:
            encoded = encode_difference(array, reference, codec)
        elif codec in TEMPORAL or codec == AUTO:
            with self.selector.against(reference):
                encoded = self.selector.encode(array, link_bytes_per_s)
        else:
            encoded = encode_as(codec, array, options)
        used = encoded.descriptor["codec"]
        if match and used in TEMPORAL:
            stream.update(ref=match[0], ref_hash=match[2])
        if used in TEMPORAL or codec_named(used)[0].lossless:
            # a camera driver may reuse its buffer for the next frame: the reference has to be our own copy
            stored = array.copy()
            stream["hash"] = fingerprint.fingerprint_array(stored)
            with self._lock:
                if session == self.session:
                    self._store_array(seq, stored, stream["hash"])
        return Encoded({**encoded.descriptor, "stream": stream}, encoded.buffers)

    def _store_array(self, seq: int, array: Array, digest: int) -> None:
        if self._base is not None and self._next - self._base > self._peer_ring:
            self._sent.pop(self._base, None)  # the peer has dropped it by now
            self._base = None
        self._sent[seq] = (array, digest)
        total = sum(stored.nbytes for stored, _ in self._sent.values())
        for old in [number for number in self._sent if number != self._base]:
            if len(self._sent) <= self._ring + 1 and total <= self._max_bytes:
                break
            total -= self._sent.pop(old)[0].nbytes

    def acknowledge(self, acknowledgement: Optional[Mapping[str, Any]]) -> bool:
        """Take the peer's word that it decoded and keeps a payload. Late, repeated and foreign ones do no harm.

        Returns:
            Whether the payload is the reference from now on.

        Raises:
            ProtocolError: not an acknowledgement.
        """
        if acknowledgement is None:
            return False
        if not isinstance(acknowledgement, Mapping):
            raise ProtocolError("an acknowledgement is a map")
        session = take_int(acknowledgement, "session", 0, _SEQ_LIMIT)
        seq = take_int(acknowledgement, "seq", 0, _SEQ_LIMIT)
        ring = take_int(acknowledgement, "ring", 0, 1 << 20)
        with self._lock:
            newest = -1 if self._base is None else self._base
            if session != self.session or seq not in self._sent or seq <= newest:
                return False
            self._peer_ring = ring
            self._base = seq
            for old in [number for number in self._sent if number < seq]:
                del self._sent[old]
            return True

    def reference_missing(self, session: int) -> None:
        """The peer raised :class:`ReferenceMissing` for a payload of ``session``: refer to nothing sent so far."""
        with self._lock:
            if session == self.session:
                self._drop_references()


def _check_ring(ring: int, max_bytes: int) -> None:
    if ring < 1 or max_bytes < 0:
        raise BadInput("a stream keeps at least one reference", remedy="ring >= 1, max_bytes >= 0")


class ReceiveStream:
    """The receiver's half for one input: a bounded ring of decoded arrays.

    Args:
        ring: how many arrays are kept.
        max_bytes: most memory for them, and for one decoded array.
    """

    def __init__(self, ring: int = DEFAULT_RING, max_bytes: int = DEFAULT_MAX_BYTES):
        _check_ring(ring, max_bytes)
        self._ring = ring
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._stored: OrderedDict[Tuple[int, int], Tuple[Array, int]] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays kept."""
        with self._lock:
            return sum(stored.nbytes for stored, _ in self._stored.values())

    def decode(self, descriptor: Mapping[str, Any], buffers: Sequence[Any]) -> Array:
        """Decode a payload of :meth:`SendStream.encode`.

        Returns:
            Read-only array, bit-equal to the sender's. It is kept as a possible reference.

        Raises:
            ReferenceMissing: the payload refers to an array that is not here; tell the sender.
            ProtocolError: anything that a sender of this version would not have sent.
        """
        header = check_descriptor(descriptor, self._max_bytes)
        stream = descriptor.get("stream")
        if not isinstance(stream, Mapping) or not {"session", "seq"} <= set(stream) <= _STREAM_KEYS:
            raise ProtocolError("payload of a stream without its session and number")
        session, seq = take_int(stream, "session", 0, _SEQ_LIMIT), take_int(stream, "seq", 0, _SEQ_LIMIT)
        if header.codec in TEMPORAL:
            array = self._decode_temporal(header, stream, session, seq, check_buffers(buffers))
        else:
            array = decode(descriptor, buffers, self._max_bytes)
        if "hash" in stream:
            digest = take_int(stream, "hash", 0, _HASH_LIMIT)
            if not array.flags.owndata:
                array = array.copy()  # not a view of a message that the transport may reuse
            if fingerprint.fingerprint_array(array) != digest:
                raise ProtocolError(f"payload {seq} of stream {session:#x} decoded to other contents than were sent")
            self._store_array((session, seq), array, digest)
        array.flags.writeable = False
        return array

    def _decode_temporal(
        self, header: Header, stream: Mapping[str, Any], session: int, seq: int, parts: List[memoryview]
    ) -> Array:
        base, digest = take_int(stream, "ref", 0, _SEQ_LIMIT), take_int(stream, "ref_hash", 0, _HASH_LIMIT)
        with self._lock:
            reference, stored_digest = self._stored.get((session, base), (None, 0))
        if reference is None or stored_digest != digest:
            raise ReferenceMissing(session, seq, base)
        if reference.shape != header.shape or reference.dtype != header.dtype:
            raise ProtocolError("temporal payload of another shape than its reference")
        return decode_difference(header, reference, parts)

    def _store_array(self, key: Tuple[int, int], array: Array, digest: int) -> None:
        with self._lock:
            self._stored[key] = (array, digest)
            self._stored.move_to_end(key)
            total = sum(stored.nbytes for stored, _ in self._stored.values())
            while len(self._stored) > self._ring or total > self._max_bytes:
                _, (dropped, _) = self._stored.popitem(last=False)
                total -= dropped.nbytes

    def acknowledgement(self, descriptor: Mapping[str, Any]) -> Optional[Acknowledgement]:
        """Make the acknowledgement of a payload that :meth:`decode` accepted; None if it was not stored."""
        stream = descriptor.get("stream")
        if not isinstance(stream, Mapping):
            return None
        key = (stream.get("session"), stream.get("seq"))
        with self._lock:
            if key not in self._stored:
                return None
            size = self._stored[key][0].nbytes  # type: ignore[index]
        room = self._max_bytes // size if size else self._ring
        return {"session": int(key[0]), "seq": int(key[1]), "ring": min(self._ring, room)}  # type: ignore[arg-type]


_STREAM_KEYS = {"session", "seq", "ref", "ref_hash", "hash"}
