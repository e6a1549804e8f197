"""``auto``: per tensor the lossless codec with the least encode + transfer + decode time, by measurement.

A :class:`Selector` keeps, per kind of tensor and codec, the measured ratio and speeds. It measures on small samples of
the tensors that really pass, and pays for that out of an allowance: at most :data:`EPSILON` of the time that sending
everything raw would take, and the latest samples where those took longer than was thought. What is chosen is never
predicted to be slower than raw, and a payload that did not shrink is sent raw.
"""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.link.codecs.image import stack_frame
from edge_offload.link.codecs.kernels.portable import NONE
from edge_offload.link.codecs.method import NotApplicable
from edge_offload.link.codecs.payload import Encoded, check_array, dtype_name
from edge_offload.link.codecs.table import decode, encode_as

AUTO = "auto"
RAW = "raw"

EPSILON = 0.05
"""Share of the raw transfer time that may go into measuring."""

DEFAULT_LINK_BYTES_PER_S = 11.6e6
"""Used where nobody says how fast the link is: 93 Mbit/s, indoor Wi-Fi."""

_LEAST_SLAB, _MOST_SLAB = 4 * 1024, 256 * 1024  # bytes of a sample that is really encoded
_ASSUMED_SPEED = 150e6  # bytes/s of encoding and decoding an unknown codec, for planning the first sample
_WEIGHT = 0.3  # of the newest measurement
_REPEATS = 2  # the first run of a codec in a thread also makes its contexts: the faster one counts

Key = Tuple[str, str, str, int]
Clock = Callable[[], float]


@dataclass
class Measured:
    """Measurements of one codec on one kind of tensor.

    Attributes:
        ratio: coded bytes per plain byte. encode_s, decode_s: seconds per plain byte on this machine.
        samples: measurements so far.
    """

    ratio: float
    encode_s: float
    decode_s: float
    samples: int = 1

    def update(self, ratio: float, encode_s: Optional[float], decode_s: Optional[float]) -> None:
        """Blend in a newer measurement."""
        self.ratio += _WEIGHT * (ratio - self.ratio)
        if encode_s is not None:
            self.encode_s += _WEIGHT * (encode_s - self.encode_s)
        if decode_s is not None:
            self.decode_s += _WEIGHT * (decode_s - self.decode_s)
        self.samples += 1


@dataclass
class _Kind:
    """State of one kind of tensor."""

    table: Dict[str, Measured]
    allowance_s: float = 0.0
    choices: int = 0


