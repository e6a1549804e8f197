"""The page of platforms: which releases of torch, Pythons and processors each mode was run with, from a record."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List

from generate.reference import WRITTEN

RECORD = pathlib.Path("docs/platforms.json")
NOT_RUN = (
    ("JetPack 4.6 (Python 3.6)", "refused by `pip`: Python 3.8 is the oldest"),
    (
        "JetPack 5.1 (Ubuntu 20.04, Python 3.8, GCC 9.4, CUDA 11.4, NVIDIA's torch 2.1.0a0, aarch64)",
        "not run on a board; the rows of Ubuntu 20.04 have its system, compiler and Python, on x86-64; the emulated "
        "row has its architecture",
    ),
    (
        "JetPack 6 (Ubuntu 22.04, Python 3.10, GCC 11, aarch64)",
        "not run on a board; the row of Ubuntu 22.04 has its system, compiler and Python, on x86-64",
    ),
    (
        "Ubuntu 20.04 with ROS Noetic",
        "rows of Ubuntu 20.04 are without ROS; nodes run on Debian 12 with its packages of ROS, under Python 3.11",
    ),
    (
        "torch 2.0.0 and older, such as NVIDIA's 2.0.0+nv23.05 and 1.13",
        "not supported: `pip install .` replaces it with a newer one, and on a Jetson that is one without CUDA",
    ),
    ("CUDA", "[what ran on a GPU](../results/gpu.md)"),
)
INTRODUCTION = """
`scripts/version-matrix --json docs/platforms.json` installs the package beside each release of torch. It runs a
program under `edge-offload exec` and an `OffloadedModule` in every mode. `edge-offload doctor` says which modes a
machine can run: it compiles the real sources with the compiler that is there.

- *same bits*: those of the program without edge_offload beside the torch that computes. That is the server's, and in
  mode `local` the robot's.
- *1.2e-07 of the range*: the largest difference, where two releases of torch or two instruction sets compute. `split`
  of an `OffloadedModule` computes in float64.
- *names what works*: `edge-offload doctor` on that robot names exactly the modes that then work.
- `--tests` adds the unit tests, and a dozen programs of `edge-offload bench programs` in every mode of `exec`: with the
  bits of plain CPU, and divided to 1e-05 of the largest value. An emulated robot runs those unit tests alone whose
  folders are named.
- Ubuntu 20.04 and 22.04, Debian 11 and 13 are roots of those releases (`--root`): their Python, compiler, libraries.
- An arm64 robot is emulated: Debian 12 under qemu-user. Its server is native, on x86-64.
"""


def pages(root: pathlib.Path) -> Dict[str, str]:
    """The page, by its path below docs/; none where there is no record."""
    path = root / RECORD
    if not path.exists():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    not_run = [["platform", "state"], ["---", "---"], *map(list, NOT_RUN)]
    body = ["# Platforms", "", WRITTEN.format(f"[platforms.json](../{RECORD.name})"), INTRODUCTION]
    body += [*_lines(_cells(record["rows"])), "", "## Not run", "", *_lines(not_run)]
    return {"reference/platforms.md": "\n".join(body) + "\n"}


def _cells(rows: List[Dict[str, Any]]) -> List[List[str]]:
    modes = list(dict.fromkeys(mode for row in rows for mode in row["modes"]))
    header = ["robot", "server", *(f"`{mode}`" for mode in modes), "date"]
    cells = [header, ["---"] * len(header)]
    for row in sorted(rows, key=lambda one: (_side(one["robot"]), _side(one["server"]))):
        emulated = " (emulated)" if row["emulated"] else ""
        server = "the same" if row["server"] == row["robot"] else _side(row["server"])
        results = [row["modes"].get(mode, "not run") for mode in modes]
        cells.append([_side(row["robot"]) + emulated, server, *results, row["date"]])
    return cells


def _lines(cells: List[List[str]]) -> List[str]:
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]


def _side(side: Dict[str, str]) -> str:
    where = f"{side['system']}, {side['compiler']}, {side['arch']}"
    return f"torch {side['torch']}, Python {side['python']}, numpy {side['numpy']}, {where}"
