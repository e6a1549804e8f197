"""What plain CUDA makes of a network's inputs: a process without the virtual device, and the robot's end of it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import List, Sequence

import torch

from edge_offload.errors import RemoteError
from edge_offload.execute import heap
from edge_offload_benchmarks.transparent.models import cases, small_cases


class CudaReference:
    """Computes networks by name on a GPU, without TF32 and with cuDNN's deterministic algorithms.

    Args:
        launcher: what stands in front of its command.
    """

    def __init__(self, launcher: Sequence[str]) -> None:
        command = [*launcher, sys.executable, "-m", "edge_offload_benchmarks.transparent.reference"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=heap.executor_environment(os.environ)
        )

    def outputs(self, model: str, tensor: torch.Tensor) -> List[torch.Tensor]:
        """Compute the outputs of ``model`` for one input, on the host.

        Raises:
            RemoteError: the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="edge_offload.") as folder:
            path = pathlib.Path(folder) / "tensors.pt"
            torch.save(tensor, path)
            try:
                self._process.stdin.write(json.dumps({"model": model, "path": str(path)}) + "\n")
                self._process.stdin.flush()
            except OSError:
                raise RemoteError("the reference's process has ended", remedy="see what it said above") from None
            if not self._process.stdout.readline():
                raise RemoteError("the reference's process has ended", remedy="see what it said above")
            stored: List[torch.Tensor] = torch.load(path, weights_only=True)
        return stored

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    """Replace each input, a file, by the outputs for it, until the standard input ends."""
    from edge_offload.execute import devices
    from edge_offload.execute.module import as_tensors
    from edge_offload.models.registry import build_module
    from edge_offload_research.device.conformance.reference import set_reference_flags

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    set_reference_flags(devices.pick_device("cuda"))
    by_name = {case.name: case for case in (*cases(), *small_cases())}
    name, module = "", torch.nn.Module()
    for line in sys.stdin:
        request = json.loads(line)
        if request["model"] != name:
            name = request["model"]
            module = (by_name[name].module() if name in by_name else build_module(name).eval()).to("cuda")
        with torch.no_grad():
            outputs = as_tensors(module(torch.load(request["path"], weights_only=True).to("cuda")))
        torch.save([one.cpu() for one in outputs], request["path"])
        print("done", file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
