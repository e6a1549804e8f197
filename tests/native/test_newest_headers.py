"""Our native sources compile against the headers of the registry's newest torch, and of the one of JetPack 5, 2.1.0.

The smallest wheel of a release has the same headers as the others. They are kept in the cache, by version.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from edge_offload.native.libraries import CPP, DEVICE
from edge_offload.native.recipe import compiler
from edge_offload.native.torch_facts import compile_flags

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
        found = re.match(r"torch \(([^)]+)\)", pip("index", "versions", "torch", *wheel_for))
        assert found is not None
        version = found.group(1)
    kept = CACHE / f"torch-{version}"
    if not kept.exists():
        folder = tmp_path_factory.mktemp("wheel")
        pip("download", "--no-deps", "--no-cache-dir", *wheel_for, "-d", str(folder), f"torch=={version}")
        (wheel,) = folder.glob("*.whl")
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial, [name for name in archive.namelist() if name.startswith("torch/include/")])
        wheel.unlink()
        partial.rename(kept)
    return kept / "torch" / "include"


@pytest.mark.slow
def test_our_sources_compile(include: pathlib.Path) -> None:
    python = f"-I{sysconfig.get_path('include')}"
    command = [*(compiler() or []), *DEVICE.flags, *compile_flags(include), python, "-fsyntax-only"]
    digest = hashlib.sha256(" ".join(command).encode())
    digest.update(subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout)
    for source in sorted(CPP.iterdir()):
        digest.update(source.read_bytes())
    compiled = include.parents[1] / f"compiled-{digest.hexdigest()[:16]}"
    if compiled.exists():
        return  # the same sources, compiler and headers did before

    def said(name: str) -> str:
        whole = [*command, str(CPP / f"{name}.cpp")]
        return subprocess.run(whole, capture_output=True, text=True, timeout=280, check=False).stderr

    names = ("device", "nodes", "guard")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        errors = {name: text for name, text in zip(names, pool.map(said, names)) if "error" in text}
    assert not errors, f"{include}: {errors}"
    compiled.touch()
