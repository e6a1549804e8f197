"""In a catkin workspace of somebody's own, built and installed by catkin_make, nodes run or say what they lack."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.ros.ros_rig import ROOT

SYSTEM_PYTHON = "/usr/bin/python3"
IGNORED = shutil.ignore_patterns(".git", ".venv", "build", "devel", "install", "runs", "__pycache__", ".*_cache")

pytestmark = [pytest.mark.slow, pytest.mark.ros]


def plain_environment(**more) -> dict:
    """As a shell's in which no workspace was sourced yet."""
    ours = ("PYTHONPATH", "EDGE_OFFLOAD_PYTHON", "ROS_PACKAGE_PATH", "CMAKE_PREFIX_PATH", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    return {**variables, "PATH": f"/usr/bin:/bin:{variables.get('PATH', '')}", **more}


def in_space(space: pathlib.Path, command: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-c", f". '{space}/setup.bash' && {command}"],
        env=plain_environment(**more), cwd=space.parent, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with edge_offload in src/, built and installed while a virtual environment was active."""
    if shutil.which("catkin_make") is None or not os.access(SYSTEM_PYTHON, os.X_OK):
        pytest.skip("no catkin_make here")
    made = tmp_path_factory.mktemp("workspace")
    shutil.copytree(ROOT, made / "src" / "edge_offload", ignore=IGNORED)
    done = subprocess.run(
        ["catkin_make", "-C", made, "install", f"-DPYTHON_EXECUTABLE={SYSTEM_PYTHON}", "-DCATKIN_ENABLE_TESTING=OFF"],
        env=plain_environment(VIRTUAL_ENV=sys.prefix), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return made


def test_under_a_python_without_the_packages_a_node_ends_with_one_line(workspace):
    has_all = "import importlib.util as u, sys; sys.exit(all(map(u.find_spec, ('torch', 'zmq'))))"
    if subprocess.run([SYSTEM_PYTHON, "-c", has_all], check=False).returncode:
        pytest.skip(f"{SYSTEM_PYTHON} has everything")
    setups = {"devel": f"run {workspace}/src/edge_offload/scripts/setup", "install": "run scripts/setup"}
    for space, setup in setups.items():
        done = in_space(workspace / space, "rosrun edge_offload kapao_node", EDGE_OFFLOAD_PYTHON=SYSTEM_PYTHON)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert setup in done.stderr
        assert "export EDGE_OFFLOAD_PYTHON=/path/to/venv/bin/python3" in done.stderr


def test_the_build_finds_the_active_venv_and_nodes_of_the_install_space_run_under_it(workspace):
    done = in_space(
        workspace / "install",
        "echo $EDGE_OFFLOAD_PYTHON && rosrun edge_offload kapao_node --help && "
        "$EDGE_OFFLOAD_PYTHON -c 'import edge_offload; print(edge_offload.__file__)'",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    python, *help_text, package = done.stdout.splitlines()
    assert python == f"{sys.prefix}/bin/python3", "hooks name the venv that was active"
    assert any(line.startswith("kapao_node: detects and tracks people") for line in help_text)
    assert package.startswith(str(workspace / "install")), "its own copy, not that of the checkout"
