"""Our native sources compile with the headers of the registry's newest torch, of JetPack 5's, 2.1.0, and for aarch64.

The smallest wheel of a release has the same headers as the others. They are kept in the cache, by version.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from typing import Dict, Iterable, List

import pytest

from edge_offload.native.libraries import CPP, DEVICE, GROUPS
from edge_offload.native.recipe import compiler
from edge_offload.native.torch_facts import compile_flags, torch_directory

pytestmark = pytest.mark.process

#: A wheel that brings no CUDA, for a Python that every release has had for long; nothing of it is run.
WHEEL = ["--only-binary", ":all:", "--platform", "macosx_14_0_arm64", "--platform", "macosx_11_0_arm64"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "edge_offload" / "headers"


def pip(*arguments: str) -> str:
    done = subprocess.run([*PIP, *arguments], capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        pytest.skip(f"the package registry cannot be asked: {(done.stderr.splitlines() or ['no words'])[-1][:200]}")
    return done.stdout


@pytest.fixture(scope="module", params=["newest", "2.1.0"])
def include(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The include folder of that torch."""
    if compiler() is None:
        pytest.skip("no C++ compiler")
    version, wheel_for = request.param, [*WHEEL, "--python-version", "3.13" if request.param == "newest" else "3.11"]
    if version == "newest":
        match = re.match(r"torch \(([^)]+)\)", pip("index", "versions", "torch", *wheel_for))
        assert match is not None
        version = match.group(1)
    retained = CACHE / f"torch-{version}"
    if not retained.exists():
        folder = tmp_path_factory.mktemp("wheel")
        pip("download", "--no-deps", "--no-cache-dir", *wheel_for, "-d", str(folder), f"torch=={version}")
        (wheel,) = folder.glob("*.whl")
        retained.parent.mkdir(parents=True, exist_ok=True)
        partial = retained.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial, [name for name in archive.namelist() if name.startswith("torch/include/")])
        wheel.unlink()
        partial.rename(retained)
    return retained / "torch" / "include"


def compile_all(commands: Dict[pathlib.Path, List[str]], folder: pathlib.Path, headers: Iterable[pathlib.Path]) -> None:
    """Compile each source by its command, unless the same sources, compilers and headers did before."""
    digest = hashlib.sha256(repr(sorted(commands.items())).encode())
    for command in {command[0] for command in commands.values()}:
        digest.update(subprocess.run([command, "--version"], capture_output=True, check=True).stdout)
    for path in sorted({*commands, *headers}):
        digest.update(path.read_bytes())
    compiled = folder / f"compiled-{digest.hexdigest()[:16]}"
    if compiled.exists():
        return

    def compile_one(source: pathlib.Path) -> str:
        complete = [*commands[source], "-fsyntax-only", str(source)]
        done = subprocess.run(complete, capture_output=True, text=True, timeout=280, check=False)
        return done.stderr if done.returncode else ""

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        errors = {source.name: text[:3000] for source, text in zip(commands, pool.map(compile_one, commands)) if text}
    assert not errors, errors
    folder.mkdir(parents=True, exist_ok=True)
    compiled.touch()


@pytest.mark.slow
def test_our_sources_compile(include: pathlib.Path) -> None:
    command = [*(compiler() or []), *DEVICE.flags, *compile_flags(include), f"-I{sysconfig.get_path('include')}"]
    commands = {CPP / f"{name}.cpp": command for name in ("device", "nodes", "guard")}
    compile_all(commands, include.parents[1], CPP.iterdir())


@pytest.mark.slow
def test_all_our_sources_compile_for_aarch64() -> None:
    """With the installed torch's headers, which are the same for each processor."""
    compilers = {"C": shutil.which("aarch64-linux-gnu-gcc"), "C++": shutil.which("aarch64-linux-gnu-g++")}
    if None in compilers.values():
        pytest.skip("no compiler for aarch64: apt install g++-aarch64-linux-gnu")
    include, torch = pathlib.Path(sysconfig.get_path("include")), torch_directory() / "include"
    headers, folder = [f"-I{include}"], CACHE / "aarch64"
    host = sysconfig.get_config_var("MULTIARCH") or ""
    if (include.parent / host / include.name).is_dir():
        # Debian's Python.h looks for its settings by the compiler's processor; both are of 64 bits, little-endian
        link = folder / "include" / "aarch64-linux-gnu"
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(include.parent / host)
        headers.append(f"-I{link.parent}")
    commands = {}
    for recipe in (recipe for _, recipes in GROUPS.values() for recipe in recipes):
        flags = compile_flags(torch) if recipe.torch else []
        commands[recipe.source] = [str(compilers[recipe.language]), *recipe.flags, *flags, *headers]
    compile_all(commands, folder, CPP.iterdir())
