"""Runs programs one after the other in this process and prints one JSON line for each: output, counters, error."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import json
import os
import pathlib
import runpy
import sys
import traceback
from typing import Any, Dict, List

FOLDER = pathlib.Path(__file__).parent / "programs"


def counters() -> Dict[str, Any]:
    """What the virtual device has cost so far; empty on an ordinary torch."""
    device = sys.modules.get("edge_offload.device.installation")
    installed = device.current_installation() if device is not None else None
    return dataclasses.asdict(installed.recorder.counters) if installed is not None else {}


def set_shapes_option(queried: bool) -> None:
    """Have the server say what all results look like, or have that worked out where it can be; nothing without it."""
    device = sys.modules.get("edge_offload.device.installation")
    installed = device.current_installation() if device is not None else None
    if installed is None or not hasattr(installed.native, "trust"):
        return
    from edge_offload.device import shapes

    os.environ["EDGE_OFFLOAD_EXEC_SHAPES"] = "ask" if queried else "known"
    shapes.trust_shapes(installed.native, installed.remote)


class Lines(io.StringIO):
    """What a program prints, and how many round trips there had been at the end of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.trips: List[int] = []

    def write(self, text: str) -> int:
        self.trips += [counters().get("round_trips", 0)] * text.count("\n")
        return super().write(text)


def main() -> None:
    import torch

    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        name, *arguments = argument.split(":")
        set_shapes_option(arguments[-1:] == ["asked"])
        output, error = Lines(), ""
        before = counters()
        sys.argv = [name, *arguments]
        torch.set_grad_enabled(True)  # each begins as in a process of its own
        gc.collect()
        try:
            with contextlib.redirect_stdout(output):
                runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        except Exception:
            error = traceback.format_exc()
        after = counters()
        spent = {key: after[key] - before[key] for key in after}
        record = {"program": argument, "output": output.getvalue(), "error": error, "spent": spent,
                  "trips": output.trips}  # fmt: skip
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
