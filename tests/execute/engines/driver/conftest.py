"""Packages that NVIDIA publishes and pycuda, on path; everything here is marked ``tensorrt``."""

from __future__ import annotations

import ctypes
import pathlib
import sys

import pytest

from edge_offload.execute.engines import table, tensor_rt
from edge_offload.execute.engines.tensor_rt import TensorRT
from tests.execute.engines.driver import prepare

FOLDER = pathlib.Path(__file__).parent
prepare.folder()  # before tests get caches of their own


def pytest_collection_modifyitems(items):
    for item in items:
        if FOLDER in pathlib.Path(str(item.fspath)).parents:
            item.add_marker(pytest.mark.tensorrt)
            item.add_marker(pytest.mark.process)


def pytest_terminal_summary(terminalreporter):
    """What was real, and what was not."""
    if prepare.ready() or not any(
        "tensorrt" in getattr(one, "keywords", ()) for one in terminalreporter.stats.get("passed", ())
    ):
        return
    terminalreporter.write_line(
        f"TensorRT: NVIDIA's own parser and builder (TensorRT-RTX {prepare.TENSORRT}), real pycuda {prepare.PYCUDA}; a "
        "stand-in for the driver, and ONNX Runtime as a stand-in for execution. No GPU: TensorRT has not been run."
    )


@pytest.fixture(scope="session")
def trt():
    """The real bindings of TensorRT-RTX: parser and builder."""
    reason = prepare.ready()
    if reason:
        pytest.skip(reason)
    sys.path.append(str(prepare.folder() / "site"))
    return pytest.importorskip("tensorrt_rtx_bindings", reason="NVIDIA's wheel does not load here")


@pytest.fixture(scope="session")
def cuda():
    """Real pycuda on the stand-in for the driver."""
    reason = prepare.ready()
    if reason:
        pytest.skip(reason)
    prepare.main()  # a stand-in that was changed since
    ctypes.CDLL(str(prepare.library()), mode=ctypes.RTLD_GLOBAL)
    sys.path.append(str(prepare.folder() / "site"))
    import pycuda.driver

    pycuda.driver.init()
    return pycuda.driver


@pytest.fixture
def allocations():
    """What the driver holds: bytes on the device, page-locked blocks, streams, users of the primary context."""
    library = ctypes.CDLL(str(prepare.library()))

    def read_allocations():
        numbers = (ctypes.c_size_t * 4)()
        library.stand_in_held(numbers)
        return tuple(numbers)

    return read_allocations


@pytest.fixture
def bindings(trt, cuda, monkeypatch):
    """NVIDIA's bindings, with execution on the stand-in for the driver by ONNX Runtime."""
    pytest.importorskip("onnx", reason="networks are exported with the package onnx")
    pytest.importorskip("onnxruntime", reason="it computes in the place of a GPU's kernels")
    from tests.execute.engines.driver.execution import Bindings, DriverMemory

    # TensorRT-RTX counts its releases from 1 on
    monkeypatch.setattr(tensor_rt, "OLDEST", (1,))
    return Bindings(trt, DriverMemory(str(prepare.library())))


@pytest.fixture
def backend(bindings, monkeypatch):
    """TensorRT as the one engine, with buffers by pycuda."""
    made = driven(bindings)
    monkeypatch.setattr(table, "BACKENDS", (made,))
    return made


def driven(bindings, precision: str = "fp32", **more):
    """The product's TensorRT over stand-ins."""

    class Driven(TensorRT):
        distributions = ("tensorrt-rtx-cu12-bindings",)

    return Driven(precision, "pycuda", lambda: bindings, **more)
