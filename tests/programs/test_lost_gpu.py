"""An executor whose GPU has failed ends; the program and the node that it computed for go on, and are given the cause.

No GPU is tested: one operator of a CPU executor raises what torch raises on a GPU (failing_executor.py).
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import List

import pytest

from edge_offload.native import libraries
from tests.programs.serving import CLI, FOLDER, Serving, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]
CUDNN = ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
ILLEGAL = ("RuntimeError", "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")
CUBLAS_FULL = ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

#: Without a server: its own executor has the launcher that it is given.
LOCAL_PROGRAM = """
import json, sys
from edge_offload.execute import heap
heap.LAUNCHER[:] = json.loads(sys.argv[1])
import torch
from edge_offload.device.installation import current_installation
x = torch.ones(3).cuda()
executor = current_installation().recorder.remote.process
try:
    torch.sort(x)[0].tolist()
except RuntimeError as error:
    print(type(error).__name__, error)
try:
    print((x * 2).tolist())
except RuntimeError as error:
    print("gone")
print(executor.wait(20) if sys.argv[2] == "ends" else executor.poll())
"""

COUNTING = """
import pathlib, sys, torch
state = torch.zeros(2, device="cuda")
for i in range(40):
    if i == 20:
        pathlib.Path(sys.argv[1]).write_text(sys.argv[2])
    state = torch.sort(state + 1)[0]
    print(int(state[0]), flush=True)
"""


def failing(mark: pathlib.Path, kind: str, text: str, operator: str = "aten::sort") -> List[str]:
    return [sys.executable, str(FOLDER / "failing_executor.py"), operator, kind, text, str(mark)]


def run_locally(tmp_path: pathlib.Path, kind: str, text: str, ends: str) -> List[str]:
    mark = tmp_path / "mark"
    mark.touch()
    command = [*CLI, "exec", "--mode", "lazy", "--threads", "1", "--", sys.executable, "-c", LOCAL_PROGRAM]
    done = run([*command, json.dumps(failing(mark, kind, text)), ends])
    assert done.returncode == 0, done.stderr[-3000:]
    lines: List[str] = done.stdout.splitlines()
    return lines


def test_a_failed_gpu_ends_its_executor_and_the_program_is_given_cause_and_remedy(tmp_path: pathlib.Path) -> None:
    kind, text = "AcceleratorError", ILLEGAL[1]  # other classes and texts: tests/execute/test_execute.py
    notice, following, code = run_locally(tmp_path, kind, text, "ends")
    assert f"the GPU failed in aten::sort: {text.splitlines()[0]}" in notice
    assert "start the program again" in notice
    assert (following, code) == ("gone", "1")


def test_a_gpu_without_memory_ends_nothing(tmp_path: pathlib.Path) -> None:
    kind, text = CUBLAS_FULL
    notice, following, code = run_locally(tmp_path, kind, text, "stays")
    assert notice.startswith("OutOfMemoryError")
    assert text in notice
    assert (following, code) == ("[2.0, 2.0, 2.0]", "None")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lazy", "replay"])
def test_a_program_goes_on_in_another_session_of_its_server(tmp_path: pathlib.Path, mode: str) -> None:
    mark = tmp_path / "mark"
    serving = Serving(tmp_path, launcher=failing(mark, *CUDNN))
    command = [*serving.exec("--mode", mode, "--lost", "end"), sys.executable, "-c", COUNTING, str(mark), "once"]
    done = run(command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [str(number) for number in range(1, 41)]
    (notice,) = [line for line in done.stderr.splitlines() if "GPU failed" in line]
    assert "cuDNN error" in notice
    assert "tensors were put on its device" in notice
    assert "the server was restarted" not in notice
    serving.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["once", "always"])
def test_a_program_goes_on_where_an_executor_does_not_start(tmp_path: pathlib.Path, how: str) -> None:
    mark = tmp_path / "mark"
    mark.write_text(how)
    serving = Serving(tmp_path, launcher=failing(mark, "AcceleratorError", "CUDA error: out of memory", "start"))
    program = "import torch; print(torch.ones(3, device='cuda').cumsum(0).tolist())"
    done = run([*serving.exec("--mode", "lazy"), sys.executable, "-c", program])
    assert done.stdout.strip() == "[1.0, 2.0, 3.0]", done.stderr[-3000:]
    assert "CUDA error: out of memory" in done.stderr
    assert ("computed on this machine from here on" in done.stderr) == (how == "always")
    serving.close()


@pytest.mark.slow
def test_an_operator_that_always_fails_ends_the_program_with_one_line(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "mark"
    serving = Serving(tmp_path, launcher=failing(mark, *ILLEGAL))
    command = [*serving.exec("--mode", "lazy", "--lost", "end"), sys.executable, "-c", COUNTING, str(mark), "always"]
    done = run(command)
    assert done.returncode != 0
    assert done.stdout.split() == [str(number) for number in range(1, 21)]
    last = done.stderr.strip().splitlines()[-1]
    assert "the GPU failed in aten::sort: CUDA error: an illegal memory access" in last
    assert "(twice); start the program again" in last
    serving.close()


@pytest.mark.release
@pytest.mark.slow
def test_executors_of_a_gpu_server_compute_on_the_gpu(tmp_path: pathlib.Path) -> None:
    virtual = [*CLI, "exec", "--mode", "local", "--"]
    serving = Serving(tmp_path, device="cuda", launcher=virtual, before=virtual)
    program = "import torch; print(torch.ones(3, device='cuda').cumsum(0).tolist())"
    done = run([*serving.exec("--mode", "lazy"), sys.executable, "-c", program])
    assert done.stdout.strip() == "[1.0, 2.0, 3.0]", done.stderr[-3000:] + serving.log()[-3000:]
    serving.close()


@pytest.mark.slow
def test_a_node_computes_the_frame_itself_and_the_mode_comes_back(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "mark"
    serving = Serving(tmp_path, launcher=failing(mark, *CUDNN, operator="aten::sigmoid"))
    app = [sys.executable, str(FOLDER / "lost_gpu_app.py"), serving.address, str(serving.keys), str(mark)]
    done = run([*serving.exec("--absent", "later", "--mode", "replay"), *app])
    assert done.returncode == 0, done.stderr[-3000:]
    frames = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(right for right, _, _ in frames)
    assert [mode for _, mode, _ in frames] == ["replay", "replay", "replay", "local", "replay", "replay"]
    assert "the GPU failed in aten::sigmoid: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED" in frames[3][2]
    serving.close()
