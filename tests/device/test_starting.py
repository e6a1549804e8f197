"""What ``edge-offload exec`` starts: a Python that cannot have the device is refused in one line."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from edge_offload.device import starting, visible

SOURCE = pathlib.Path(__file__).parents[2] / "src"
EXEC = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "lazy"]
PROGRAM = "import torch; print('cuda', torch.cuda.is_available(), torch.cuda.device_count())"
#: What exec says by itself on standard error begins so.
LINE = "edge-offload exec: "


def run(*words, options=(), **environment):
    done = subprocess.run(
        [*EXEC, *options, "--", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done, [line for line in done.stderr.splitlines() if line.startswith(LINE)]


@pytest.mark.process
def test_a_program_prints_nothing_extra():
    done, _ = run(sys.executable, "-c", "import torch; print(torch.ones(2, device='cuda').sum().item())")
    assert (done.stdout, done.stderr) == ("2.0\n", "")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("-E x.py", "-E"), ("-I x.py", "-I"), ("-S x.py", "-S"), ("-Bu x.py -E", ""), ("-c pass -I", ""),
        ("-uIc pass", "-I"),
        ("-W ignore -I x.py", "-I"), ("-Wignore x.py -E", ""), ("-X dev -uE x.py", "-E"), ("-m mod -S", ""),
        ("x.py -I", ""),
        ("--check-hash-based-pycs always -E x.py", "-E"), ("- -E", ""), ("", ""),
    ],
)  # fmt: skip
def test_options_of_python_are_read_as_python_reads_them(arguments, option):
    assert starting.ignoring_option(arguments.split()) == option


def test_a_script_of_python_is_python(tmp_path):
    for name, first in (("a", "#!/usr/bin/env python3"), ("b", f"#!{sys.executable} -E"), ("c", "#!/bin/sh")):
        (tmp_path / name).write_text(f"{first}\n")
        (tmp_path / name).chmod(0o755)
    assert starting.python_arguments([str(tmp_path / "a"), "-I"]) == [str(tmp_path / "a"), "-I"]
    assert starting.python_arguments([str(tmp_path / "b")]) == ["-E", str(tmp_path / "b")]
    assert starting.python_arguments([str(tmp_path / "c")]) is None
    assert starting.python_arguments([sys.executable, "x.py"]) == ["x.py"]
    assert starting.python_arguments(["sh", "-c", "python x.py"]) is None


@pytest.mark.process
@pytest.mark.parametrize("option", ["-E", "-I"])
def test_a_python_that_ignores_the_path_is_refused(option):
    done, lines = run(sys.executable, option, "-c", PROGRAM)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(lines) == 1
    assert f"leave {option} out" in lines[0]
    done, lines = run(sys.executable, option, "-c", PROGRAM, options=("--absent", "local"))
    assert (done.returncode, done.stdout) == (0, "cuda False 0\n")
    assert "everything is computed on this machine" in lines[0]


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        ["env", "-u", "PYTHONPATH", sys.executable],
        ["env", "PYTHONPATH=", sys.executable],
        ["env", sys.executable, "-I"],
    ],
)  # fmt: skip
def test_a_wrapper_that_loses_the_device_is_no_success(arguments):
    done, lines = run(*arguments, "-c", PROGRAM)
    assert done.stdout == "cuda False 0\n"
    assert done.returncode == 1
    assert len(lines) == 1
    assert "keep PYTHONPATH" in lines[0]
    done, lines = run(*arguments, "-c", PROGRAM, options=("--absent", "local"))
    assert done.returncode == 0
    assert "everything was computed on this machine" in lines[0]


@pytest.mark.process
def test_a_wrapper_that_keeps_the_device_is_as_the_program_itself():
    done, lines = run("sh", "-c", f'"{sys.executable}" -c "{PROGRAM}"; exit 7')
    assert (done.returncode, done.stdout) == (7, "cuda True 1\n")
    assert not lines


@pytest.mark.process
def test_a_wrapper_whose_python_needs_no_torch_is_notified():
    done, lines = run("sh", "-c", f'"{sys.executable}" -c "print(1)"')
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "nothing was offloaded" in lines[0]


@pytest.mark.process
def test_signals_reach_the_program_behind_a_wrapper():
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print('up', flush=True); time.sleep(60)"  # noqa: E501
    process = subprocess.Popen(
        [*EXEC, "--", "env", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 5


@pytest.fixture
def theirs(tmp_path):
    """A Python with torch (an empty one) and without our package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "torch.py").write_text("print('their torch')\n")
    (packages / "onnxruntime_like.py").write_text("")
    (packages / "jax.py").write_text("")
    return str(tmp_path / "venv" / "bin" / "python")


