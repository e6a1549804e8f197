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
from typing import Any, Dict, Iterator, List

import pytest

from edge_offload.native import libraries
from edge_offload_benchmarks.ports import lasting_port
from tests.programs.serving import FOLDER, Serving, executors, run

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


@pytest.mark.parametrize(
    ("mode", "step"),
    [
        ("replay", 1),
        pytest.param("lazy", 2, marks=pytest.mark.release),
        pytest.param("per_op", 9, marks=pytest.mark.release),
    ],
)
def test_a_link_cut_at_any_message_changes_nothing(serving: Serving, mode: str, step: int) -> None:
    app = [sys.executable, str(FOLDER / "link_kill_app.py"), serving.address, str(serving.keys), mode, str(step)]
    done = run([*serving.exec("--absent", "later"), *app])
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert all(outcome["verdicts"]), outcome
    assert outcome["cuts"] >= 4
    assert outcome["resumed"] >= outcome["cuts"]
    if mode == "replay":
        assert outcome["cuts_at_part"] == 3
        assert outcome["early"] > 0, "no output came before the answer was complete"


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


def test_the_death_of_the_server_is_an_explicit_error_on_request(tmp_path: pathlib.Path) -> None:
    serving = Serving(tmp_path)
    program = started(serving, tmp_path / "mark", "--resume", "1", "--lost", "end")
    serving.kill()
    out, error = program.communicate(timeout=300)
    assert program.returncode != 0
    assert "LinkLost" in error
    assert "did not come back within 1 s" in error
    assert "exec --resume" in error
    counted(out)
    serving.close()


def wait_requests(programs: Dict[str, Any]) -> None:
    """Each computes a few times more, and gives what the CPU gives."""
    for name, program in programs.items():
        program.stdin.write("\n")
        program.stdin.flush()
        lines = []
        while "asked\n" not in lines:
            lines.append(program.stdout.readline())
            assert lines[-1], (name, program.communicate()[1])
        assert lines == ["True\n"] * 5 + ["asked\n"], name


def test_a_program_outlives_its_server_and_goes_back_to_the_next_one(tmp_path: pathlib.Path) -> None:
    serving = Serving(tmp_path, port=lasting_port())
    programs = {}
    for name in ("seeded", "statistics", "draws", "lost"):
        command = [*serving.exec("--resume", "1"), sys.executable, str(FOLDER / "restart_app.py"), name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        programs[name] = subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    for program in programs.values():
        assert program.stdout.readline() == "ready\n", program.communicate()[1]
    lost = programs.pop("lost")
    serving.kill()
    wait_requests(programs)
    out, error = lost.communicate("\n", timeout=200)
    assert (out, lost.returncode) == ("", 1)
    assert "LinkLost: no connection to" in error
    assert "as far as it was computed there" in error
    restarted = Serving(tmp_path, port=int(serving.address.rsplit(":", 1)[1]))
    time.sleep(8.0)  # they ask after 5 s
    wait_requests(programs)
    restarted.kill()  # and once more
    wait_requests(programs)
    for name, program in programs.items():
        _, error = program.communicate(timeout=100)
        notices = re.findall(r"edge_offload: .*(on this machine from here on|the server is back)", error)
        assert notices == ["on this machine from here on", "the server is back", "on this machine from here on"], name
    restarted.close()


@pytest.mark.release
def test_a_program_goes_on_with_its_other_server(tmp_path: pathlib.Path) -> None:
    servers = [Serving(tmp_path), Serving(tmp_path)]
    app = [sys.executable, str(FOLDER / "restart_app.py"), "seeded"]
    command = [*servers[0].exec("--server", ",".join(each.address for each in servers), "--lost", "end"), *app]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n", program.communicate()[1]
    first = next(each for each in servers if executors(each.process.pid))
    first.kill()
    wait_requests({"seeded": program})
    _, error = program.communicate(timeout=100)
    assert program.returncode == 0, error
    assert "tensors were put on its device" in error
    for each in servers:
        each.close()


def test_a_restarted_server_is_restored_to_the_programs_state(tmp_path: pathlib.Path) -> None:
    serving = Serving(tmp_path, port=lasting_port())
    program = started(serving, tmp_path / "mark", "--resume", "90", "--lost", "end")
    serving.kill()
    restarted = Serving(tmp_path, port=int(serving.address.rsplit(":", 1)[1]))
    notices: List[str] = []
    while len(notices) < 500:
        notices.append(program.stdout.readline())
        assert notices[-1], program.communicate()[1]
    program.kill()
    out, error = program.communicate()
    assert "the server was restarted: 1 tensors were put on its device" in error
    counted("".join(notices) + out.rpartition("\n")[0])
    restarted.close()


def test_an_executor_that_dies_ends_only_its_session(serving: Serving, tmp_path: pathlib.Path) -> None:
    first = started(serving, tmp_path / "first")
    (victim,) = executors(serving.process.pid)
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


@pytest.mark.release
def test_two_programs_on_one_server_do_not_see_each_other(serving: Serving, tmp_path: pathlib.Path) -> None:
    programs = [started(serving, tmp_path / name) for name in ("a", "b")]
    time.sleep(1.0)
    for program in programs:
        program.kill()
        notices = program.communicate()[0].rpartition("\n")[0]
        assert notices, "it did nothing"
        counted(notices)
