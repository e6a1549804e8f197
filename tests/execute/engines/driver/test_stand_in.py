"""The stand-in for the driver makes the field's usual faults fail, as a GPU does: through real pycuda."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading

import numpy as np
import pytest


@pytest.fixture
def context(cuda):
    made = cuda.Device(0).retain_primary_context()
    made.push()
    yield made
    cuda.Context.pop()
    made.detach()


@pytest.fixture
def data(context):
    return np.arange(24, dtype=np.float32)


def test_the_device_identifies_itself(cuda):
    assert cuda.Device(0).name() == "no GPU (stand-in for the driver)"


def test_memory_is_copied_both_ways_in_order(cuda, data):
    stream, host = cuda.Stream(), cuda.pagelocked_empty(data.shape, data.dtype)
    memory = cuda.mem_alloc(data.nbytes)
    host[:] = data
    cuda.memcpy_htod_async(memory, host, stream)
    back = cuda.pagelocked_empty(data.shape, data.dtype)
    cuda.memcpy_dtoh_async(back, memory, stream)
    assert not np.array_equal(back, data), "nobody has waited"
    stream.synchronize()
    assert np.array_equal(back, data)


def test_a_thread_without_a_context_may_do_nothing(cuda, data):
    stream, memory, errors = cuda.Stream(), cuda.mem_alloc(data.nbytes), []

    def callback():
        try:
            cuda.memcpy_htod_async(memory, data, stream)
        except cuda.LogicError as error:
            errors.append(str(error))

    thread = threading.Thread(target=callback)
    thread.start()
    thread.join()
    assert "error 201" in errors[0]


def test_a_stream_of_another_context_is_none(cuda, context, data):
    stream, memory = cuda.Stream(), cuda.mem_alloc(data.nbytes)
    other = cuda.Device(0).make_context()
    try:
        with pytest.raises(cuda.LogicError, match="error 400"):
            cuda.memcpy_htod_async(memory, data, stream)
    finally:
        other.pop()
        other.detach()


def test_a_copy_past_the_end_is_refused(cuda, data):
    memory = cuda.mem_alloc(data.nbytes - 4)
    with pytest.raises(cuda.LogicError, match="error 1 "):
        cuda.memcpy_htod(memory, data)


def test_the_host_may_not_touch_the_device(cuda, data):
    memory = cuda.mem_alloc(data.nbytes)
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.string_at(int(memory), 4)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def test_what_is_not_freed_is_seen(cuda, context, data, allocations):
    before, free = allocations(), cuda.mem_get_info()[0]
    memory = cuda.mem_alloc(data.nbytes)
    assert cuda.mem_get_info()[0] < free
    assert allocations() != before
    memory.free()
    assert (allocations(), cuda.mem_get_info()[0]) == (before, free)


def test_kernels_are_missing(cuda, context):
    with pytest.raises(cuda.Error, match="error 801"):
        cuda.module_from_buffer(b"kernel")