def start_with_installed_package(tmp_path, *words):
    """``exec`` as where the package is installed: the path of modules is the launcher's own."""
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        f"import sys; sys.path.insert(0, {str(SOURCE)!r})\nfrom edge_offload import cli; sys.exit(cli.main())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(launcher), "exec", "--mode", "lazy", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.process
def test_a_python_without_the_package_gets_the_cause(theirs, tmp_path):
    done = start_with_installed_package(tmp_path, "--", theirs, "-c", "import torch")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.strip().splitlines()
    assert "lacks the package edge_offload" in line
    assert f"start the program with {sys.executable}" in line
    done = start_with_installed_package(tmp_path, "--absent", "local", "--", theirs, "-c", "import torch")
    assert (done.returncode, done.stdout) == (0, "their torch\n")
    assert "everything is computed on this machine" in done.stderr
    done = start_with_installed_package(tmp_path, "--", theirs, "-c", "import jax; print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "jax computes on this machine" in done.stderr


@pytest.mark.process
def test_a_python_without_torch_fails_as_usual(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    done = start_with_installed_package(tmp_path, "--", str(tmp_path / "venv" / "bin" / "python"), "-c", "import torch")
    assert done.stderr.strip().endswith("ModuleNotFoundError: No module named 'torch'")


@pytest.mark.parametrize(
    ("value", "seen"),
    [("", False), ("-1", False), ("-1,0", False), ("none", False), ("NoDevFiles", False),
     ("0", True), ("0,1", True), ("1", True), (" 0", True), ("GPU-8932f937", True), ("MIG-GPU-89", True)],
)  # fmt: skip
def test_cuda_visible_devices_is_read_as_cuda_reads_it(value, seen):
    assert visible.is_visible({visible.VARIABLE: value}) is seen
    assert visible.is_visible({})


def test_an_empty_list_hides_this_machine_only():
    assert visible.is_visible({visible.VARIABLE: "", visible.LOCAL_GPU: visible.HIDDEN})
    assert not visible.is_visible({visible.VARIABLE: "-1", visible.LOCAL_GPU: visible.HIDDEN})


@pytest.mark.process
@pytest.mark.parametrize("value", ["", "-1"])
def test_a_hidden_gpu_is_hidden(value):
    done, lines = run(sys.executable, "-c", PROGRAM, CUDA_VISIBLE_DEVICES=value)
    assert (done.returncode, done.stdout) == (0, "cuda False 0\n")
    assert "nothing is offloaded" in lines[0]


@pytest.mark.process
def test_a_program_hides_the_gpu_from_itself():
    """As many detectors do for ``--device cpu``: before the first question to CUDA it counts, afterwards no more."""
    hide = "import os, torch; os.environ['CUDA_VISIBLE_DEVICES'] = '-1'; "
    done, _ = run(sys.executable, "-c", hide + PROGRAM)
    assert done.stdout == "cuda False 0\n"
    late = "import os, torch; torch.cuda.is_available(); os.environ['CUDA_VISIBLE_DEVICES'] = '-1'; "
    done, _ = run(sys.executable, "-c", late + PROGRAM)
    assert done.stdout == "cuda True 1\n"


@pytest.mark.process
def test_an_empty_list_of_ours_leaves_the_virtual_gpu():
    done, lines = run(sys.executable, "-c", PROGRAM, CUDA_VISIBLE_DEVICES="", EDGE_OFFLOAD_LOCAL_GPU="hidden")
    assert (done.stdout, lines) == ("cuda True 1\n", [])
