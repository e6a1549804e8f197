"""Unpacks what ``prepare`` put into ``.gpu``: missing packages, weights, the allocator, entry points."""

from __future__ import annotations

import configparser
import importlib
import importlib.metadata
import importlib.util
import io
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time
from typing import List

from edge_offload_benchmarks.gpu import carried
from edge_offload_benchmarks.gpu.results import Phase
from edge_offload_benchmarks.gpu.settings import ROOT

NEEDED = ("torch", "edge_offload", "zmq", "msgpack", "jsonschema", "lz4", "zstandard")
BIG = ("onnxruntime-gpu", "ray")
#: Entry points as an editable install would have written them: distribution and folder of its setup.cfg.
DISTRIBUTIONS = (
    ("edge_offload", ""),
    ("edge_offload_benchmarks", "benchmarks"),
    ("edge_offload_research", "research"),
)


def run(phase: Phase) -> None:
    """Install, and record whether the packages that are needed can be imported."""
    site = phase.settings.site
    site.mkdir(parents=True, exist_ok=True)
    with phase.guard_errors("wheels"):
        install_wheels(phase)
    if phase.settings.cache:
        cache = pathlib.Path(phase.settings.cache)
        cache.mkdir(parents=True, exist_ok=True)
        for path in carried.CACHE.glob("*"):
            if not (cache / path.name).exists():
                shutil.copyfile(path, cache / path.name)
    if phase.settings.cuda:
        for path in carried.PACKAGES.glob("*.deb"):
            with phase.guard_errors(path.name):
                subprocess.run(["dpkg", "-x", str(path), "/"], check=True)
                subprocess.run(["ldconfig"], check=False)
    for name in BIG:
        with phase.guard_errors(name):
            assemble_pieces(phase, name)
    for name, folder in DISTRIBUTIONS:
        with phase.guard_errors(f"entry points of {name}"):
            entry_points(site / f"{name}-0.dist-info", ROOT / folder / "setup.cfg", name)
    if not phase.settings.tiny:
        check_imports(phase)


def install_wheels(phase: Phase) -> None:
    """Install the carried wheels whose packages are absent and that this Python takes."""
    absent: List[str] = []
    others: List[str] = []
    for path in sorted(carried.WHEELS.glob("*.whl")):
        try:
            importlib.metadata.version(path.name.split("-")[0])
        except importlib.metadata.PackageNotFoundError:
            (absent if fits_python(path.name) else others).append(str(path))
    if absent:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        command += ["--no-cache-dir", "--target", str(phase.settings.site), *absent]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip ended with code {done.returncode}: {done.stderr[-1000:]}")
    phase.record(
        "wheels",
        installed=[pathlib.Path(path).name for path in absent],
        for_other_pythons=[pathlib.Path(path).name for path in others],
    )


def fits_python(name: str) -> bool:
    """Return whether a wheel is for this Python, by its file's name."""
    pythons, abi = name.split("-")[-3].split("."), name.split("-")[-2]
    minors = [int(tag[3:]) for tag in pythons if tag.startswith("cp3") and tag[3:].isdigit()]
    stable = any(minor <= sys.version_info[1] for minor in minors) and "abi3" in abi.split(".")
    return "py3" in pythons or stable or sys.version_info[1] in minors


def assemble_pieces(phase: Phase, name: str) -> None:
    """Put the pieces of a big package together, if they were brought."""
    parts = carried.list_pieces(name, phase.settings.folder)
    if not parts:
        return
    sys.path.insert(0, str(phase.settings.site))
    importlib.invalidate_caches()
    import zstandard

    raw = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw) as stream, tarfile.open(
        fileobj=stream, mode="r|"
    ) as archive:
        archive.extractall(phase.settings.site)
    phase.record(name, pieces=len(parts), MiB=sum(part.stat().st_size for part in parts) >> 20)


def entry_points(folder: pathlib.Path, configuration: pathlib.Path, name: str) -> None:
    """Write a distribution's metadata, by which ``edge-offload`` finds its commands."""
    if importlib.util.find_spec(name) is None:
        raise RuntimeError(f"{name} is not on the path")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
    read = configparser.ConfigParser()
    read.read(configuration)
    groups = read["options.entry_points"].items() if read.has_section("options.entry_points") else ()
    text = "".join(f"[{group}]\n{lines.strip()}\n\n" for group, lines in groups)
    (folder / "entry_points.txt").write_text(text, encoding="utf-8")


def check_imports(phase: Phase) -> None:
    """Import in a new process what the other phases need, and record how long that takes."""
    started_at = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", f"import {', '.join(NEEDED)}"], capture_output=True, text=True, check=False
    )
    facts = {} if done.returncode == 0 else {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:500]}
    phase.record("imports", seconds=time.monotonic() - started_at, **facts)
