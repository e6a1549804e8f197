"""Programs as a user writes them, on a server over the encrypted link: same output, and plain words when it fails."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from typing import Any, Iterator

import pytest

from edge_offload.native import libraries
from tests.programs.serving import CLI, FOLDER, Serving, run

needs_compiler = pytest.mark.skipif(
    not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built"
)
pytestmark = [pytest.mark.process, needs_compiler, pytest.mark.slow]
APPS = ("classifier", "detector", "people", "two_models", "scripted")
APP = [sys.executable, str(FOLDER / "run_app.py")]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    libraries.build_device()
    made = Serving(tmp_path_factory.mktemp("serving"))
    yield made
    made.close()


@pytest.mark.parametrize(
    "app", [pytest.param(app, marks=pytest.mark.release if app in ("people", "detector") else ()) for app in APPS]
)
def test_a_program_prints_the_same_on_the_server(serving: Serving, tmp_path: pathlib.Path, app: str) -> None:
    if app in ("classifier", "detector") and importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    local = run([*APP, app])
    assert local.returncode == 0, local.stderr[-3000:]
    remote = run([*serving.exec("--tally", str(tmp_path / "tally.json")), *APP, app])
    assert remote.returncode == 0, remote.stderr[-3000:]
    assert remote.stdout == local.stdout
    assert len(local.stdout.splitlines()) >= 4
    tally = json.loads((tmp_path / "tally.json").read_text())
    assert tally["ops"] > 0
    assert tally["bytes_up"] > 0


def test_weights_are_sent_once(serving: Serving, tmp_path: pathlib.Path) -> None:
    sent = []
    for name in ("first", "second"):
        done = run([*serving.exec("--tally", str(tmp_path / name)), sys.executable, str(FOLDER / "weights_app.py")])
        assert done.returncode == 0, done.stderr[-3000:]
        sent.append(json.loads((tmp_path / name).read_text())["bytes_up"])
    assert sent[0] > 4_000_000
    assert sent[1] < 200_000
    # a server that was restarted, or upgraded, has them too: they are kept by their checksums on its disk
    another = Serving(serving.folder)
    done = run([*another.exec("--tally", str(tmp_path / "restarted")), sys.executable, str(FOLDER / "weights_app.py")])
    another.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "restarted").read_text())["bytes_up"] < 200_000
    damaged = [path for path in serving.blobs.rglob("*") if path.is_file() and path.stat().st_size > 1_000_000]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    done = run([*serving.exec("--tally", str(tmp_path / "third")), sys.executable, str(FOLDER / "weights_app.py")])
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "third").read_text())["bytes_up"] > 4_000_000


def check_output(done: Any, *words: str) -> None:
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_a_server_that_is_absent_is_named(tmp_path: pathlib.Path) -> None:
    command = [*CLI, "exec", "--keys", str(tmp_path), "--wait", "0.5", "--server"]
    check_output(run([*command, "tcp://127.0.0.1:9", "--", *APP, "scripted"]), "127.0.0.1:9", "edge-offload serve")
    check_output(
        run([*command, "tcp://192.0.2.1:9", "--", *APP, "scripted"]), "no key is known", "edge-offload keys trust"
    )
    check_output(run([*command, "gpu", "--", *APP, "scripted"]), "'gpu' is not an address")
    check_output(run([*command[:-1], "--", "no-such-program"]), "cannot run no-such-program")
    script = tmp_path / "script"
    script.write_text("echo 1\n")
    script.chmod(0o755)
    check_output(run([*command[:-1], "--", str(script)]), f"name its interpreter, as in: sh {script}")


def test_an_absent_server_can_be_done_without(tmp_path: pathlib.Path) -> None:
    command = [*CLI, "exec", "--keys", str(tmp_path), "--wait", "0.5", "--absent", "local", "--threads", "1"]
    done = run([*command, "--server", "tcp://127.0.0.1:9", "--", *APP, "scripted"])
    assert done.returncode == 0, done.stderr
    assert "computed on this machine" in done.stderr
    assert done.stdout == run([*APP, "scripted"]).stdout


def test_a_key_that_is_not_trusted_is_refused(serving: Serving, tmp_path: pathlib.Path) -> None:
    """Another user's keys: the server's is not the one that this robot would make for loopback."""
    command = [*CLI, "exec", "--keys", str(tmp_path), "--wait", "5", "--server", serving.address]
    check_output(run([*command, "--", *APP, "scripted"]), serving.address.split("//")[1])


def test_an_operator_that_is_not_run_is_named(serving: Serving) -> None:
    program = "import torch; x = torch.ones(2, device='cuda'); torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)"
    done = run([*serving.exec(), sys.executable, "-c", program])
    assert done.returncode != 0
    assert "NotImplementedError" in done.stderr
    assert "aten::" in done.stderr
