"""Builds our libraries for the Python and torch that run this, and leaves them in FOLDER under plain names.

Usage: python -m edge_offload_benchmarks.gpu.build_native FOLDER
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
import time

import torch

from edge_offload.native import libraries


def main() -> None:
    """Build all but the codecs, which are compiled for the processor at hand."""
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in (libraries.GUARD, libraries.DEVICE, libraries.NODES, libraries.WINDOWS):
        started_at = time.monotonic()
        target = folder / f"{recipe.name}.so"
        shutil.copy(recipe.build(), target)
        subprocess.run(["strip", "--strip-unneeded", str(target)], check=False)
        print(f"{recipe.name}: {target.stat().st_size} bytes, {time.monotonic() - started_at:.1f} s", flush=True)
    facts = {"python": list(sys.version_info[:2]), "torch": torch.__version__}
    (folder / "target.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
