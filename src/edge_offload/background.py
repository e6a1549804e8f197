"""Threads that compute beside the program, and end before the interpreter does.

A daemon thread that is inside torch while the interpreter goes down takes the whole process with it ("terminate called
without an active exception"). What computes in the background is therefore started here: when the process ends, such a
thread gives up at its next :func:`check` or :func:`result`, and is waited for, so no longer than for one operator.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Callable, Iterator, List, Optional, Protocol, Set


class Ended(BaseException):
    """The process ends, or nobody wants what a background thread does: it gives up. Nothing is to be said of it."""


_threads: Set[threading.Thread] = set()
_lock = threading.Lock()
_shutdown: Future[Any] = Future()
_ended = threading.Event()
#: Seconds that it waits for frames between two of its steps, at most; for which it then does not wait again, so that it
#: gets on beside any load; and between looks.
WAIT_S, GRACE_S, CHECK_S = 0.1, 0.025, 2e-3
#: Calls of Python between two looks in what has no steps (some tenths of a millisecond).
CALLS = 1000
_yielding = 0
_usual_s = sys.getswitchinterval()
_thread_state = threading.local()
_learning_ended: List[weakref.WeakMethod[Callable[[], object]]] = []


class Work(Protocol):
    """Work that others give way to."""

    @property
    def busy(self) -> bool:
        """Tell whether something is under way."""


_first: weakref.WeakSet[Work] = weakref.WeakSet()


def start(name: str, work: Callable[..., object], *args: Any, over: Optional[Future[Any]] = None) -> None:
    """Do ``work(*args)`` in a thread of its own; does nothing where the process ends.

    Once ``over`` is done, nobody wants it any more: it gives up as it does when the process ends.
    """

    def run() -> None:
        _thread_state.over = over
        try:
            check()
            work(*args)
        except Ended:
            pass
        finally:
            with _lock:
                _threads.discard(thread)

    thread = threading.Thread(target=run, name=name, daemon=True)
    with _lock:
        if _shutdown.done():
            return
        _threads.add(thread)
    thread.start()


@contextlib.contextmanager
def yielding() -> Iterator[None]:
    """What this thread does until its end is less urgent than frames: it gives them the processor and the interpreter.

    Where the system does not let a thread have a priority of its own, the interpreter alone.
    """
    global _yielding, _usual_s
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    with _lock:
        if not _yielding:
            _usual_s = sys.getswitchinterval()
            # it gives up the interpreter to a frame that wants it after 0.1 ms (Python's own: 5 ms)
            sys.setswitchinterval(0.1e-3)
        _yielding += 1
    before, _thread_state.yields = getattr(_thread_state, "yields", False), True
    try:
        yield
    finally:
        _thread_state.yields = before
        with _lock:
            _yielding -= 1
            over = not _yielding
            if over:
                sys.setswitchinterval(_usual_s)
        for reference in list(_learning_ended) if over else ():
            ended = reference()
            if ended is not None:
                ended()


def is_learning() -> bool:
    """Tell whether something of this process is :func:`yielding`."""
    return _yielding > 0


def on_learning_ended(ended: Callable[[], object]) -> None:
    """Have a method called whenever nothing of this process is :func:`yielding` any more, while its object lives."""
    with _lock:
        _learning_ended[:] = [reference for reference in _learning_ended if reference() is not None]
        _learning_ended.append(weakref.WeakMethod(ended))


def yield_to(work: Work) -> None:
    """Let yielding threads wait from now on while ``work`` is busy, as long as that lives."""
    _first.add(work)


def give_way() -> None:
    """To be called between two steps of what learns or measures: in a thread that is :func:`yielding`, frames go first.

    A call from within another one of this thread (:func:`sliced` counts the calls that waiting makes, too) does
    nothing: the outer one holds locks.

    Raises:
        Ended: see :func:`check`.
    """
    if getattr(_thread_state, "waits", False):
        return
    check()
    if not getattr(_thread_state, "yields", False) or time.monotonic() < getattr(_thread_state, "grace_s", 0.0):
        return
    until_s = time.monotonic() + WAIT_S
    _thread_state.waits = True
    try:
        while any(work.busy for work in list(_first)):
            if time.monotonic() >= until_s:
                _thread_state.grace_s = time.monotonic() + GRACE_S
                return
            _ended.wait(CHECK_S)
            check()
    finally:
        _thread_state.waits = False


@contextlib.contextmanager
def sliced() -> Iterator[None]:
    """What this thread calls until its end is divided into steps, between which it gives way (:func:`give_way`).

    For what is not ours to divide: every so many calls of Python it is looked whether frames are under way. It may wait
    at any of them: not for what holds a lock that frames need. Does nothing in a thread that is not :func:`yielding`,
    or whose calls somebody else counts already (a profiler).
    """
    if not getattr(_thread_state, "yields", False) or sys.getprofile() is not None:
        yield
        return
    calls = 0

    def check_frames(_frame: Any, _event: str, _argument: Any) -> None:
        nonlocal calls
        calls += 1
        if calls >= CALLS:
            calls = 0
            give_way()

    sys.setprofile(check_frames)
    try:
        yield
    finally:
        sys.setprofile(None)


def check() -> None:
    """To be called now and then by whatever takes long and may run in the background.

    Raises:
        Ended: this is a background thread, and the process ends, or nobody wants any more what it does.
    """
    over = getattr(_thread_state, "over", None)
    if (_shutdown.done() and threading.current_thread() in _threads) or (over is not None and over.done()):
        raise Ended


def result(future: Future[Any], timeout_s: float) -> Any:
    """The result of ``future``, or its exception.

    Raises:
        concurrent.futures.TimeoutError: it has not come within ``timeout_s``.
        Ended: see :func:`check`.
    """
    over = getattr(_thread_state, "over", None)
    wait((future, _shutdown, *(() if over is None else (over,))), timeout_s, FIRST_COMPLETED)
    check()
    if not future.done():
        raise FutureTimeout(f"no answer within {timeout_s:g} s")
    return future.result()


def on_shutdown(callback: Callable[[], object]) -> None:
    """Have ``callback`` called when the process ends."""
    _shutdown.add_done_callback(lambda _: callback())


def end() -> None:
    """End all of it, now and for good; blocks until the threads are gone. Called by itself when the process ends.

    Processes that these threads wait for, such as compilers, are killed.
    """
    with _lock:
        if not _shutdown.done():
            _ended.set()
            _shutdown.set_result(None)
        threads = [thread for thread in _threads if thread is not threading.current_thread()]
    for thread in threads:
        while thread.is_alive():
            for child in list(child_processes(pathlib.Path(f"/proc/self/task/{thread.native_id}"))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            thread.join(CHECK_S)


def child_processes(task: pathlib.Path) -> Iterator[int]:
    """Yield the ids of the processes that a thread (a folder of ``/proc``) has started, and of theirs."""
    with contextlib.suppress(OSError):  # one has ended meanwhile
        for child in (task / "children").read_text().split():
            yield int(child)
            for thread in pathlib.Path(f"/proc/{child}/task").iterdir():
                yield from child_processes(thread)


atexit.register(end)
