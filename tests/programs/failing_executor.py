"""An executor in which one operator raises what torch raises on a GPU. It stands in front of the executor's command.

Arguments: the operator, or "start", in place of which the executor does not start; the class and the text of the error,
and a file. It raises while the file exists, which it removes unless the text of it is "always". Then the executor's own
command.
"""

import pathlib
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edge_offload.execute.session import worker

name, kind, text, mark = *sys.argv[1:4], pathlib.Path(sys.argv[4])
error = torch.cuda.OutOfMemoryError if kind == "OutOfMemoryError" else getattr(torch, kind, RuntimeError)


def raise_error() -> None:
    """Raise the error if the mark says so."""
    if mark.exists():
        if mark.read_text() != "always":
            mark.unlink()
        raise error(text)


class Failing(TorchDispatchMode):
    """Sees every operator, whoever calls it: an interpreted step, a compiled one, the C++ runner."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name == name:
            raise_error()
        return func(*args, **(kwargs or {}))


def make_session(args, plain=worker.make_session):
    """The executor's session, if it starts."""
    if name == "start":
        raise_error()
    return plain(args)


if __name__ == "__main__":
    worker.make_session = make_session
    with Failing():
        sys.exit(worker.main(sys.argv[sys.argv.index("edge_offload.execute.session.worker") + 1 :]))
