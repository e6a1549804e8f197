"""Reads the tensors out of a pickled PyTorch checkpoint without executing anything that the file asks for.

A ``.pt`` file of the zip kind holds one pickle, which names classes and functions to call, and one raw member per
storage. Here every name in the pickle becomes an inert stand-in, which only remembers what it was given, with these
exceptions: tensors are rebuilt by code of this module, and ordered dicts are ordinary dicts. Nothing is imported,
nothing is called, and every size is checked against the bytes that are there before anything is allocated.
"""

from __future__ import annotations

import io
import pathlib
import pickle
import zipfile
from typing import Any, Dict, List, Tuple, Type

import torch

from edge_offload.errors import BadInput

MAX_PICKLE_BYTES = 64 << 20
MAX_FILE_BYTES = 4 << 30

_STORAGE_DTYPES: Dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Inert(dict):  # type: ignore[type-arg]
    """Stands in for an object of a class that is not imported: remembers its name, arguments and state."""

    path = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.arguments = args
        self.state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        made = super().__new__(cls)
        made.arguments, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __hash__(self) -> int:
        return id(self)

    def append(self, item: Any) -> None:
        """Take an item of a pickled list subclass, and forget it."""

    def extend(self, items: Any) -> None:
        """Take items of a pickled list subclass, and forget them."""

    def add(self, item: Any) -> None:
        """Take an item of a pickled set, and forget it."""


def _inert_class(module: str, name: str) -> Type[Inert]:
    return type("Inert", (Inert,), {"path": f"{module}.{name}"})


class _Storage:
    """A storage named by the pickle: its dtype and its bytes."""

    def __init__(self, dtype: torch.dtype, data: bytes) -> None:
        self.dtype = dtype
        self.data = data


class _Unpickler(pickle.Unpickler):
    """Resolves every global to an inert class, except for what rebuilds tensors and ordered dicts."""

    def __init__(self, stream: io.BytesIO, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(stream, encoding="utf-8", errors="replace")
        self._archive = archive
        self._prefix = prefix
        self._storages: Dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor")):
            return _rebuild_tensor
        if (module, name) in (("torch._utils", "_rebuild_parameter"), ("torch._utils", "_rebuild_parameter_with_state")):
            return _first
        if (module, name) == ("collections", "OrderedDict"):
            return _plain_dict
        if module == "torch" and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]
        return _inert_class(module, name)

    def persistent_load(self, identity: Any) -> _Storage:
        if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
            raise pickle.UnpicklingError("unknown kind of persistent object")
        dtype, key, count = identity[1], identity[2], identity[4]
        if not (isinstance(dtype, torch.dtype) and isinstance(key, str) and isinstance(count, int)):
            raise pickle.UnpicklingError("malformed storage")
        if key not in self._storages:
            member = self._archive.getinfo(f"{self._prefix}data/{key}")
            if member.compress_type != zipfile.ZIP_STORED:
                raise pickle.UnpicklingError(f"storage {key} is compressed")
            self._storages[key] = _Storage(dtype, self._archive.read(member))
        return self._storages[key]


def _plain_dict(items: Any = ()) -> Dict[Any, Any]:
    return dict(items)


def _first(value: Any, *_: Any) -> Any:
    return value


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> torch.Tensor:
    """A tensor of its own memory from a view of a storage, checked to lie inside it."""
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    numbers = (offset, *size, *stride)
    if len(size) != len(stride) or not all(isinstance(n, int) and 0 <= n < 1 << 40 for n in numbers):
        raise pickle.UnpicklingError("a tensor of impossible shape")
    flat = torch.frombuffer(bytearray(storage.data), dtype=storage.dtype) if storage.data else torch.empty(0)
    count = 1
    for length in size:
        count *= length
    last = offset + sum((length - 1) * step for length, step in zip(size, stride))
    # strides of zero could spell terabytes out of one number: a checkpoint's tensors never repeat their storage
    if count and (last >= flat.numel() or count > flat.numel()):
        raise pickle.UnpicklingError("a tensor reaches outside its storage")
    if not count:
        return torch.empty(size, dtype=storage.dtype)
    return torch.as_strided(flat, size, stride, offset).clone()


def read(path: pathlib.Path) -> Any:
    """The object in a zip-kind ``.pt`` file, with tensors real and everything else plain or :class:`Inert`.

    Raises:
        BadInput: not such a file, damaged, or larger than the bounds; nothing of it has been executed.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BadInput(f"checkpoint {path} has more than {MAX_FILE_BYTES >> 30} GiB")
    if not zipfile.is_zipfile(path):
        raise BadInput(
            f"checkpoint {path} is not a zip-kind PyTorch file",
            remedy="save it again with PyTorch 1.6 or newer, or as safetensors",
        )
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [info for info in archive.infolist() if info.filename.split("/")[1:] == ["data.pkl"]]
            if len(pickles) != 1:
                raise BadInput(f"checkpoint {path} has no single data.pkl")
            member = pickles[0]
            if member.file_size > MAX_PICKLE_BYTES:
                raise BadInput(f"checkpoint {path}: its pickle has {member.file_size} bytes")
            prefix = member.filename[: -len("data.pkl")]
            return _Unpickler(io.BytesIO(archive.read(member)), archive, prefix).load()
    except BadInput:
        raise
    except Exception as error:  # a hostile pickle can fail anywhere, in any way
        raise BadInput(f"checkpoint {path} cannot be read: {type(error).__name__}: {error}") from error


def module_tensors(root: Any) -> Dict[str, torch.Tensor]:
    """The state dict of a pickled ``nn.Module`` (as :class:`Inert`), named as PyTorch would name it."""
    found: Dict[str, torch.Tensor] = {}
    pending: List[Tuple[str, Any]] = [("", root)]
    seen = set()
    while pending:
        prefix, node = pending.pop()
        if not isinstance(node, Inert) or not isinstance(node.state, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        for kind in ("_parameters", "_buffers"):
            members = node.state.get(kind)
            for name, value in members.items() if isinstance(members, dict) else ():
                if isinstance(value, torch.Tensor):
                    found[f"{prefix}{name}"] = value
        children = node.state.get("_modules")
        if isinstance(children, dict):
            pending.extend((f"{prefix}{name}.", child) for name, child in children.items())
    return found
