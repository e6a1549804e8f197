"""The device guard of torch's CUDA builds on a machine without a driver, kept for as long as the process.

Tracing with fake tensors replaces that guard by one that does nothing. torch stores the new guard in the thread that
traces first and leaves a pointer to it for all others, so the process crashes at the first trace after that thread has
ended (seen with torch 2.11; ``c10::impl::ensureCUDADeviceGuardSet``).
"""

from __future__ import annotations

import functools
import threading

import torch


@functools.lru_cache(maxsize=None)
def keep_device_guard() -> None:
    """Have the guard replaced by a thread that never ends; to be called before a trace."""
    replace = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if replace is None or torch.version.cuda is None:
        return
    replaced = threading.Event()

    def own_guard() -> None:
        replace()
        replaced.set()
        threading.Event().wait()

    threading.Thread(target=own_guard, name="device guard", daemon=True).start()
    replaced.wait()
