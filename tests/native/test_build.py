"""What a machine needs for the virtual device, and what the build reads off torch."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import subprocess
import sys
import sysconfig
import time
from typing import List

import pytest
import torch

from edge_offload import checkup, cli
from edge_offload.device import installation
from edge_offload.errors import BadInput
from edge_offload.native import libraries, recipe, torch_facts
from edge_offload.native.libraries import GROUPS
from edge_offload.native.loader import Library
from edge_offload.native.progress import Progress

#: How torch's headers say which C++ they want: up to 2.13, 2.14, and from 2.15 on.
OLD = "#if !defined(_MSC_VER) && __cplusplus < 201703L"
YOUNG = "#if !defined(_MSC_VER) && __cplusplus < 202002L"
NEWEST = "// MSVC keeps __cplusplus at 199711L\n#if (!defined(_MSVC_LANG) && __cplusplus < 202002L)"


def test_the_string_abi_is_that_of_torch() -> None:
    assert torch_facts.cxx11_abi() == torch._C._GLIBCXX_USE_CXX11_ABI


def test_the_version_is_read_without_importing_torch() -> None:
    assert torch_facts.torch_version() == torch.__version__


@pytest.mark.parametrize("choice", ["", "native"])
def test_the_choice_of_former_releases_is_accepted(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv(installation.CHOICE, choice)
    installation.check_choice()


@pytest.mark.parametrize("choice", ["python", "rust"])
def test_another_device_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv(installation.CHOICE, choice)
    with pytest.raises(BadInput, match=choice) as caught:
        installation.check_choice()
    assert "unset EDGE_OFFLOAD_DEVICE" in str(caught.value)
    assert "apt install g++" in str(caught.value)


COUNTED = "\redge_offload: building … "


@pytest.fixture
def headers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The include folder of a made-up torch with headers of a few lines, and an empty cache."""
    include = tmp_path / "torch" / "include"
    for name, text in (("ATen/ATen.h", OLD), ("ATen/core/Tensor.h", "namespace at {}\n"), ("torch/library.h", "\n")):
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text(text)
    (include.parent / "version.py").write_text("__version__ = '2.99.0'\n")
    (include.parent / "lib").mkdir()
    (include.parent / "lib" / "libc10.so").write_bytes(b"_ZN3c108demangleB5cxx11EPKc")
    included = ("Python.h", "ATen/core/Tensor.h", "torch/library.h")
    (tmp_path / "small.cpp").write_text("".join(f"#include <{name}>\n" for name in included))
    for name in ("GUARD", "DEVICE"):
        small = dataclasses.replace(getattr(libraries, name), source=tmp_path / "small.cpp")
        monkeypatch.setattr(libraries, name, small)
    monkeypatch.setattr(torch_facts, "torch_directory", lambda: include.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EDGE_OFFLOAD_CACHE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    if recipe.compiler() is None:
        pytest.skip("no C++ compiler")
    return include


def compiler(folder: pathlib.Path, script: str) -> str:
    """A compiler made of shell."""
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "standard_of_text"), [(OLD, "c++17"), (YOUNG, "c++20"), (NEWEST, "c++20"), ("", "c++17")]
)
def test_torch_names_its_cxx_standard(headers: pathlib.Path, text: str, standard_of_text: str) -> None:
    (headers / "ATen" / "ATen.h").write_text(text)
    assert torch_facts.standard(headers) == standard_of_text
    assert f"-std={standard_of_text}" in torch_facts.compile_flags(headers)


@pytest.mark.process
def test_headers_that_want_cxx20_are_compiled_so(headers: pathlib.Path) -> None:
    (headers / "ATen" / "core" / "Tensor.h").write_text("template <class T> requires true void f();\n")
    wrong = libraries.DEVICE.problem()
    assert wrong is not None, "C++17 knows no 'requires'"
    assert "requires" in wrong.cause
    assert wrong.remedy
    (headers / "ATen" / "ATen.h").write_text(YOUNG)
    assert libraries.DEVICE.problem() is None


def test_a_test_compile_that_worked_is_remembered(headers: pathlib.Path) -> None:
    assert libraries.DEVICE.problem() is None
    (headers / "torch" / "library.h").unlink()
    assert libraries.DEVICE.problem() is None


@pytest.mark.parametrize(
    ("version", "remedy"),
    [("1.13.1", "'torch>=2.0.1'"), ("2.99.0", f"'torch<={torch_facts.NEWEST}'"), ("2.1.0a0+41361538.nv23.06", "CXX")],
)
def test_sources_that_do_not_compile_name_a_torch_that_is_tested(
    headers: pathlib.Path, version: str, remedy: str
) -> None:
    (headers.parent / "version.py").write_text(f"__version__ = {version!r}\n")
    libraries.DEVICE.source.write_text("int f() { return nothing; }\n")
    (finding,) = checkup._virtual_device()
    assert finding.level == "warn"
    assert "nothing" in finding.detail
    assert remedy in finding.remedy


