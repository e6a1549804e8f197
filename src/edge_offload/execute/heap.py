"""Keep the memory that tensors give back, so that the next inference does not have to ask the kernel for it again."""

from __future__ import annotations

import ctypes

#: glibc's names of its options (malloc.h).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
#: Bytes. Larger blocks are mapped and given back one by one, as by default; 1 GiB is more than activations take.
MAPPED_FROM = 1 << 30
#: Bytes that may lie free at the end of the heap before they are given back, and by which it grows.
KEPT, GROWTH = 1 << 30, 64 << 20


def keep_freed() -> bool:
    """Tell glibc's allocator to hold on to up to :data:`KEPT` bytes; says whether it could be told.

    By default it maps each large block anew and unmaps it when it is freed, until it has seen enough of them, and
    gives back the end of the heap early: one inference of a network then takes thousands of page faults, each of
    which the kernel answers with a page of zeros. Call it in a process that does little but compute, before its threads
    begin: one that has a heap of its own can keep no block of more than 64 MB, so all that begin later share one heap.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    wanted = ((_M_MMAP_THRESHOLD, MAPPED_FROM), (_M_TRIM_THRESHOLD, KEPT), (_M_TOP_PAD, GROWTH), (_M_ARENA_MAX, 1))
    return [mallopt(option, value) for option, value in wanted] == [1] * len(wanted)
