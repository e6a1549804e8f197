"""What all tests have in common: three kinds that run apart, and no hurry for an example of a property.

unit     no process, no sleep: ``pytest -m unit``, as many at a time as there are cores
process  starts processes, waits for sockets or for a clock: marked so
ros      needs a ROS environment: marked so
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import Any, Iterator, List, Optional

import pytest
from hypothesis import HealthCheck, settings

#: What builds libraries on first use, and what matplotlib asks for the fonts of a machine, once.
FIRST_USE = ("nice", "c++", "g++", "cc", "gcc", "clang", "clang++", "fc-list")

# tests share their processors with others: what waits for an idle one waits long; tests/split/learning has it otherwise
os.environ.setdefault("EDGE_OFFLOAD_LEARNING", "threads")

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Mark what is not marked otherwise as a unit test; put files with slow tests first, so that none ends alone."""
    for item in items:
        if not any(item.iter_markers("process")) and not any(item.iter_markers("ros")):
            item.add_marker(pytest.mark.unit)
    slow = {item.path for item in items if any(item.iter_markers("slow"))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A unit test whose fixtures start a process or sleep has failed."""
    with _neither_process_nor_sleep(item):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Likewise one that does so itself."""
    with _neither_process_nor_sleep(item):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: Optional[pytest.Item]) -> Iterator[None]:
    """Likewise at its end; but with the last test of a module fixtures of other tests, or of the session, end, too."""
    same_module = nextitem is not None and nextitem.parent is item.parent
    with _neither_process_nor_sleep(item) if same_module else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _neither_process_nor_sleep(item: pytest.Item) -> Iterator[None]:
    _guard.on = any(item.iter_markers("unit"))
    try:
        yield
    finally:
        _guard.on = False


class _Guard:
    """Refuses processes and sleep while it is on.

    It stands in for what it guards from the first test to the last: a fixture that replaces ``time.sleep`` in one phase
    of a test and puts it back in another never sees the guard come or go.
    """

    def __init__(self) -> None:
        self.on = False
        self._begin, self._fork, self._sleep = subprocess.Popen.__init__, os.fork, time.sleep
        guard = self

        def begin(process: Any, command: Any, *arguments: Any, **named: Any) -> None:
            guard.compiles(process, command, *arguments, **named)

        subprocess.Popen.__init__ = begin  # type: ignore[method-assign]
        os.fork = self.fork
        time.sleep = self.sleep

    def refuse(self) -> None:
        if self.on:
            raise AssertionError(
                "a unit test starts no process and does not sleep: mark it 'process', or inject a clock"
            )

    def compiles(self, process: Any, command: Any, *arguments: Any, **named: Any) -> None:
        """Libraries are built, compilers asked for their version and fonts listed on first use: whoever that is."""
        if os.path.basename(command[0] if isinstance(command, (list, tuple)) else command) not in FIRST_USE:
            self.refuse()
        self._begin(process, command, *arguments, **named)

    def fork(self) -> int:
        self.refuse()
        return self._fork()

    def sleep(self, seconds: float) -> None:
        """What waits for the compiler sleeps as well."""
        if seconds > 0 and sys._getframe(1).f_globals["__name__"] != subprocess.__name__:
            self.refuse()
        self._sleep(seconds)


_guard = _Guard()
