"""Traces and profiles of the models that a server splits, on its disk: a restarted server need not trace anew.

A file per sequence: its msgpack form, this machine's profile, and those constants that are no weights of the model.
Nothing in it is executed. A robot that comes back names the hash of its own trace; what is read here must have that
hash, constants are found by their digests among the weights that were just loaded, and a profile counts only for the
machine and the settings that it was measured with. Whatever does not fit is traced and measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import pathlib
import re
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional

import msgpack
import torch
from torch import nn

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.execute.tensors import MAX_TENSORS, pack, unpack
from edge_offload.ir import OperatorSequence, opaque, sequence_hash, wire
from edge_offload.ir.build import TracedProgram, tensor_digest
from edge_offload.models.cache import write_atomic
from edge_offload.split.runtime.profile import Profile

MAX_KEPT = 32
"""Sequences on disk; the one that was written longest ago makes room."""
MAX_EXTRA_BYTES = 64 << 20
"""Of constants that are no weights of the model: a sequence with more is not kept."""
MAX_FILE_BYTES = MAX_EXTRA_BYTES + (128 << 20)
PROFILE_S = 24 * 3600.0
"""A profile that is older is measured again."""

_FORMAT = 1
_HASH = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedTrace:
    """What the cache has of one sequence.

    Attributes:
        program: with its constants.
        readout: the part behind an opaque operator, to be kept alive with the program; None if there is none.
        profile: of this machine, or of what it was then: its fingerprint says so. None if it is too old.
    """

    program: TracedProgram
    readout: Optional[nn.Module]
    profile: Optional[Profile]


class TraceCache:
    """Files in a directory that only this user can write. A disk that cannot be written costs time, never a result.

    Args:
        directory: where they are; made when first needed.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory

    def profile(self, sequence: str) -> Optional[Profile]:
        """The profile of the sequence of that hash, by itself; None if there is none that can be used."""
        document = self._read(sequence)
        try:
            return None if document is None else _profile(document, sequence)
        except (EdgeOffloadError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("%s cannot be used: %s", self._path(sequence), error)
            return None

    def find(self, sequence: str, module: nn.Module) -> Optional[CachedTrace]:
        """The trace of the sequence of that hash, bound to the weights of ``module``; None if it cannot be used."""
        document = self._read(sequence)
        if document is None or not document.get("sequence"):
            return None
        try:
            found = wire.decode(document["sequence"])
            constants = _extras(document)
            readout = _readout(found, module)
            program = TracedProgram(found, _bound(found, module, constants))
            profile = _profile(document, sequence)
            if sequence_hash(found) != sequence:
                raise ValueError("a sequence of another hash")
        except (EdgeOffloadError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("%s cannot be used, the model is traced again: %s", self._path(sequence), error)
            return None
        return CachedTrace(program, readout, profile)

    def keep(self, program: TracedProgram, profile: Profile, module: Optional[nn.Module]) -> None:
        """Write down what was traced from ``module`` and measured; without one the profile alone."""
        extras: List[torch.Tensor] = []
        traced = b""
        if module is not None:
            shared = {_memory(tensor) for tensor in _state(module).values()}
            extras = [tensor for tensor in program.constants.values() if _memory(tensor) not in shared]
            many = len(extras) > MAX_TENSORS or sum(tensor.nbytes for tensor in extras) > MAX_EXTRA_BYTES
            # strides decide which kernel runs, and would be lost
            if many or not all(tensor.is_contiguous() for tensor in extras):
                return
            traced = wire.encode(program.sequence)
        try:
            descriptors, buffers = pack(extras, "raw")
        except BadInput:
            return  # a dtype that is not written
        document = {
            "format": _FORMAT,
            "sequence": traced,
            "profile": json.dumps(profile.to_record()),
            "measured": time.time(),
            "tensors": descriptors,
            "buffers": [bytes(buffer) for buffer in buffers],
        }
        data = msgpack.packb(document, use_bin_type=True)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room()
            write_atomic(self._path(profile.sequence), hashlib.sha256(data).digest() + data)
        except OSError as error:
            _log.warning("the trace of a model cannot be cached in %s: %s", self.directory, error)

    def _path(self, sequence: str) -> pathlib.Path:
        return self.directory / f"{sequence}.split"

    def _read(self, sequence: str) -> Optional[Dict[str, Any]]:
        """The document in a file that is whole, with the right fields; None if there is none."""
        if _HASH.fullmatch(sequence) is None:
            return None
        try:
            with self._path(sequence).open("rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except OSError:
            return None
        if len(data) > MAX_FILE_BYTES or hashlib.sha256(data[32:]).digest() != data[:32]:
            _log.warning("%s is damaged, the model is traced again", self._path(sequence))
            return None
        try:
            document = msgpack.unpackb(data[32:], raw=False, strict_map_key=True, max_ext_len=0)
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
            return None
        ours = isinstance(document, dict) and document.get("format") == _FORMAT
        return document if ours else None

    def _make_room(self) -> None:
        found: List[Any] = []
        for path in self.directory.glob("*.split"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime, path))
        for _, path in sorted(found)[: max(0, len(found) - MAX_KEPT + 1)]:
            path.unlink(missing_ok=True)


def _state(module: nn.Module) -> Dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _extras(document: Mapping[str, Any]) -> Dict[str, torch.Tensor]:
    tensors = unpack(document["tensors"], document["buffers"], max_bytes=MAX_EXTRA_BYTES)
    return {tensor_digest(tensor): tensor for tensor in tensors}


def _profile(document: Mapping[str, Any], sequence: str) -> Optional[Profile]:
    if not 0 <= time.time() - float(document["measured"]) < PROFILE_S:
        return None
    found = Profile.from_record(json.loads(document["profile"]))
    if found.sequence != sequence:
        raise ValueError("a profile of another sequence")
    return found


def _bound(
    sequence: OperatorSequence, module: nn.Module, extras: Mapping[str, torch.Tensor]
) -> Dict[str, torch.Tensor]:
    """Constants by digest: weights of the module, and what was kept.

    Raises:
        KeyError: one is neither.
    """
    known = {**extras, **{tensor_digest(tensor): tensor.detach() for tensor in _state(module).values()}}
    return {digest: known[digest] for digest in sequence.constants.values()}


def _readout(sequence: OperatorSequence, module: nn.Module) -> Optional[nn.Module]:
    """The part that the sequence's opaque operators name.

    Raises:
        ValueError: it is another one.
    """
    tokens = {operator.args[0] for operator in sequence.operators if operator.name == opaque.NAME}
    if not tokens:
        return None
    readout = getattr(module, "readout", None)
    if not isinstance(readout, nn.Module) or tokens != {opaque.register(readout)}:
        raise ValueError("its read-out is another one")
    return readout
