"""Unit tests are held to start no process and not to sleep; what other tests leave to be ended is not theirs."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

SESSION = """
import time
import pytest

@pytest.fixture(scope="session")
def master():
    yield
    time.sleep(0.01)
"""
USES = """
import pytest

@pytest.mark.process
def test_with_a_master(master):
    pass
"""
LAST = """
def test_of_something_else():
    pass
"""
SLEEPS = """
import time
import pytest

@pytest.fixture
def slow():
    yield
    time.sleep(0.01)

def test_that_sleeps():
    time.sleep(0.01)

def test_whose_fixture_sleeps(slow):
    pass

def test_after_them():
    pass
"""


def run(folder: pathlib.Path, **files: str) -> str:
    shutil.copy(pathlib.Path(__file__).with_name("conftest.py"), folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    unit: a\n    process: b\n    ros: c\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False, timeout=120).stdout.decode()


def test_a_unit_test_that_happens_to_be_the_last_one_does_not_answer_for_a_fixture_of_the_session(
    tmp_path: pathlib.Path,
) -> None:
    output = run(tmp_path, session=SESSION, test_a=f"from session import master\n{USES}", test_b=LAST)
    assert "2 passed" in output, output
    assert "error" not in output, output


def test_a_unit_test_that_sleeps_or_whose_fixture_does_has_failed(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, test_a=SLEEPS)
    assert "1 failed, 2 passed, 1 error" in output, output
