"""Model of one inference: operators, values and their order, as facts only.

An :class:`OperatorSequence` is the one form in which the rest of the package knows a model: built from ``torch.export``
or ``torch.fx`` by :mod:`edge_offload.ir.build`, run by ``execute``, divided by ``split``, sent by
:mod:`edge_offload.ir.wire`. What a program issues call by call, on storages, is in :mod:`edge_offload.ir.trace`.

Other classes for a call: :class:`~edge_offload.ir.trace.calls.BoundOperator` (a call with its kernel and its latest
results), ``Instruction`` of :mod:`edge_offload.execute.session.instructions` (a call of a compiled program: registers
in place of its tensors), ``TableCall`` of :mod:`edge_offload.replay.signatures` (a row of the device's table of calls,
for comparing steps); in C++ ``Entry`` of ``state.h`` and ``Call`` of ``nodes.cpp`` are the first two. Of an inference:
:class:`~edge_offload.ir.trace.segments.Segment` (as a program made it, call by call on storages), which
``modes/split/unmodified/lift.py`` translates to an :class:`OperatorSequence`.

Nothing here imports another package of ours (only the leaf :mod:`edge_offload.errors`).
"""

from edge_offload.ir.canonical import canonical_bytes, canonicalise, sequence_hash
from edge_offload.ir.operators import Arg, Operator, Ref, Symbol
from edge_offload.ir.sequence import OperatorSequence
from edge_offload.ir.values import DYNAMIC, Kind, Value, content_digest

__all__ = [
    "DYNAMIC",
    "Arg",
    "Kind",
    "Operator",
    "OperatorSequence",
    "Ref",
    "Symbol",
    "Value",
    "canonical_bytes",
    "canonicalise",
    "content_digest",
    "sequence_hash",
]
