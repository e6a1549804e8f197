"""Processes that end when the one that began them does, however that ends (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Callable, Optional


def with_parent() -> Optional[Callable[[], None]]:
    """What a child does before its program (``preexec_fn``), so that SIGTERM reaches it when this process has ended.

    The kernel counts the end of the thread that began the child: None in any thread but the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        prctl = ctypes.CDLL(None).prctl
    except AttributeError:
        return None  # not Linux
    parent = os.getpid()

    def request_signal() -> None:
        # 1: PR_SET_PDEATHSIG
        prctl(1, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(0)

    return request_signal
