"""What the device gives to the recorder when a segment ends, and why it ended."""

from __future__ import annotations

from typing import List, NamedTuple

import torch

#: Why a segment ended (``native/state.h``, Reason): a host read, results that are not known here, results whose shape
#: depends on data, enough uploads, every call being one, a barrier, sizes that depend on data in a program whose
#: calls are computed in its own process.
READ, INFER, DYNAMIC, ASYNC, CALL, BARRIER, CUT = range(7)


class FlushedSegment(NamedTuple):
    """A segment that ended.

    Attributes:
        reason: one of the above.
        generation: how often the device has forgotten its calls and segments.
        segment: its number; ``fresh`` if it has just got it.
        base: number of its first new storage.
        live: canonical number and storage, in turn, of each storage that existed before.
        dead: canonical numbers of new storages that are freed already; ``freed``: other storages.
        numbers: 16 bytes for each host number.
        payloads: host tensors that travel with it.
        calls: how many it has; none of a barrier alone.
    """

    reason: int
    generation: int
    segment: int
    fresh: bool
    base: int
    live: List[int]
    dead: List[int]
    freed: List[int]
    numbers: bytes
    payloads: List[torch.Tensor]
    calls: int
