"""Collects in ``.gpu`` what the GPU machine lacks: packages, our C++ built for its Python and torch, weights, a video.

The GPU machine is taken to have Python 3.12, torch 2.11.0 for CUDA 13 and common packages, and no network.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import List

from edge_offload import places
from edge_offload_benchmarks.gpu import carried
from edge_offload_benchmarks.gpu.fetching import download_wheels, run, to_mib
from edge_offload_benchmarks.gpu.settings import CARRIED, ROOT

TORCH = "2.11.0"
#: Distributions that the machine lacks.
NEEDED = (
    "pyzmq==27.3.0",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "referencing==0.37.0",
    "rpds-py==2026.9.1",
    "lz4==4.4.5",
    "zstandard==0.25.0",
    "tornado==6.6.1",
    "shtab==1.13.0",
    "expecttest==0.3.0",
    "pytest==9.2.0",
    "pytest-timeout==2.4.0",
    "pytest-xdist==3.8.0",
    "execnet==2.1.2",
    "iniconfig==2.3.0",
    "pluggy==1.6.0",
    "hypothesis==6.170.15",
    "sortedcontainers==2.4.0",
)
#: Files of the user's cache, and how the product fetches them.
FILES = {
    "vtest.avi": ("-c", "from edge_offload.models.video import sample_video; sample_video()"),
    "movenet-multipose.safetensors": ("-m", "edge_offload.cli", "models", "fetch", "movenet"),
}
#: Bytes that ``.gpu`` may have, and that may travel with the working tree.
MOST_CARRIED, MOST_TOGETHER = 45 << 20, 64 << 20


def prepare_folder(torch_python: str, engines: bool) -> int:
    """Fill ``.gpu``; 0 if it is complete and travels with the working tree."""
    problems: List[str] = []
    python = torch_python or str(make_environment())
    for folder in (carried.WHEELS, carried.CACHE, carried.PACKAGES):
        folder.mkdir(parents=True, exist_ok=True)
    download_wheels(python, NEEDED)
    build_libraries(python)
    copy_headers(python)
    problems += copy_files()
    download_allocator()
    if engines:
        from edge_offload_benchmarks.gpu import pieces

        pieces.onnx_runtime(python)
        pieces.build_pycuda(python)
    tree, ours = tree_bytes(), folder_bytes(CARRIED)
    print(
        f"working tree {to_mib(tree)} MiB, .gpu {to_mib(ours)} MiB, "
        f"together {to_mib(tree + ours)} of {to_mib(MOST_TOGETHER)} MiB"
    )
    if ours > MOST_CARRIED:
        problems.append(f".gpu has more than {to_mib(MOST_CARRIED)} MiB; remove .gpu and prepare again")
    if tree + ours > MOST_TOGETHER:
        problems.append("the working tree is too large to travel; remove untracked files")
    for problem in problems:
        print(f"prepare: {problem}", file=sys.stderr)
    return 1 if problems else 0


def make_environment() -> pathlib.Path:
    """A Python 3.12 with the machine's torch in the user's cache, made if need be (a download of 2.6 GB)."""
    folder = places.cache_folder() / "gpu" / "venv"
    python = folder / "bin" / "python"
    if not python.exists():
        interpreter = shutil.which("python3.12")
        if interpreter is None:
            raise SystemExit("prepare: there is no python3.12; install it, or name a Python with --torch-python")
        run(interpreter, "-m", "venv", str(folder))
    check = f"import importlib.metadata as m, sys; sys.exit(m.version('torch') != {TORCH!r})"
    if subprocess.run([str(python), "-c", check], stderr=subprocess.DEVNULL, check=False).returncode:
        run(str(python), "-m", "pip", "install", "-q", f"torch=={TORCH}", "setuptools")
    return python


def build_libraries(python: str) -> None:
    """Build our C++ against the machine's torch, unless the sources are those of the last build."""
    key = carried.source_key()
    if carried.carried_key() == key:
        return
    shutil.rmtree(carried.NATIVE, ignore_errors=True)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
    run(python, "-m", "edge_offload_benchmarks.gpu.build_native", str(carried.NATIVE), PYTHONPATH=path)
    carried.KEY.write_text(key, encoding="utf-8")


def copy_headers(python: str) -> None:
    """Copy Python's headers, for a machine that has none."""
    code = "import sysconfig; print(sysconfig.get_paths()['include'])"
    include = pathlib.Path(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )
    target = CARRIED / "include" / include.name
    if not (target / "Python.h").exists() and (include / "Python.h").exists():
        shutil.copytree(include, target, dirs_exist_ok=True)


def copy_files() -> List[str]:
    """Copy the video and the weights from the user's cache, where the product fetches them; problems."""
    base = places.cache_folder()
    problems = []
    for name, fetch in FILES.items():
        source, target = base / name, carried.CACHE / name
        if not target.exists() and not source.exists():
            subprocess.run([sys.executable, *fetch], cwd=ROOT, check=False)
        if not target.exists() and source.exists():
            shutil.copyfile(source, target)
        if not target.exists():
            problems.append(f"{name} cannot be fetched into {base}; see 'edge-offload doctor'")
    return problems


def download_allocator() -> None:
    """Download jemalloc, on which executors run where it is installed."""
    if list(carried.PACKAGES.glob("*.deb")) or shutil.which("apt-get") is None:
        return
    done = subprocess.run(
        ["apt-get", "download", "-q", "libjemalloc2"], cwd=carried.PACKAGES, capture_output=True, check=False
    )
    if done.returncode:
        print("prepare: libjemalloc2 cannot be downloaded; the machine's own allocator is measured")


def folder_bytes(folder: pathlib.Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def tree_bytes() -> int:
    """Bytes of the files that git tracks or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = {ROOT / name for name in listed.split("\0") if name}
    return sum(path.stat().st_size for path in paths if path.is_file())
