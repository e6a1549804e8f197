"""The folder where downloaded and converted weights are kept, with writes that are atomic and locked."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import tempfile
from typing import Iterator, Mapping

import torch

from edge_offload import places
from edge_offload.memory import flat_bytes


def cache_dir() -> pathlib.Path:
    """The cache folder (:func:`edge_offload.places.cache_folder`)."""
    return places.cache_folder()


@contextlib.contextmanager
def locked(name: str) -> Iterator[pathlib.Path]:
    """Hold the lock ``name`` of the cache (across processes) and yield the cache folder, which then exists."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield folder


def write_atomic(path: pathlib.Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the whole new one, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def tensors_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex sha256 over names, dtypes, shapes and bytes, in the order of the names.

    It does not depend on the device, the memory layout or the file format that the tensors came in.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        header = f"{name}\0{str(tensor.dtype).split('.')[-1]}\0{tuple(tensor.shape)}\0"
        digest.update(header.encode("utf-8"))
        if tensor.numel():
            digest.update(flat_bytes(tensor).numpy().data)
    return digest.hexdigest()