class Selector:
    """Measures and chooses.

    Args:
        epsilon: see :data:`EPSILON`.
        seed: of the order in which codecs are measured and of where samples are taken.
        peer_speed: the peer's decoding speed relative to this machine's.
        clock: seconds, monotonic.

    Safe to call from several threads.
    """

    def __init__(
        self, epsilon: float = EPSILON, seed: int = 0, peer_speed: float = 1.0, clock: Clock = time.perf_counter
    ) -> None:
        if not (epsilon >= 0 and peer_speed > 0):
            raise BadInput("epsilon is at least 0 and peer_speed above 0")
        self._epsilon = epsilon
        self._peer_speed = peer_speed
        self._clock = clock
        self._random = random.Random(seed)
        self._kinds: Dict[Key, _Kind] = {}
        self._lock = threading.RLock()

    def select(self, array: Array, link_bytes_per_s: Optional[float] = None) -> str:
        """Name of the codec for ``array``.

        Raises:
            BadInput: the link rate is not a positive number.
        """
        rate = DEFAULT_LINK_BYTES_PER_S if link_bytes_per_s is None else float(link_bytes_per_s)
        if not rate > 0:
            raise BadInput(f"link rate of {link_bytes_per_s} bytes/s", remedy="give a positive number or None")
        if array.nbytes < 1024:  # bytes; below this raw costs less than thinking
            return RAW
        content = content_class(array)
        names = self.list_candidates(array, content)
        with self._lock:
            kind = self._kinds.setdefault(_table_key(array, content), _Kind({}))
            kind.choices += 1
            kind.allowance_s += self._epsilon * array.nbytes / rate
            self._try_codecs(kind, names, array, rate)
            return min(
                [RAW, *(name for name in names if name in kind.table)],
                key=lambda name: self._predict_s(kind, name, array.nbytes, rate),
            )

    def _predict_s(self, kind: _Kind, name: str, nbytes: int, rate: float) -> float:
        """Predict the seconds from the array on this end to the array on the other."""
        if name == RAW:
            return nbytes / rate
        measured = kind.table[name]
        return nbytes * (measured.encode_s + measured.ratio / rate + measured.decode_s / self._peer_speed)

    def _try_codecs(self, kind: _Kind, names: List[str], array: Array, rate: float) -> None:
        fresh = [name for name in names if name not in kind.table]
        if not fresh and kind.choices % 4:  # choices between two samples of codecs not chosen
            return
        due = fresh
        if not due:
            # the likely and the seldom measured first; the codec in use is measured on every payload anyway
            order = self._random.sample(names, len(names))
            due = [
                min(order, key=lambda name: kind.table[name].samples * self._predict_s(kind, name, array.nbytes, rate))
            ]
        size = min(_MOST_SLAB, int(kind.allowance_s * _ASSUMED_SPEED / (2 * _REPEATS * len(due))))
        if size < min(_LEAST_SLAB, array.nbytes):
            return
        start = self._clock()
        sample = self.cut_sample(array, size, self._random.random())
        for name in due:
            if self._clock() - start > kind.allowance_s:
                break  # slower than assumed: the rest waits until it has been earned
            self._sample_codec(kind, name, sample)
        kind.allowance_s -= self._clock() - start

    def _sample_codec(self, kind: _Kind, name: str, sample: Array) -> None:
        encode_s, decode_s, ratio = math.inf, math.inf, 1.0
        for _ in range(_REPEATS):
            start = self._clock()
            try:
                encoded = self.encode_by(name, sample)
            except NotApplicable:
                encode_s, decode_s = self._clock() - start, 0.0
                break
            middle = self._clock()
            self.decode_again(encoded, sample)
            encode_s, decode_s = min(encode_s, middle - start), min(decode_s, self._clock() - middle)
            ratio = encoded.nbytes / sample.nbytes
        self._record_sample(kind, name, ratio, encode_s / sample.nbytes, decode_s / sample.nbytes)

    def _record_sample(self, kind: _Kind, name: str, ratio: float, encode_s: float, decode_s: Optional[float]) -> None:
        measured = kind.table.get(name)
        if measured is None:
            kind.table[name] = Measured(ratio, encode_s, decode_s or 0.0)
        else:
            measured.update(ratio, encode_s, decode_s)

    def encode(self, array: Array, link_bytes_per_s: Optional[float] = None) -> Encoded:
        """Encode ``array`` (C-contiguous) by the codec chosen, and learn from it."""
        name = self.select(array, link_bytes_per_s)
        if name == RAW:
            return encode_as(RAW, array, {})
        start = self._clock()
        try:
            encoded: Optional[Encoded] = self.encode_by(name, array)
        except NotApplicable:
            encoded = None  # the content changed: remember it as a codec that saves nothing, and send raw
        encode_s = (self._clock() - start) / array.nbytes
        ratio = 1.0 if encoded is None else encoded.nbytes / array.nbytes
        with self._lock:
            self._record_sample(self._kinds[_table_key(array, content_class(array))], name, ratio, encode_s, None)
        return encode_as(RAW, array, {}) if encoded is None or ratio >= 1 else encoded

    def list_candidates(self, array: Array, content: str) -> List[str]:
        """Codecs worth measuring for ``array``, of a :func:`content_class`, without ``raw``."""
        return candidate_codecs(array, content)

    def cut_sample(self, array: Array, nbytes: int, where: float) -> Array:
        """Cut the sample of :func:`cut_slab`."""
        return cut_slab(array, nbytes, where)

    def encode_by(self, name: str, array: Array) -> Encoded:
        """Encode an array, or a sample of it, by a codec of :meth:`list_candidates`."""
        return encode_as(name, array, {})

    def decode_again(self, encoded: Encoded, array: Array) -> None:
        """Decode what :meth:`encode_by` made of ``array``."""
        decode(encoded.descriptor, encoded.buffers, array.nbytes)

    def report(self) -> List[Dict[str, Any]]:
        """Return the measurements: one row per kind of tensor and codec, for plans, tables and ``doctor``.

        Keys: ``dtype layout content bytes_log2 codec ratio encode_s_per_byte decode_s_per_byte samples``;
        ``ratio`` is plain bytes per coded byte.
        """
        with self._lock:
            return [
                {
                    "dtype": key[0],
                    "layout": key[1],
                    "content": key[2],
                    "bytes_log2": key[3],
                    "codec": name,
                    "ratio": 1 / max(measured.ratio, 1e-9),
                    "encode_s_per_byte": measured.encode_s,
                    "decode_s_per_byte": measured.decode_s,
                    "samples": measured.samples,
                }
                for key, kind in self._kinds.items()
                for name, measured in kind.table.items()
            ]


