"""Networks from TorchScript files: code and weights in one, as ``torch.jit.save`` writes them.

Loading one runs its code. A server therefore loads only those that its operator has listed. Files never cross the link:
a robot sends the name and the checksum of its own.
"""

from __future__ import annotations

import hashlib
import pathlib
import warnings

import torch
from torch import nn

from edge_offload import places
from edge_offload.errors import BadInput
from edge_offload.models import pickles

SUFFIXES = (".pt", ".pth", ".ts", ".torchscript")


def is_script(name: str) -> bool:
    """Return whether a model's name is that of a TorchScript file."""
    return name.endswith(SUFFIXES)


def checksum(path: str) -> str:
    """Return the hex sha256 of the file.

    Raises:
        BadInput: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with places.expand(path).open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        where = "" if pathlib.Path(path).is_absolute() else f" (looked up in {pathlib.Path.cwd()})"
        raise BadInput(f"cannot read {path}: {error.strerror}{where}") from None
    return digest.hexdigest()


def load_script(path: str, sha256: str = "") -> nn.Module:
    """Load the module of a file, in eval mode, on the CPU.

    Args:
        path: of the file.
        sha256: expected :func:`checksum`; empty: any.

    Raises:
        BadInput: the file cannot be read, is another one, or holds no TorchScript.
    """
    actual = checksum(path)
    if sha256 and actual != sha256:
        raise BadInput(
            f"{path} is another file here: sha256 {actual[:12]}…, not {sha256[:12]}…",
            remedy="copy the robot's file to the server",
        )
    pickles.reject_pickle(str(places.expand(path)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which robots use
            module: nn.Module = torch.jit.load(str(places.expand(path)), map_location="cpu")
    except (RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines() or ["no reason given"]
        raise BadInput(
            f"{path} holds no TorchScript: {lines[0]}",
            remedy="torch.jit.script(module).save(path) writes one; for weights alone name a factory, and the weights "
            "as model_options:='{weights: file.safetensors}'",
        ) from None
    return module.eval()
