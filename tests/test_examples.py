"""What lies in examples/ does what it says, as its user would start it: a server that allows it, and a robot."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_as_short_as_readme_claims(path):
    statements = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)]
    texts = [node for node in statements if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    assert len(statements) - len(texts) <= 24, "about 20 lines of code"


@pytest.fixture
def serve(tmp_path):
    """Starts ``edge-offload serve --allow``; returns its host:port, and the environment for its robots."""
    path = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "EDGE_OFFLOAD_KEYS": str(tmp_path / "keys")}
    started = []

    def start(*allowed: str):
        command = [sys.executable, "-m", "edge_offload.cli", "serve", "--bind", "tcp://127.0.0.1:0", "--threads", "1"]
        command += [word for name in allowed for word in ("--allow", name)]
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        ready = re.match(r"listening on tcp://(\S+)", process.stdout.readline())
        assert ready, process.stderr.read()
        return ready[1], environment

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.process
def test_an_offloaded_module_has_equal_results_locally_and_on_the_server(serve):
    address, environment = serve("offloaded_module:make", "own_people:make")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "offloaded_module.py"), address],
        env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    local, remote = done.stdout.splitlines()
    assert local.startswith("local: [1, 4, 59, 79], sum ")
    assert remote.startswith("server: [1, 4, 59, 79], sum ")
    assert local.split()[6] == remote.split()[6], "another sum"


def test_a_users_model_detects_its_objects(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from edge_offload.models.registry import build_estimator

    image = np.zeros((480, 640, 3), dtype=np.uint8)
    image[200:240, 300:340] = 255
    people = build_estimator("own_people:make", size=256).infer(image)
    x0, top, right, bottom = people.boxes[0]
    assert x0 < 320 < right
    assert top < 220 < bottom
    assert people.scores[0] > 0.9


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("typo.mod:f", "No module named 'typo'"),
        ("own_people:mkae", "has no attribute 'mkae'"),
        ("own_people:np", "is a module, which cannot be called"),
        ("own_people", "own_people"),
        ("broken_own:make", "NameError: name 'undefined' is not defined (broken_own.py:1)"),
    ],
)
def test_an_invalid_factory_is_refused_when_the_server_starts(name, cause, monkeypatch, tmp_path, capsys):
    from edge_offload.cli import main
    from edge_offload.models.registry import build_estimator

    (tmp_path / "broken_own.py").write_text("undefined\n")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["serve", "--bind", "tcp://127.0.0.1:0", "--keys", str(tmp_path / "keys"), "--allow", name]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("edge-offload serve: ")
    assert cause in error
    assert "PYTHONPATH" in error
    with pytest.raises(ValueError, match=r"importable here|no model named"):
        build_estimator(name)
