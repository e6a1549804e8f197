"""A program on the virtual device that uses TensorRT or pycuda by itself is told so by name; our executor is exempt."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edge_offload.execute.heap import executor_environment
from tests.execute.engines.driver import prepare


@pytest.fixture
def environment(trt, cuda):
    variables = {**os.environ, "LD_LIBRARY_PATH": str(prepare.folder())}
    variables["PYTHONPATH"] = os.pathsep.join([variables.get("PYTHONPATH", ""), str(prepare.folder() / "site")])
    del variables["EDGE_OFFLOAD_CACHE"]  # native libraries are where they always are
    return variables


def run(code, environment, *before):
    command = [*before, sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


EXEC = (sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import pycuda.autoinit", "pycuda._driver.Device.make_context"),
        (
            "import pycuda.driver as cuda; cuda.init(); cuda.Device(0).retain_primary_context()",
            "pycuda._driver.Device.retain_primary_context",
        ),
        (
            "import torch; assert torch.ones(2).cuda().is_cuda; import tensorrt_rtx_bindings as trt; "
            "trt.ICudaEngine.create_execution_context(None)",
            "tensorrt_rtx_bindings.ICudaEngine.create_execution_context",
        ),
    ],
)
def test_it_is_refused_by_name_when_it_makes_a_context(code, name, environment):
    done = run(code, environment, *EXEC)
    assert done.returncode == 1, done.stderr
    assert f"{name} is not there on the virtual device" in done.stderr.splitlines()[-1]


def test_a_program_without_a_context_is_untouched(environment):
    code = "import pycuda.driver, tensorrt_rtx_bindings, torch; print(torch.ones(2).cuda().sum().item())"
    done = run(code, environment, *EXEC)
    assert (done.returncode, done.stdout.strip()) == (0, "2.0"), done.stderr


def test_the_executor_of_such_a_program_may_use_the_gpu(environment):
    command = (
        "import os, subprocess, sys; from edge_offload.execute.heap import executor_environment; "
        "code = 'import pycuda.autoinit; print(pycuda.autoinit.context.get_device().name())'; "
        "sys.exit(subprocess.run([sys.executable, '-c', code], env=executor_environment(os.environ)).returncode)"
    )
    done = run(command, environment, *EXEC)
    assert (done.returncode, done.stdout.strip()) == (0, "no GPU (stand-in for the driver)"), done.stderr
    assert executor_environment({"EDGE_OFFLOAD_EXEC_MODE": "local"}).get("EDGE_OFFLOAD_EXEC_MODE") is None
