"""Entries of ``op_db`` that cannot be compared, and why: at most 3 % of all. And those that need care in comparing."""

from __future__ import annotations

_UNINITIALISED = "its result is uninitialised memory"
_COMPILES = "compiles CUDA source in the program's own process"
_FLOAT8 = "takes 8-bit floats only, in which no samples are drawn"
_ALIGNMENT = "LAPACK's gelsy gives other bits, on one CPU, for the same values at another alignment of memory"
_NO_REFERENCE = "has no samples on a CPU, so that there is nothing to compare with"

EXCLUSIONS = {
    "empty": _UNINITIALISED,
    "empty_like": _UNINITIALISED,
    "empty_permuted": _UNINITIALISED,
    "empty_strided": _UNINITIALISED,
    "new_empty": _UNINITIALISED,
    "new_empty_strided": _UNINITIALISED,
    "jiterator_2inputs_2outputs": _COMPILES,
    "jiterator_4inputs_with_extra_args": _COMPILES,
    "jiterator_binary": _COMPILES,
    "jiterator_binary_return_by_ref": _COMPILES,
    "jiterator_unary": _COMPILES,
    "torch._scaled_mm": _FLOAT8,
    "torch._scaled_mm_v2": _FLOAT8,
    "torch.ops.aten._flash_attention_forward": _NO_REFERENCE,
    "torch.ops.aten._efficient_attention_forward": _NO_REFERENCE,
    "nn.functional.batch_norm.without_cudnn": _NO_REFERENCE,
    "linalg.lstsq": _ALIGNMENT,
    "linalg.lstsq.grad_oriented": _ALIGNMENT,
}

#: Entries whose tensor arguments stay on the host, because a GPU refuses them elsewhere (they say how to split).
HOST_ARGUMENTS = frozenset({"tensor_split"})

#: Entries written in Python that ask which device it is and compute otherwise on a GPU. The reference is the same call
#: in per-op mode; that in turn is only compared with the CPU as numbers, to this relative tolerance.
BRANCHES_ON_DEVICE = {"nn.functional.linear_cross_entropy": 1e-2}

#: Entries whose results lie as a GPU's do, densely, however their operands lie; their values are the CPU's.
STRIDES_OF_CUDA = frozenset({"nn.functional.group_norm"})
