"""A wheel with the native libraries in it: what a robot without a compiler installs."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest

from edge_offload.native import libraries

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = "import torch; print('sum', (torch.ones(3).cuda() * 2).sum().item())"

pytestmark = [
    pytest.mark.process,
    pytest.mark.release,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler builds the wheel"),
]


def test_a_robot_without_a_compiler_has_every_mode_with_the_wheel(tmp_path: pathlib.Path) -> None:
    script = [str(ROOT / "scripts" / "wheels"), "--into", str(tmp_path / "dist"), sys.executable]
    subprocess.run(script, check=True, timeout=1800)
    (wheel,) = (tmp_path / "dist").iterdir()
    robot = tmp_path / "robot"
    subprocess.run([sys.executable, "-m", "venv", str(robot)], check=True)
    python = robot / "bin" / "python3"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    # torch and the other dependencies are those of this environment; the wheel's own package comes first
    (packages,) = (robot / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH", "LD_PRELOAD")
    }
    environment.update(PATH=str(robot / "bin"), XDG_CACHE_HOME=str(tmp_path / "cache"), HOME=str(tmp_path / "home"))

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(robot / "bin" / "edge-offload"), *command], capture_output=True, text=True, env=environment,
            cwd=tmp_path, timeout=300, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    report = run("doctor")
    assert "none, and none is needed" in report, report
    assert "of programs (exec): local, per_op, cached, lazy, replay, split" in report, report
    assert "sum 6.0" in run("exec", "--mode", "lazy", "--threads", "1", "--", str(python), "-c", PROGRAM)
    assert not list(tmp_path.glob("cache/**/*.so")), "nothing was built"
