"""Processes that compute: how they are started, and how they keep the memory that tensors give back.

So the next inference does not have to ask the kernel for it again.
"""

from __future__ import annotations

import ctypes
import functools
import glob
from typing import Dict, List, Mapping, Optional

#: What stands in front of an executor process's own command; tests without a GPU put the virtual device there.
LAUNCHER: List[str] = []

#: Where systems keep jemalloc, which serves many small requests faster than glibc's allocator does.
JEMALLOC = ("/usr/lib/*/libjemalloc.so.2", "/usr/lib64/libjemalloc.so.2", "/usr/lib/libjemalloc.so.2")
#: It is to retain freed memory, large blocks too, as :func:`retain_freed_memory` has glibc do.
_OPTIONS = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0"

#: glibc's names of its options (malloc.h).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def retain_freed_memory() -> bool:
    """Makes glibc's allocator retain up to 1 GiB; returns False if it cannot be set.

    By default it maps each large block again and unmaps it when it is freed, until it has seen enough of them, and
    gives back the end of the heap early: one inference of a network then takes thousands of page faults, each of
    which the kernel answers with a page of zeros. Call it in a process that does little but compute, before its threads
    begin: one that has a heap of its own can keep no block of more than 64 MB, so all that begin later share one heap.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    options = (
        (_M_MMAP_THRESHOLD, 1 << 30),  # larger blocks, which activations do not take, are given back one by one
        (_M_TRIM_THRESHOLD, 1 << 30),  # bytes that may lie free at the end of the heap
        (_M_TOP_PAD, 64 << 20),  # bytes by which the heap grows
        (_M_ARENA_MAX, 1),
    )
    return [mallopt(option, value) for option, value in options] == [1] * len(options)


@functools.lru_cache(maxsize=1)
def find_jemalloc() -> Optional[str]:
    """Finds the path of jemalloc; None if it is not installed."""
    return next((path for pattern in JEMALLOC for path in glob.glob(pattern)), None)


def executor_environment(inherited: Mapping[str, str]) -> Dict[str, str]:
    """Builds the environment of a process that computes for a program.

    ``inherited`` without what ``edge-offload exec`` put there, and with jemalloc where it is installed and nothing else
    is preloaded.
    """
    environment = {name: value for name, value in inherited.items() if not name.startswith("EDGE_OFFLOAD_EXEC")}
    library = find_jemalloc()
    if library is not None and not environment.get("LD_PRELOAD"):
        environment["LD_PRELOAD"] = library
        environment.setdefault("MALLOC_CONF", _OPTIONS)
    return environment
