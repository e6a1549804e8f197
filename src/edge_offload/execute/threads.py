"""Pin a process to a number of compute threads and to CPU cores, so that timings and results repeat."""

from __future__ import annotations

import os
from typing import FrozenSet, Iterable, Optional, Set

import torch

from edge_offload.errors import BadInput, Unsupported


def pin(threads: Optional[int] = None, cores: Optional[Iterable[int]] = None) -> None:
    """Use ``threads`` torch threads in the calling thread and every later one; keep the whole process on ``cores``.

    Call it in each thread that computes: torch's thread count is kept per thread once a thread has computed.

    Args:
        threads: compute threads, 1 to 1024; None leaves the count as it is.
        cores: numbers of CPU cores; None leaves the affinity as it is.

    Raises:
        BadInput: no such number of threads, or a core that this process may not use.
        Unsupported: the platform cannot set the affinity.
    """
    if threads is not None:
        most = 1024  # more end the process: OpenMP starts them all at once
        if not 1 <= threads <= most:
            raise BadInput(f"{threads} compute threads", remedy=f"use 1 to {most}")
        torch.set_num_threads(threads)
    if cores is not None:
        _set_affinity(frozenset(cores))


def parse_cores(text: str) -> FrozenSet[int]:
    """Core numbers from ``"0,2-3"``.

    Raises:
        BadInput: not such a list.
    """
    cores: Set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise BadInput(f"cores {text!r}: {part!r} is no core number", remedy="write a list like 0,2-3") from None
        if low > high or high > 65535:
            raise BadInput(f"cores {text!r}: {part!r} is no range", remedy="write a list like 0,2-3")
        cores.update(range(low, high + 1))
    return frozenset(cores)


def _set_affinity(cores: FrozenSet[int]) -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise Unsupported("this platform cannot pin a process to cores", remedy="leave the cores out")
    # Linux sets the affinity of one thread; those that run already (OpenMP, ZeroMQ) must be told one by one
    for thread in [0, *_threads_of_this_process()]:
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:
            continue
        except (OSError, ValueError) as error:
            allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            raise BadInput(
                f"cannot pin to cores {','.join(map(str, sorted(cores)))}: {error}",
                remedy=f"this process may use {allowed}",
            ) from error


def _threads_of_this_process() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []
