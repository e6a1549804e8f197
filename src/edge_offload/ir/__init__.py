"""What one inference is: operators, values and their order, as facts only.

An :class:`OperatorSequence` is the one form in which the rest of the package knows a model: built from ``torch.export``
or ``torch.fx`` by :mod:`edge_offload.ir.build`, run by ``execute``, divided by ``split``, sent by
:mod:`edge_offload.ir.wire`. What a program issues call by call, on storages, is in :mod:`edge_offload.ir.trace`.

==============  ====================================================================================
module          its one reason
==============  ====================================================================================
``values``      a tensor as a fact: dtype, shape, strides, where its bytes live
``operators``   what an operator call is: a name and an argument tree, what it makes, writes, aliases
``sequence``    operators in order, with inputs, constants, host reads; validation
``canonical``   one byte string per meaning; 128-bit hash
``liveness``    from where to where a value is needed
``wire``        bounded msgpack form; decoding trusts nothing
``schemas``     torch's own overloads, and what their schemas say (needs torch)
``evaluate``    one operator on real tensors (needs torch)
``build``       sequences from modules (needs torch)
``opaque``      a part that cannot be traced, as one operator (needs torch)
==============  ====================================================================================

Classes elsewhere that tell of a call: :class:`~edge_offload.ir.trace.calls.BoundOperator` (a call with the kernel that
runs it here, and what its results were), ``Instruction`` of :mod:`edge_offload.execute.session.instructions` (a call
of a compiled program: registers in place of its tensors), ``Call`` of :mod:`edge_offload.replay.signatures` (a row of
the device's table of calls, for comparing steps); in C++ ``Entry`` of ``state.h`` and ``Call`` of ``nodes.cpp`` are the
first two. Of an inference: :class:`~edge_offload.ir.trace.segments.Segment` (as a program made it, call by call on
storages), which ``modes/split/unmodified/lift.py`` translates to an :class:`OperatorSequence`.

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
