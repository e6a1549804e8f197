"""scripts/setup where the CPU build of torch cannot be had: the plain build, and its size before it starts."""

from __future__ import annotations

import configparser
import importlib.machinery
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types
from typing import Any, List, Tuple

import pytest

from edge_offload.beside import FOLDERS, LIBRARIES

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Stands for the venv's Python: has no torch and knows no CPU build; all goes well up to the package itself.
PYTHON = """case "$*" in
*"import torch"*) exit 1;;
*sys.version_info*) echo 2.13.0;;
*pip*) echo "$*" >> "$CALLS"; case "$*" in *+cpu*|*"-e ."*) exit 1;; esac;;
esac"""


def put(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def set_up(folder: pathlib.Path, uv: str, code: int = 1) -> Tuple[str, List[str]]:
    """What a set-up that ends with ``code`` says, and which installations it tries, where uv is ``uv``."""
    root = folder / "clone"
    put(root / ".venv" / "bin" / "python3", PYTHON)
    put(root / ".venv" / "bin" / "uv", f'echo "uv $*" >> "$CALLS"; {uv}')
    (root / "scripts").mkdir(exist_ok=True)
    for name in ("scripts/setup", "setup.cfg", "setup.py", "constraints.txt", "CMakeLists.txt"):
        shutil.copy2(ROOT / name, root / name)
    put(folder / "bin" / "dpkg-query", "echo installed")
    put(folder / "bin" / "nvidia-smi", "exit 1")
    calls = folder / "calls"
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls)}
    command = ["bash", str(root / "scripts" / "setup"), "--model", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == code, done.stderr
    return done.stdout, calls.read_text().splitlines()


def test_without_the_cpu_build_it_falls_back_to_the_plain_one_and_prints_its_size_first(tmp_path: pathlib.Path) -> None:
    output, calls = set_up(tmp_path, "echo 'dns error' >&2; exit 2")
    assert "3 GB to download" in output
    tried = [call for call in calls if "torch==2.13.0" in call]
    assert len(tried) == 3, calls
    assert "+cpu" in tried[0]
    assert tried[1].startswith("uv ")
    assert "+cpu" not in tried[2]


def test_with_the_cpu_build_from_its_publisher_nothing_larger_is_fetched(tmp_path: pathlib.Path) -> None:
    output, calls = set_up(tmp_path, "exit 0")
    assert "GB" not in output
    assert [call.startswith("uv ") for call in calls if "torch==2.13.0" in call] == [False, True]


def test_with_ros_numpy_is_1_and_elsewhere_it_may_be_2(tmp_path: pathlib.Path) -> None:
    """The distribution's cv_bridge, with which nodes may share a Python, is built against numpy 1."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "numpy==" in line]
    # no distribution has ROS 1 for Python 3.13
    pins = [line.split(";")[0] for line in lines if '>= "3.13"' not in line]
    assert pins
    assert all(pin.startswith("numpy==1.") for pin in pins), pins
    _, calls = set_up(tmp_path, "exit 2")
    installing = [call for call in calls if "-m pip" in call and " uv" not in call]
    assert [call for call in installing if "numpy" in call or "-e ." in call]
    assert all("constraints.txt" in call for call in installing if "--no-deps" not in call), installing
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    (numpy,) = [line for line in settings["options"]["install_requires"].split() if line.startswith("numpy")]
    assert "<" not in numpy


def test_the_extra_for_tests_has_the_needs_of_benches_and_training() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    installed = settings["options.extras_require"]["test"]
    for package, distribution in LIBRARIES.items():
        (line,) = [line for line in installed.splitlines() if line.startswith(package)]
        settings.read(ROOT / FOLDERS[distribution] / "setup.cfg")
        assert line in settings["options"]["install_requires"].splitlines(), "the same bounds"


def test_a_long_build_reports_progress(tmp_path: pathlib.Path) -> None:
    (tmp_path / "clone").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "clone" / ".venv").symlink_to(tmp_path / "other")
    put(tmp_path / "bin" / "cmake", "mkdir -p build; touch build/Makefile")
    put(tmp_path / "bin" / "make", "echo '[ 50%] Built target a'; echo oh no; exit 2")
    (tmp_path / "calls").touch()
    output, _ = set_up(tmp_path, "exit 0")
    assert output.rstrip().endswith("some minutes the first time …"), "make's failure ends it, as set_up has seen"
    log = tmp_path / "clone" / "build" / "setup-make.log"
    assert log.read_text().splitlines() == ["[ 50%] Built target a", "oh no"]
    script = f"source <(sed -n '/^percent()/,/^}}/p' {ROOT / 'scripts' / 'setup'}); percent 0"
    lines = "[  0%] Generating\nScanning\n[ 42%] Built target b\n[100%] Built target c\n"
    shown = subprocess.run(["bash", "-c", script], input=lines, capture_output=True, text=True, check=True).stdout
    assert shown == "0 % … 42 % … 100 % … "


def test_nothing_is_rebuilt_unless_a_source_has_changed(tmp_path: pathlib.Path) -> None:
    """It is part of every start of scripts/run, whose page is to be there within seconds."""
    root = tmp_path / "clone"
    root.mkdir()
    (tmp_path / "other").mkdir()
    (root / ".venv").symlink_to(tmp_path / "other")
    for folder in ("env-hooks", "src/edge_offload_msgs", "src/edge_offload/native"):
        (root / folder).mkdir(parents=True)
    put(tmp_path / "bin" / "cmake", "mkdir -p build; touch build/Makefile")
    put(tmp_path / "bin" / "make", 'echo make >> "$CALLS"; mkdir -p devel; touch devel/setup.bash')
    (tmp_path / "calls").touch()
    (root / "package.xml").touch()
    output, calls = set_up(tmp_path, "exit 0", 0)
    assert ("some minutes" in output, calls) == (True, ["make"])
    output, calls = set_up(tmp_path, "exit 0", 0)
    assert ("some minutes" in output, calls) == (False, ["make"])
    (root / "src" / "edge_offload_msgs" / "New.msg").touch()
    assert set_up(tmp_path, "exit 0", 0)[1] == ["make", "make"]


def test_a_linked_venv_of_another_checkout_is_preserved(tmp_path: pathlib.Path) -> None:
    (tmp_path / "clone").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "clone" / ".venv").symlink_to(tmp_path / "other")
    put(tmp_path / "bin" / "cmake", "exit 1")
    (tmp_path / "calls").touch()
    output, calls = set_up(tmp_path, "exit 0")
    assert f"keeping what is in {tmp_path / 'other'}" in output
    assert not calls


def test_the_version_matrix_names_missing_pythons(tmp_path: pathlib.Path) -> None:
    command = [str(ROOT / "scripts" / "version-matrix"), "--folder", str(tmp_path)]
    done = subprocess.run([*command, "3.99:2.4.1"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "skip" in done.stdout
    assert "no python3.99" in done.stdout
    wrong = subprocess.run([*command, "2.4.1"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert "PYTHON:TORCH" in wrong.stderr


def test_an_older_python_is_refused_in_one_line_before_anything_is_built() -> None:
    """Emulated: this Python says that it is 3.6."""
    code = "import runpy, sys; sys.version_info = (3, 6, 15); sys.argv = ['setup.py', 'egg_info']; "
    command = [sys.executable, "-c", f"{code}runpy.run_path('setup.py')"]
    environment = {**os.environ, "PEP517_BUILD_BACKEND": "setuptools.build_meta"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "edge_offload needs Python 3.8 or newer, and this is 3.6; JetPack 5 has it\n"


def load_version_matrix() -> types.ModuleType:
    loader = importlib.machinery.SourceFileLoader("version_matrix", str(ROOT / "scripts" / "version-matrix"))
    matrix = types.ModuleType("version_matrix")
    matrix.__file__ = loader.path
    loader.exec_module(matrix)
    return matrix


def test_the_version_matrix_counts_tests_and_compares_programs_with_the_plain_cpu() -> None:
    matrix = load_version_matrix()
    assert (
        matrix.count_tests(matrix.Done(0, "....\n7 passed, 2 skipped, 1 warning in 3.2s\n", ""))
        == "7 passed, 2 skipped"
    )
    assert matrix.count_tests(matrix.Done(1, "F\n1 failed, 2 errors in 3s\n", "")) == "FAILED: 1 failed, 2 errors"
    assert matrix.count_tests(matrix.Done(4, "", "no pytest")).startswith("FAILED: exit code 4: no pytest")
    good = {"program": "plain/a", "plain_error": 0.0, "modes": {"lazy": {"verdict": "passed", "reason": ""}}}
    assert matrix.judge_programs([good]) == "same bits of 1"
    off = {**good, "plain_error": 1e-7}
    refused = {**good, "modes": {"split": {"verdict": "refused", "reason": "no split"}}}
    words = matrix.judge_programs([good, off, refused])
    assert words == "FAILED: plain/a is 1e-07 from the plain CPU; plain/a split: refused no split"


def test_an_emulated_robot_runs_the_tests_of_robots_in_a_copy_that_its_root_sees(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = load_version_matrix()
    checkout, root = tmp_path / "checkout", tmp_path / "root"
    checkout.mkdir()
    (checkout / "setup.cfg").write_text("[options.extras_require]\ntest =\n    pytest\n")
    (checkout / "constraints.txt").write_text("")
    (root / "matrix").mkdir(parents=True)
    monkeypatch.setattr(matrix, "ROOT", checkout)
    calls: List[Any] = []

    def run(*command: str, **more: Any) -> Any:
        calls.append((command, more))
        return matrix.Done(0, "5 passed in 1s\n", "")

    robot = matrix.Machine(root / "matrix", root, emulated=True)
    monkeypatch.setattr(robot, "run", run)
    outcome = matrix.check_tests(matrix.Side(robot, "3.11:2.9.1"))
    folders = matrix.TESTS_OF_ROBOTS
    assert {"tests/link", "tests/device", "tests/native", "tests/protocol"} <= set(folders)
    assert outcome == {"unit tests": f"5 passed of {', '.join(folders)}"}
    command, more = calls[-1]
    assert command[-len(folders) :] == folders
    assert robot.inside(more["cwd"]).startswith("/matrix/")
    assert all(path.startswith("/matrix/") for path in more["PYTHONPATH"].split(os.pathsep))


def test_the_version_matrix_runs_tests_of_engines_on_this_system_alone(tmp_path: pathlib.Path) -> None:
    command = [str(ROOT / "scripts" / "version-matrix"), "--folder", str(tmp_path), "--engines", "--root", "focal"]
    done = subprocess.run([*command, "3.99:2.4.1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "leave --arch and --root out" in done.stderr


DETAIL = "of programs (exec): local, lazy; of nodes and OffloadedModule: local, server, split (traced by make_fx)"
WORKS = {"exec local": "same bits", "exec lazy": "same bits", "module server": "same bits", "module split": "same bits"}


@pytest.mark.parametrize(
    ("more", "level", "message"),
    [
        ({}, "ok", "names what works"),
        ({"module split": "FAILED: 0 frames"}, "ok", "FAILED: it names module split, which fails"),
        ({"exec replay": "same bits"}, "ok", "FAILED: it does not name exec replay, which works"),
        ({"exec replay": "FAILED: exit code 1", "module replay": "FAILED: 0 frames"}, "ok", "names what works"),
        ({}, "missing", "FAILED: missing modes"),
    ],
)  # fmt: skip
def test_a_row_fails_unless_doctor_names_exactly_the_modes_that_work(more, level, message):
    matrix = load_version_matrix()
    report = json.dumps({"findings": [{"level": level, "what": "modes", "detail": DETAIL, "remedy": ""}]})
    assert matrix.compare_doctor(matrix.Done(0, report, ""), {**WORKS, **more}).startswith(message)
    assert matrix.compare_doctor(matrix.Done(1, "", "no torch"), WORKS) == "FAILED: exit code 1: no torch"


@pytest.mark.parametrize("torches", ["", "torch 2.1.0 on the robot, 2.15.0 on the server"])
def test_a_row_of_two_torches_fails_unless_its_module_notifies_of_the_other_one(torches):
    matrix = load_version_matrix()
    result = {"frames": 20, "worst": 1e-7, "reason": None, "bytes_up": 9, "torches": torches}
    done = matrix.Done(0, json.dumps(result), "")
    assert matrix.judge("replay", done, bool(torches)) == "1.0e-07 of the range"
    assert matrix.judge("replay", done, not torches) == matrix.UNNOTIFIED


@pytest.mark.parametrize(
    ("bytes_up", "robot_s", "message"),
    [
        (9, 0.1, "1.0e-13 of the range"),
        (0, 0.1, "FAILED: 1.0e-13 of the range, but nothing was sent"),
        (9, 0.0, "FAILED: 1.0e-13 of the range, but nothing was computed on the robot"),
    ],
)  # fmt: skip
def test_a_row_fails_unless_its_split_computes_on_both_sides(bytes_up: int, robot_s: float, message: str) -> None:
    matrix = load_version_matrix()
    result = {"frames": 20, "worst": 1e-13, "reason": None, "bytes_up": bytes_up, "robot_s": robot_s, "torches": ""}
    assert matrix.judge("split", matrix.Done(0, json.dumps(result), ""), False) == message


@pytest.mark.parametrize("script", ["clean-room", "version-matrix"])
def test_scripts_of_a_checkout_start_with_the_python_that_any_machine_has(script, tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-I", str(ROOT / "scripts" / script), "--help"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
