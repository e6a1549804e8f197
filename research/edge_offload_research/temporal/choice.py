"""``auto`` where an array may be coded as its difference to an earlier one, too."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator, List, Optional

from edge_offload.arrays import Array
from edge_offload.link.codecs.choice import Selector, cut_slab
from edge_offload.link.codecs.payload import Encoded, check_buffers, check_descriptor
from edge_offload_research.temporal.difference import TEMPORAL, decode_difference, encode_difference


class TemporalSelector(Selector):
    """A selector whose candidates include the temporal codecs while an array has a reference."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._references = threading.local()

    @contextlib.contextmanager
    def against(self, reference: Optional[Array]) -> Iterator[None]:
        """Within this context, the thread's arrays are compared with ``reference``; None: there is none."""
        self._references.arrays = () if reference is None else (reference,)
        try:
            yield
        finally:
            self._references.arrays = ()

    def _reference_of(self, array: Array) -> Array:
        matches: Iterator[Array] = (one for one in self._references.arrays if one.shape == array.shape)
        return next(matches)

    def list_candidates(self, array: Array, content: str) -> List[str]:
        """Codecs worth measuring, without ``raw``."""
        comparable = getattr(self._references, "arrays", ()) and array.dtype.itemsize <= 8
        return super().list_candidates(array, content) + (list(TEMPORAL) if comparable else [])

    def cut_sample(self, array: Array, nbytes: int, where: float) -> Array:
        """A sample of ``array``; the same part of its reference is kept beside it."""
        references = getattr(self._references, "arrays", ())[:1]
        self._references.arrays = (*references, *(cut_slab(one, nbytes, where) for one in references))
        return super().cut_sample(array, nbytes, where)

    def encode_by(self, name: str, array: Array) -> Encoded:
        """Encode an array, or a sample of it, by a codec of :meth:`list_candidates`."""
        if name in TEMPORAL:
            return encode_difference(array, self._reference_of(array), name)
        return super().encode_by(name, array)

    def decode_again(self, encoded: Encoded, array: Array) -> None:
        """Decode what :meth:`encode_by` made of ``array``."""
        if encoded.descriptor["codec"] in TEMPORAL:
            header = check_descriptor(encoded.descriptor, array.nbytes)
            decode_difference(header, self._reference_of(array), check_buffers(encoded.buffers))
        else:
            super().decode_again(encoded, array)
