"""The link is cut at every message boundary, the server is killed: effects exactly once, or an error that says so."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any, Iterator

import pytest

from edge_offload.link.sockets.ports import lasting_port
from edge_offload.native import libraries
from tests.programs.serving import HERE, Serving, children, run

needs_compiler = pytest.mark.skipif(
    not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built"
)
pytestmark = [pytest.mark.process, needs_compiler, pytest.mark.slow]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    libraries.build_device()
    made = Serving(tmp_path_factory.mktemp("serving"), "--lease", "60")
    yield made
    made.close()


@pytest.mark.parametrize(("mode", "step"), [("replay", 1), ("lazy", 2), ("per_op", 9)])
def test_a_link_cut_at_any_message_changes_nothing(serving: Serving, mode: str, step: int) -> None:
    app = [sys.executable, str(HERE / "link_kill_app.py"), serving.address, str(serving.keys), mode, str(step)]
    done = run([*serving.exec("--absent", "later"), *app])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert all(found["verdicts"]), found
    assert found["cuts"] >= 4
    assert found["resumed"] >= found["cuts"]
    if mode == "replay":
        assert found["cuts_at_part"] == 3
        assert found["early"] > 0, "no output came before the answer was complete"


PROGRAM = """
import sys, torch
state = torch.zeros(2, device="cuda")
for i in range(100000):
    state += 1
    print(int(state[0]), flush=True)
    if i == 20:
        open(sys.argv[1], "w").close()
"""


def started(serving: Serving, mark: pathlib.Path, *options: str) -> Any:
    command = [*serving.exec(*options), sys.executable, "-c", PROGRAM, str(mark)]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    ends = time.monotonic() + 300
    while not mark.exists():
        assert program.poll() is None, program.communicate()[1]
        assert time.monotonic() < ends
        time.sleep(0.05)
    return program


def counted(out: str) -> None:
    numbers = [int(line) for line in out.split()]
    assert numbers == list(range(1, len(numbers) + 1)), "an effect was lost, or happened twice"


def test_the_death_of_the_server_is_an_error_that_says_so(tmp_path: pathlib.Path) -> None:
    serving = Serving(tmp_path)
    program = started(serving, tmp_path / "mark", "--resume", "1")
    serving.kill()
    out, error = program.communicate(timeout=300)
    assert program.returncode != 0
    assert "LinkLost" in error
    assert "did not come back within 1 s" in error
    assert "exec --resume" in error
    counted(out)
    serving.close()


def test_a_restarted_server_has_forgotten_the_session_and_it_is_said(tmp_path: pathlib.Path) -> None:
    serving = Serving(tmp_path, port=lasting_port())
    program = started(serving, tmp_path / "mark", "--resume", "90")
    serving.kill()
    again = Serving(tmp_path, port=int(serving.address.rsplit(":", 1)[1]))
    out, error = program.communicate(timeout=300)
    assert program.returncode != 0
    assert "was restarted" in error
    assert "start the program again: its weights are on the server's disk" in error
    counted(out)
    again.close()


def test_what_was_only_uploaded_outlives_a_restart_of_the_server_and_what_was_computed_is_said_to_be_gone(
    tmp_path: pathlib.Path,
) -> None:
    serving = Serving(tmp_path, port=lasting_port())
    names = ("weights", "seeded", "statistics", "draws")
    programs = {}
    for name in names:
        command = [*serving.exec("--resume", "120"), sys.executable, str(HERE / "restart_app.py"), name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        programs[name] = subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    for program in programs.values():
        assert program.stdout.readline() == "ready\n", program.communicate()[1]
    serving.kill()
    again = Serving(tmp_path, port=int(serving.address.rsplit(":", 1)[1]))
    done = {name: (*program.communicate("\n", timeout=200), program.returncode) for name, program in programs.items()}
    again.close()
    for name in ("weights", "seeded"):
        out, error, code = done[name]
        assert (out, code) == ("True\n" * 5 + "asked\n", 0), error
        assert "the server was restarted" in error
    for name in ("statistics", "draws"):
        out, error, code = done[name]
        assert (out, code) == ("", 1), name
        assert "LinkLost: the server was restarted" in error, error


def test_an_executor_that_dies_ends_its_own_session_only(serving: Serving, tmp_path: pathlib.Path) -> None:
    first = started(serving, tmp_path / "first")
    (victim,) = [pid for pid, words in children(serving.process.pid).items() if "execute.session.worker" in words]
    second = started(serving, tmp_path / "second")
    os.kill(victim, signal.SIGSEGV)
    out, error = first.communicate(timeout=300)
    assert first.returncode != 0
    assert re.search(r"signal 11, while running (aten|edge)::\w+", error), error[-1500:]
    counted(out)
    time.sleep(0.5)
    assert second.poll() is None, "another session ended with it"
    second.kill()
    counted(second.communicate()[0].rpartition("\n")[0])


def test_two_programs_on_one_server_do_not_see_each_other(serving: Serving, tmp_path: pathlib.Path) -> None:
    programs = [started(serving, tmp_path / name) for name in ("a", "b")]
    time.sleep(1.0)
    for program in programs:
        program.kill()
        told = program.communicate()[0].rpartition("\n")[0]
        assert told, "it did nothing"
        counted(told)
