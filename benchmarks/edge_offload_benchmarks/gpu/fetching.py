"""Wheels for the GPU machine's Python, and commands that must succeed."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Iterable

from edge_offload_benchmarks.gpu import carried
from edge_offload_benchmarks.gpu.settings import ROOT

PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 38, 37, 36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
]


def to_mib(count: int) -> str:
    """Bytes in MiB."""
    return f"{count / 2**20:.1f}"


def run(*command: str, **more: str) -> None:
    """Run a command.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, check=False)
    if done.returncode:
        raise SystemExit(f"prepare: {' '.join(command[:6])} ... ended with code {done.returncode}")


def download_wheels(python: str, requirements: Iterable[str], folder: pathlib.Path = carried.WHEELS) -> None:
    """Download the wheels that are not in the folder, for the machine's Python."""
    absent = []
    for requirement in requirements:
        name, _, version = requirement.partition("==")
        if not list(folder.glob(f"{name.replace('-', '_')}-{version or '*'}-*.whl")):
            absent.append(requirement)
    if absent:
        tags = [
            "--python-version",
            "3.12",
            "--implementation",
            "cp",
            "--abi",
            "cp312",
            "--abi",
            "abi3",
            "--abi",
            "none",
        ]
        tags += [word for name in PLATFORMS for word in ("--platform", name)]
        run(
            python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *tags, "-d", str(folder), *absent
        )
