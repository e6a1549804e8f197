"""Reads the tensors out of a pickled PyTorch checkpoint without executing anything that the file asks for.

A ``.pt`` file of the zip kind holds one pickle, which names classes and functions to call, and one raw member per
storage. Here every name in the pickle becomes an inert stand-in, which only remembers its state. The exceptions are
handled by code of this module: tensors become records, which are made into tensors after the pickle has ended, and
ordered dicts become plain ones. Nothing is imported, nothing that the file names is called, what the pickle is given
cannot be altered by it, and every size is checked against the bytes that are there before anything is allocated.
"""

from __future__ import annotations

import io
import pathlib
import pickle
import zipfile
from typing import Any, Dict, List, NoReturn, Tuple

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


class Inert(Dict[Any, Any]):
    """Stands in for an object of a class that is not imported: remembers its state, forgets everything else."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        made = super().__new__(cls)
        made.state = None
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def append(self, item: Any) -> None:
        """Take an item of a pickled list subclass, and forget it."""

    def extend(self, items: Any) -> None:
        """Take items of a pickled list subclass, and forget them."""

    def add(self, item: Any) -> None:
        """Take an item of a pickled set, and forget it."""


class _Ordered(Dict[Any, Any]):
    """An ordered dict; attributes that a pickle hangs on it (a state dict's ``_metadata``) are forgotten."""

    def __setstate__(self, state: Any) -> None:
        """Forget ``state``."""


class _Sealed:
    """Base of what a pickle may use and must not alter."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("the file tries to alter its reader")


class _StorageType(_Sealed):
    __slots__ = ("dtype",)

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


class _Storage(_Sealed):
    __slots__ = ("dtype", "member")

    def __init__(self, dtype: torch.dtype, member: zipfile.ZipInfo) -> None:
        self.dtype = dtype
        self.member = member


class Tensor(_Sealed):
    """A tensor as the pickle describes it: a view of a storage, not looked at yet."""

    __slots__ = ("offset", "size", "storage", "stride")

    def __init__(self, storage: _Storage, offset: int, size: Tuple[int, ...], stride: Tuple[int, ...]) -> None:
        self.storage = storage
        self.offset = offset
        self.size = size
        self.stride = stride


class _MakeTensor(_Sealed):
    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        if not (isinstance(storage, _Storage) and isinstance(size, tuple) and isinstance(stride, tuple)):
            raise pickle.UnpicklingError("malformed tensor")
        numbers = (offset, *size, *stride)
        if len(size) != len(stride) or not all(type(n) is int and 0 <= n < 1 << 40 for n in numbers):
            raise pickle.UnpicklingError("a tensor of impossible shape")
        return Tensor(storage, offset, size, stride)


class _First(_Sealed):
    __slots__ = ()

    def __call__(self, value: Any, *_: Any) -> Any:
        return value


class _MakeOrdered(_Sealed):
    __slots__ = ()

    def __call__(self, items: Any = ()) -> _Ordered:
        return _Ordered(items)


_ALLOWED: Dict[Tuple[str, str], _Sealed] = {
    ("collections", "OrderedDict"): _MakeOrdered(),
    ("torch._utils", "_rebuild_parameter"): _First(),
    ("torch._utils", "_rebuild_parameter_with_state"): _First(),
    ("torch._utils", "_rebuild_tensor"): _MakeTensor(),
    ("torch._utils", "_rebuild_tensor_v2"): _MakeTensor(),
    **{("torch", name): _StorageType(dtype) for name, dtype in _STORAGE_DTYPES.items()},
}


class _Unpickler(pickle.Unpickler):
    """Resolves every global to :class:`Inert`, except for those of :data:`_ALLOWED`."""

    def __init__(self, stream: io.BytesIO, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(stream, encoding="utf-8", errors="replace")
        self._archive = archive
        self._prefix = prefix

    def find_class(self, module: str, name: str) -> Any:
        return _ALLOWED.get((module, name), Inert)

    def persistent_load(self, identity: Any) -> _Storage:
        if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
            raise pickle.UnpicklingError("unknown kind of persistent object")
        kind, key = identity[1], identity[2]
        if not (isinstance(kind, _StorageType) and isinstance(key, str)):
            raise pickle.UnpicklingError("malformed storage")
        return _Storage(kind.dtype, self._archive.getinfo(f"{self._prefix}data/{key}"))


class Checkpoint:
    """A zip-kind ``.pt`` file, open for reading. Use as a context manager.

    Attributes:
        root: the pickled object: plain containers and numbers, :class:`Tensor` records, and :class:`Inert` for
            everything else.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Open ``path`` and read its pickle.

        Raises:
            BadInput: not such a file, damaged, or larger than the bounds; nothing of it has been executed.
        """
        self._path = path
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadInput(f"checkpoint {path} has more than {MAX_FILE_BYTES >> 30} GiB")
        if not zipfile.is_zipfile(path):
            raise BadInput(
                f"checkpoint {path} is not a zip-kind PyTorch file",
                remedy="save it again with PyTorch 1.6 or newer, or as safetensors",
            )
        self._left = path.stat().st_size
        try:
            self._archive = zipfile.ZipFile(path)
        except Exception as error:  # a damaged directory fails in as many ways as it has fields
            raise self._unreadable(error) from error
        try:
            self.root = self._read_pickle()
        except Exception as error:  # a hostile pickle can fail anywhere, in any way
            self._archive.close()
            raise self._unreadable(error) from error

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def tensors(self, records: Dict[str, Tensor]) -> Dict[str, torch.Tensor]:
        """Read the tensors that ``records`` describe.

        Raises:
            BadInput: a record reaches outside its storage, or together they hold more than the file.
        """
        try:
            return {name: self._tensor(record) for name, record in records.items()}
        except Exception as error:  # damaged members, see above
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> BadInput:
        return BadInput(f"checkpoint {self._path} cannot be read: {type(error).__name__}: {error}")

    def _read_pickle(self) -> Any:
        pickles = [info for info in self._archive.infolist() if info.filename.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1:
            raise pickle.UnpicklingError("it has no single data.pkl")
        if pickles[0].file_size > MAX_PICKLE_BYTES:
            raise pickle.UnpicklingError(f"its pickle has {pickles[0].file_size} bytes")
        prefix = pickles[0].filename[: -len("data.pkl")]
        order = prefix + "byteorder"
        if order in self._archive.namelist() and self._read(self._archive.getinfo(order)) != b"little":
            raise pickle.UnpicklingError("its numbers are big-endian")
        return _Unpickler(io.BytesIO(self._read(pickles[0])), self._archive, prefix).load()

    def _read(self, member: zipfile.ZipInfo) -> bytes:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > self._path.stat().st_size:
            raise pickle.UnpicklingError(f"{member.filename} is compressed")
        return self._archive.read(member)

    def _tensor(self, record: Tensor) -> torch.Tensor:
        count = 1
        for length in record.size:
            count *= length
        if not count:
            return torch.empty((0,), dtype=record.storage.dtype)
        # strides of zero could spell terabytes out of one number, and a million records the same storage
        self._left -= count * torch.empty((), dtype=record.storage.dtype).element_size()
        if self._left < 0:
            raise pickle.UnpicklingError("its tensors hold more than the file does")
        flat = torch.frombuffer(bytearray(self._read(record.storage.member)), dtype=record.storage.dtype)
        last = record.offset + sum((length - 1) * step for length, step in zip(record.size, record.stride))
        if last >= flat.numel():
            raise pickle.UnpicklingError("a tensor reaches outside its storage")
        return torch.as_strided(flat, record.size, record.stride, record.offset).clone()


def module_records(root: Any) -> Dict[str, Tensor]:
    """The tensors of a pickled ``nn.Module`` (as :class:`Inert`), named as its state dict would name them."""
    found: Dict[str, Tensor] = {}
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
                if isinstance(value, Tensor):
                    found[f"{prefix}{name}"] = value
        children = node.state.get("_modules")
        if isinstance(children, dict):
            pending.extend((f"{prefix}{name}.", child) for name, child in children.items())
    return found