def _table_key(array: Array, content: str) -> Key:
    frame = stack_frame(array.shape, NONE)
    layout = "flat" if frame is None else f"{'interleaved' if frame.interleaved else 'planar'}{frame.channels}"
    return dtype_name(array.dtype), layout, content, int(math.log2(array.nbytes))


def content_class(array: Array) -> str:
    """``sparse`` (nine zeros in ten), ``few`` (at most 16 values) or ``many``, by a sample of the elements."""
    flat = array.reshape(-1)
    sample = flat[:: max(1, flat.size // 1024)]  # elements looked at to tell the kind of content
    if 10 * int(np.count_nonzero(sample)) <= sample.size:
        return "sparse"
    return "few" if len(np.unique(sample)) <= 16 else "many"


def candidate_codecs(array: Array, content: str) -> List[str]:
    """Codecs worth measuring for a kind of tensor, without ``raw``."""
    names = ["shuffle+lz4", "shuffle+zstd"]
    item = array.dtype.itemsize
    if content != "many" and item <= 8:
        names += ["bits", "bits+zstd"]
    if content == "sparse" and item <= 8:
        names += ["sparse+zstd"]
    if stack_frame(array.shape, NONE) is not None and content != "sparse":
        if item == 1:
            names += ["gradient+lz4", "gradient+zstd"]
        elif item <= 8:
            names += ["palette+zstd"]
    return names


def cut_slab(array: Array, nbytes: int, where: float) -> Array:
    """A contiguous sample of about ``nbytes`` of an array that codes like the whole: rows of an image, or a run.

    Args:
        array: of any shape.
        nbytes: of the sample.
        where: 0 (start) .. 1 (end).
    """
    if array.nbytes <= nbytes:
        return array
    frame = stack_frame(array.shape, NONE)
    if frame is not None:
        per_row = frame.width * frame.channels * array.dtype.itemsize
        rows = min(frame.height, max(8, nbytes // per_row))
        images = min(frame.images, max(1, nbytes // (per_row * frame.height)))
        first, start = int(where * (frame.height - rows)), int(where * (frame.images - images))
        axis = 1 if frame.interleaved else 2
        extents = [frame.images, frame.height, frame.width]
        extents.insert(3 if frame.interleaved else 1, frame.channels)
        stack = array.reshape(extents)[start : start + images]
        return np.ascontiguousarray(stack.take(range(first, first + rows), axis=axis))
    flat = array.reshape(-1)
    count = max(1, nbytes // array.dtype.itemsize)
    first = int(where * (flat.size - count))
    return flat[first : first + count]


_shared = Selector()


def select(array: Array, link_bytes_per_s: Optional[float] = None) -> str:
    """Name of the codec that ``auto`` would take for ``array`` now (see :class:`Selector`).

    Args:
        array: what is to be coded.
        link_bytes_per_s: goodput of the link.
    """
    return _shared.select(check_array(array), link_bytes_per_s)


def encode(
    array: Array,
    codec: str = AUTO,
    *,
    link_bytes_per_s: Optional[float] = None,
    selector: Optional[Selector] = None,
    **options: Any,
) -> Encoded:
    """Encode one array.

    Args:
        array: any shape and strides; dtype one of :data:`~.payload.DTYPES`, little-endian.
        codec: ``auto`` (always lossless) or a name of :data:`~.coding.CODECS`.
        link_bytes_per_s: goodput of the link, which ``auto`` weighs against its own speed; None:
            :data:`DEFAULT_LINK_BYTES_PER_S`.
        selector: measurements for ``auto``; None: one table for the whole process.
        options: of the codec (``quality`` of ``jpeg``).

    Returns:
        Descriptor and parts. The part of ``raw`` aliases ``array``: do not write to it before the part has left.
        A lossy codec says so: ``descriptor["lossy"]``.

    Raises:
        BadInput: the array cannot travel, no such codec, or the codec does not suit the array.
    """
    array = check_array(array)
    if codec != AUTO:
        return encode_as(codec, array, options)
    return (selector or _shared).encode(array, link_bytes_per_s)
