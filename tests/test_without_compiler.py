"""A machine without a C++ compiler: what needs none works, and what needs one says so in a line at the start."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).parents[1]
#: Results of modes server and split of nodes, and every codec, against the local ones.
NEEDS_NONE = (
    "tests/server/test_server_mode.py::test_random_networks_are_bit_equal_to_local",
    "tests/modes/split/test_runtime.py::test_random_plans_give_the_references_bits_and_the_networks_results",
    "tests/link/codecs/test_round_trip.py",
)


def run_without_compiler(folder: pathlib.Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with an empty PATH and nothing built before."""
    (folder / "bin").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC", "EDGE_OFFLOAD_CACHE")}
    environment.update(PATH=str(folder / "bin"), XDG_CACHE_HOME=str(folder / "cache"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=280, check=False, env=environment, cwd=ROOT
    )


@pytest.mark.parametrize("mode", ["replay", "local"])
def test_the_virtual_device_is_refused_at_the_start(tmp_path: pathlib.Path, mode: str) -> None:
    command = ("-m", "edge_offload.cli", "exec", "--mode", mode, "--", sys.executable, "-c", "print('started')")
    done = run_without_compiler(tmp_path, *command)
    assert done.returncode != 0
    assert "started" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert "C++ compiler" in line
    assert "apt install g++" in line


def test_a_program_that_does_not_need_the_device_starts_with_a_notice(tmp_path: pathlib.Path) -> None:
    program = "import os; print('started', os.environ['EDGE_OFFLOAD_NO_DEVICE'])"
    command = ("-m", "edge_offload.cli", "exec", "--optional", "--absent", "later", "--", sys.executable, "-c", program)
    done = run_without_compiler(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("started ")
    for text in (done.stdout, done.stderr):
        assert "apt install g++" in text


@pytest.mark.slow
def test_server_split_and_codecs_work(tmp_path: pathlib.Path) -> None:
    done = run_without_compiler(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NEEDS_NONE)
    assert done.returncode == 0, done.stdout[-3000:]