def test_a_compiler_that_is_too_old_is_named_by_doctor(
    headers: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (headers / "ATen" / "ATen.h").write_text(YOUNG)
    old = """case "$*" in *--version*) echo "g++ 7.5.0"; exit;; esac
    echo "g++: error: unrecognized command line option '-std=c++20'" >&2; exit 1"""
    monkeypatch.setenv("CXX", compiler(tmp_path, old))
    (finding,) = checkup._virtual_device()
    assert finding.level == "warn"
    assert "C++20" in finding.detail
    assert "g++ 7.5.0" in finding.detail
    assert "torch<2.14" in finding.remedy


@pytest.mark.process
def test_missing_headers_of_python_are_named_by_doctor(
    headers: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path / "nowhere"))
    (finding,) = checkup._virtual_device()
    assert finding.level == "warn"
    assert "Python.h" in finding.detail
    assert "python3-dev" in finding.remedy


@pytest.mark.process
def test_doctor_that_is_to_build_fails_when_it_cannot(
    headers: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "echo 'x.h: error: disk on fire' >&2; exit 1"))
    assert cli.main(["doctor", "--build", "--keys", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("missing") and "built" in line]
    assert len(lines) == 2, out
    assert all("disk on fire" in line and "->" in line for line in lines), lines


@pytest.mark.process
def test_a_build_is_announced_at_once_and_a_cached_one_is_not(tmp_path: pathlib.Path) -> None:
    made = """while [ $# -gt 0 ]; do [ "$1" != -o ] || echo made > "$2"; shift; done"""
    environment = {**os.environ, "CXX": compiler(tmp_path, made), "EDGE_OFFLOAD_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "edge_offload.native", "runner"]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment) for _ in range(2)
    )
    notices = first.stderr.splitlines()
    assert len(notices) == 2
    assert "once" in notices[0]
    assert first.stdout.strip() in notices[0]  # where it is kept
    assert "built in" in notices[1]
    assert second.stderr == ""
    assert second.stdout == first.stdout


@pytest.mark.process
@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_build_goes_on_telling_the_time_on_a_terminal_only(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    with Progress("something", pathlib.Path("/there"), stream, every_s=0.01):
        ends = time.monotonic() + (30.0 if terminal else 0.1)
        while time.monotonic() < ends and stream.getvalue().count(COUNTED) < 2:
            time.sleep(0.01)
    assert (stream.getvalue().count(COUNTED) > 1) == terminal
    assert stream.getvalue().splitlines()[-1].endswith(" s")


@pytest.mark.process
@pytest.mark.parametrize(("options", "status", "lines"), [(["--warn"], 0, 1), ([], 1, len(GROUPS))])
def test_without_a_compiler_the_catkin_build_gets_one_line_of_warning(
    tmp_path: pathlib.Path, options: List[str], status: int, lines: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    environment.update(PATH=str(tmp_path), EDGE_OFFLOAD_CACHE=str(tmp_path))
    command = [sys.executable, "-m", "edge_offload.native", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == status
    assert len(done.stderr.splitlines()) == lines
    assert "apt install g" in done.stderr
    assert "virtual GPU" in done.stderr


def test_a_library_is_rebuilt_when_a_header_that_its_headers_include_changes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("a.cpp", '#include "b.h"\n'), ("b.h", '#include "c.h"\n'), ("c.h", ""), ("d.h", "")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path / "cache"))
    made = recipe.Recipe("small", "a small library", tmp_path / "a.cpp", extension=False)
    if recipe.compiler() is None:
        pytest.skip("no C++ compiler")
    first = made.build()
    (tmp_path / "d.h").write_text("int d;\n")
    assert made.path() == first
    (tmp_path / "c.h").write_text("int c;\n")
    assert made.path() != first
    assert made.built() is None


@pytest.mark.process
def test_a_build_in_the_background_ends_when_it_is_stopped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path / "cache"))
    slow = f"case $1 in --version) exit;; esac\ntouch {tmp_path}/began; exec sleep 100"
    monkeypatch.setenv("CXX", compiler(tmp_path, slow))
    (tmp_path / "a.cpp").write_text("")
    library = Library(recipe.Recipe("small", "a small library", tmp_path / "a.cpp"))
    library.start()
    ends = time.monotonic() + 20.0
    while not (tmp_path / "began").exists() and time.monotonic() < ends:
        time.sleep(0.01)
    library.stop()
    assert time.monotonic() < ends
    assert library.look() is None
    assert "stopped" in library.why_not
    assert [path.name for path in (tmp_path / "cache" / "native").iterdir()] == ["small.lock"]
