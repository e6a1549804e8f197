"""Peers by pinned versions, each in an environment of its own below the cache, with the product's torch.

A line in ``product.pth`` has the environment find torch where this Python has it, so that all compute alike. What an
environment lacks beside that is installed by pip. Nothing of a peer is part of this package.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from typing import Dict, Tuple

import edge_offload
import edge_offload_benchmarks
from edge_offload import places

INSTALL_S = 900.0


@dataclass(frozen=True)
class Environment:
    """What is installed for peers.

    Attributes:
        name: of its folder.
        requirements: with their versions.
        tools: what builds them, installed first.
        options: of pip.
    """

    name: str
    requirements: Tuple[str, ...]
    tools: Tuple[str, ...] = ()
    options: Tuple[str, ...] = ()

    @property
    def python(self) -> pathlib.Path:
        """Its interpreter."""
        return places.cache_folder() / "peers" / self.name / "bin" / "python"

    def install(self) -> str:
        """Install it unless it is there; why it cannot be, or nothing."""
        folder = self.python.parents[1]
        stamp, wanted = folder / "installed", "\n".join([sys.version, *self.requirements])
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            return ""
        shutil.rmtree(folder, ignore_errors=True)
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        commands = [[sys.executable, "-m", "venv", str(folder)]]
        commands += [[*pip, *self.tools]] if self.tools else []
        commands += [[*pip, *self.options, *self.requirements]]
        try:
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
                self._share_torch(folder)
        except subprocess.CalledProcessError as error:
            return self._find_reason(error.stderr)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)[:200]
        stamp.write_text(wanted, encoding="utf-8")
        return ""

    @staticmethod
    def _share_torch(folder: pathlib.Path) -> None:
        packages = next(folder.glob("lib/python*/site-packages"))
        (packages / "product.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")

    @staticmethod
    def _find_reason(log: str) -> str:
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        return next(
            (line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "pip failed"
        )[:200]


def make_search_path() -> Dict[str, str]:
    """The variable by which a peer's Python finds this package and the product's networks."""
    folders = [
        str(pathlib.Path(str(package.__file__)).parents[1]) for package in (edge_offload, edge_offload_benchmarks)
    ]
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH", "")]))}


RGPU = Environment("rgpu", ("rgpu==0.1.1",), options=("--no-deps",))
SKYTORCH = Environment(
    "skytorch",
    ("skytorch==0.1.0", "six==1.17.0"),
    tools=("setuptools==80.9.0", "wheel==0.45.1"),
    options=("--no-build-isolation",),
)
SERVING = Environment("serving", ("grpcio==1.85.3", "litserve==0.2.19"))
