"""Threads that learn and measure give way to frames, and get on all the same."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading

import psutil
import pytest

from edge_offload import background
from edge_offload.manager.in_flight import TicketLock


@pytest.fixture
def learner(monkeypatch):
    """learner(wait_s) -> an event, set when a thread that learns has got past a step."""
    threads = []

    def make(wait_s, yields=True):
        monkeypatch.setattr(background, "WAIT_S", wait_s)
        passed = threading.Event()

        def work():
            if yields:
                with background.yielding():
                    background.give_way()
            else:
                background.give_way()
            passed.set()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return passed

    yield make
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


@pytest.fixture
def row():
    made = TicketLock()
    background.yield_to(made)
    return made


def test_a_step_waits_for_the_frames_that_are_under_way(learner, row):
    tickets = row.take_ticket(), row.take_ticket()
    passed = learner(60.0)
    assert not passed.wait(0.2)
    row.release_ticket(tickets[0])
    assert not passed.wait(0.2), "one is still under way"
    row.release_ticket(tickets[1])
    assert passed.wait(60.0)


def test_the_wait_for_frames_ends_at_its_limit(learner, row):
    row.take_ticket()
    assert learner(0.01).wait(60.0)


def test_without_frames_and_in_other_threads_nothing_is_waited_for(learner, row):
    assert learner(3600.0).wait(60.0)
    row.take_ticket()
    assert learner(3600.0, yields=False).wait(60.0)


def test_a_removed_frame_order_is_not_waited_for(learner):
    row = TicketLock()
    background.yield_to(row)
    row.take_ticket()
    del row
    gc.collect()
    assert learner(3600.0).wait(60.0)


def test_after_a_wait_in_vain_it_goes_on_for_a_while(monkeypatch, row):
    """Beside frames without end it gets on at a rate of its own, whatever its steps take."""
    monkeypatch.setattr(background, "WAIT_S", 0.01)
    monkeypatch.setattr(background, "GRACE_S", 3600.0)
    row.take_ticket()
    passed = threading.Event()

    def work():
        with background.yielding():
            background.give_way()
            background.WAIT_S = 3600.0
            for _ in range(100):
                background.give_way()
        passed.set()

    threading.Thread(target=work, daemon=True).start()
    assert passed.wait(60.0)


def sliced(work, yields=True):
    """Run ``work`` in a thread, in slices; an event that is set when it is over."""
    over = threading.Event()

    def run():
        with background.yielding() if yields else contextlib.nullcontext(), background.sliced():
            work()
        over.set()

    threading.Thread(target=run, daemon=True).start()
    return over


def some_calls():
    for _ in range(2 * background.CALLS):
        sys.intern("call")


def test_what_has_no_steps_waits_for_frames_too(monkeypatch, row):
    monkeypatch.setattr(background, "WAIT_S", 60.0)
    ticket = row.take_ticket()
    over = sliced(some_calls)
    assert not over.wait(0.2)
    row.release_ticket(ticket)
    assert over.wait(60.0)
    row.take_ticket()
    assert sliced(some_calls, yields=False).wait(60.0), "nobody is to wait there"


def test_a_step_within_slices_ends_with_the_frames_wherever_a_slice_ends(monkeypatch, row):
    """The wait of a step makes calls itself: a slice that ended within it would wait for the lock of the first wait."""
    monkeypatch.setattr(background, "WAIT_S", 60.0)
    monkeypatch.setattr(background, "_ended", threading.Event())
    for calls in range(1, 120):
        monkeypatch.setattr(background, "CALLS", calls)
        ticket = row.take_ticket()
        over = sliced(background.give_way)
        assert not over.wait(0.01)
        row.release_ticket(ticket)
        assert over.wait(10.0), calls


def test_slices_end_with_their_program_and_preserve_a_profiler(row):
    profiled = []

    def profiler(frame, event, argument):
        pass

    def work():
        with background.yielding():
            with background.sliced():
                profiled.append(sys.getprofile() is not None)
            profiled.append(sys.getprofile())
            sys.setprofile(profiler)
            with background.sliced():
                profiled.append(sys.getprofile() is profiler)
            profiled.append(sys.getprofile() is profiler)
            sys.setprofile(None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60.0)
    assert profiled == [True, None, True, True]


def test_an_error_passes_through_slices(row):
    errors = []

    def work():
        try:
            with background.yielding(), background.sliced():
                raise KeyError("told")
        except KeyError as error:
            errors.append((str(error), sys.getprofile()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60.0)
    assert errors == [("'told'", None)]


class Listener:
    def __init__(self):
        self.ended = 0

    def note_end(self):
        self.ended += 1


def test_the_end_of_learning_is_reported_once_nothing_learns_any_more():
    listener = Listener()
    background.on_learning_ended(listener.note_end)
    with background.yielding():
        with background.yielding():
            pass
        assert listener.ended == 0
    assert listener.ended == 1
    del listener
    with background.yielding():
        pass


#: A program whose background thread runs a compiler, as TorchInductor does, which has a child itself.
COMPILES = """
import subprocess, sys, threading
from edge_offload import background

def compile_kernels():
    while True:
        subprocess.run(["sh", "-c", "sleep 600 & echo $$ $!; wait"], check=False)
        background.check()

background.start("compiles", compile_kernels)
print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.readline()
"""


def is_running(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.process
def test_a_program_that_ends_does_not_wait_for_a_compiler_and_leaves_none_behind():
    command = [sys.executable, "-c", COMPILES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        lines = [program.stdout.readline().split() for _ in range(2)]
        compiler, others = ([psutil.Process(int(pid)) for pid in line] for line in sorted(lines, key=len, reverse=True))
        try:
            program.communicate("\n", timeout=30.0)
            assert not any(is_running(process) for process in compiler)
            assert all(is_running(other) for other in others), "what another thread has started"
        finally:
            for process in (*compiler, *others, program):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    assert (len(compiler), len(others)) == (2, 1)
