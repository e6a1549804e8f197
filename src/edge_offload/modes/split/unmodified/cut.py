"""An inference whose end has sizes that depend on data, such as suppression: it is cut where they begin.

Up to there it is the same calls each time, which can be divided; the results of the divided part are what the program
uses of it from there on, and the device computes the rest. What else the first part leaves is owed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.operators import Layout, View
from edge_offload.ir.trace.keys import DTYPES
from edge_offload.ir.trace.storage import StorageBuffer
from edge_offload.replay.signatures import Definition, SegmentInvocation, SignatureTable


class StorageUse(NamedTuple):
    """A storage that the program uses behind the cut.

    Attributes:
        place: its number, counted from the first that the segment made.
        canonical: its number in the segment.
        entry: the device's number of the read that tells all of it.
        layout: how that looks at it.
    """

    place: int
    canonical: int
    entry: int
    layout: Layout

    @property
    def is_empty(self) -> bool:
        """True if it has no elements."""
        return 0 in self.layout.sizes


@dataclass
class SegmentUses:
    """What a program uses of one segment, time after time.

    Attributes:
        all_uses: all that it ever used, in the order of the segment.
        values: the latest contents of what is :attr:`readable`; none where they were not kept, or not everything was
            used.
        unchanged: how often there was nothing new.
    """

    all_uses: Tuple[StorageUse, ...] = ()
    values: List[torch.Tensor] = field(default_factory=list)
    unchanged: int = 0

    @property
    def readable(self) -> Tuple[StorageUse, ...]:
        """Results of the divided part."""
        return tuple(use for use in self.all_uses if not use.is_empty)

    def add_uses(
        self,
        piece: SegmentInvocation,
        items: Sequence[Tuple[int, int, int, Optional[torch.Tensor]]],
        forms: SignatureTable,
    ) -> None:
        """Record the uses of ``piece``: (storage, its number in it, entry of the read, contents)."""
        uses: Dict[int, StorageUse] = {use.canonical: use for use in self.all_uses}
        values: Dict[int, torch.Tensor] = {}
        for number, canonical, entry, value in items:
            if canonical not in uses:
                (view,) = forms.call_of(entry).operator.args
                assert isinstance(view, View)
                uses[canonical] = StorageUse(number - piece.base, canonical, entry, view.layout)
            if value is not None:
                values[canonical] = value
        self.unchanged = self.unchanged + 1 if len(uses) == len(self.all_uses) else 0
        self.all_uses = tuple(uses[canonical] for canonical in sorted(uses))
        self.values = [values[use.canonical] for use in self.readable if use.canonical in values]
        if len(self.values) < len(self.readable):
            self.values = []


class CutInference(NamedTuple):
    """An inference that is being computed by the device, from its first call to the read behind the cut."""

    inference: Any
    piece: SegmentInvocation


def append_reads(definition: Definition, uses: Sequence[StorageUse], forms: SignatureTable) -> Definition:
    """Return ``definition`` with a read of each of ``uses`` at its end."""
    reads = tuple(forms.call_of(use.entry) for use in uses)
    encoded = tuple(number for use in uses for number in (use.entry, use.canonical))
    return Definition(definition.codes + encoded, definition.calls + reads)


def put_results(
    session: DeviceSession, piece: SegmentInvocation, uses: SegmentUses, tensors: Sequence[torch.Tensor]
) -> SegmentInvocation:
    """Have ``session`` hold the results of a divided segment; returns the segment without them, which is owed."""
    results = iter(tensors)
    for use in uses.all_uses:
        with torch.inference_mode():
            result = torch.empty_strided(use.layout.sizes, use.layout.strides, dtype=DTYPES[use.layout.dtype])
            if not use.is_empty:
                result.copy_(next(results).reshape(use.layout.sizes))
        session.store_buffer(piece.base + use.place, StorageBuffer(result.untyped_storage()), None)
    return replace(piece, dead=piece.dead | {use.canonical for use in uses.all_uses})


def read_results(session: DeviceSession, piece: SegmentInvocation, uses: SegmentUses) -> List[torch.Tensor]:
    """Return the same results as computed by the device."""
    return [session.buffer_of(piece.base + use.place).view(use.layout) for use in uses.readable]
