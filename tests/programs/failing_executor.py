"""An executor in which one operator raises what torch raises on a GPU. It stands in front of the executor's command.

Arguments: the operator, the class and the text of the error, and a file; it raises while the file exists, which it
removes unless the text of it is "always". Then the executor's own command.
"""

import pathlib
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edge_offload.execute.session import worker

name, kind, text, mark = *sys.argv[1:4], pathlib.Path(sys.argv[4])
error = torch.cuda.OutOfMemoryError if kind == "OutOfMemoryError" else getattr(torch, kind, RuntimeError)


class Failing(TorchDispatchMode):
    """Sees every operator, whoever calls it: an interpreted step, a compiled one, the C++ runner."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name == name and mark.exists():
            if mark.read_text() != "always":
                mark.unlink()
            raise error(text)
        return func(*args, **(kwargs or {}))


if __name__ == "__main__":
    with Failing():
        sys.exit(worker.main(sys.argv[sys.argv.index("edge_offload.execute.session.worker") + 1 :]))
