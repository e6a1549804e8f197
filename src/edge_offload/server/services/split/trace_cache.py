"""Cache of traces and profiles of split models on disk, so that a restarted server does not trace them again.

A file per sequence has its msgpack form, this machine's profile, and constants that are no weights of the model.
Nothing in it is executed. A robot names the hash of its own trace, and a cached trace must have that hash. Constants
are matched by their digests with the loaded weights. A profile is valid only for its machine and settings. Models
without a valid trace or profile are traced and measured again.
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
from torch import nn

from edge_offload.cache import write_atomic
from edge_offload.errors import EdgeOffloadError
from edge_offload.ir.build import TracedProgram
from edge_offload.split.runtime import traces
from edge_offload.split.runtime.profile import Profile
from edge_offload.split.runtime.traces import MAX_EXTRA_BYTES, BoundTrace, WrittenTrace

MAX_FILE_BYTES = MAX_EXTRA_BYTES + (128 << 20)
#: Age (seconds) from which on a profile is measured again.
PROFILE_S = 24 * 3600.0

#: Suffixes of files: a trace with its profile; the hash of a model's trace.
SPLIT, MODEL = ".split", ".model"
_FORMAT = 1
_HASH = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedTrace:
    """Cached files of one sequence.

    Attributes:
        trace: with its constants.
        profile: with the fingerprint of the machine that it was measured on; None: it is too old.
    """

    trace: BoundTrace
    profile: Optional[Profile]


class TraceCache:
    """Cache files in a directory that only this user can write. A write error costs time, never a result.

    Args:
        directory: folder of the files, created on first use.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory

    def load_profile(self, sequence: str) -> Optional[Profile]:
        """Return the profile of the sequence of that hash, without the trace; None: there is no valid one."""
        document = self._read_document(sequence)
        try:
            return None if document is None else _parse_profile(document, sequence)
        except (EdgeOffloadError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("%s cannot be used: %s", self._path_of(sequence), error)
            return None

    def load_trace(self, sequence: str, module: nn.Module) -> Optional[CachedTrace]:
        """Return the trace of that hash, bound to the weights of ``module``; None if it cannot be used."""
        document = self._read_document(sequence)
        if document is None or not document.get("sequence"):
            return None
        try:
            written = WrittenTrace(document["sequence"], document["tensors"], document["buffers"])
            bound = traces.read_trace(written, sequence, module)
            profile = _parse_profile(document, sequence)
        except (EdgeOffloadError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("%s cannot be used, the model is traced again: %s", self._path_of(sequence), error)
            return None
        return CachedTrace(bound, profile)

    def find_hash(self, model: str) -> Optional[str]:
        """Return the hash of the sequence traced from the model of that key; None if there is none."""
        try:
            text = self._path_of(model, MODEL).read_text(encoding="ascii")
        except (OSError, ValueError):
            return None
        return text if _HASH.fullmatch(text) else None

    def save_trace(
        self, program: TracedProgram, profile: Profile, module: Optional[nn.Module], model: Optional[str] = None
    ) -> None:
        """Save a trace of ``module`` and its profile; without a module only the profile.

        ``model``: key of the model for :meth:`find_hash`.
        """
        written = WrittenTrace(b"", [], []) if module is None else traces.write_trace(program, module)
        if written is None:
            return
        document = {
            "format": _FORMAT,
            "sequence": written.sequence,
            "profile": json.dumps(profile.to_record()),
            "measured": time.time(),
            "tensors": written.descriptors,
            "buffers": [bytes(buffer) for buffer in written.buffers],
        }
        data = msgpack.packb(document, use_bin_type=True)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(SPLIT)
            write_atomic(self._path_of(profile.sequence), hashlib.sha256(data).digest() + data)
            if model is not None:
                self._make_room(MODEL)
                write_atomic(self._path_of(model, MODEL), profile.sequence.encode())
        except OSError as error:
            _log.warning("the trace of a model cannot be cached in %s: %s", self.directory, error)

    def _path_of(self, name: str, kind: str = SPLIT) -> pathlib.Path:
        return self.directory / f"{name}{kind}"

    def _read_document(self, sequence: str) -> Optional[Dict[str, Any]]:
        """Return the document in a complete file with the right fields; None if there is none."""
        if _HASH.fullmatch(sequence) is None:
            return None
        try:
            with self._path_of(sequence).open("rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except OSError:
            return None
        if len(data) > MAX_FILE_BYTES or hashlib.sha256(data[32:]).digest() != data[:32]:
            _log.warning("%s is damaged, the model is traced again", self._path_of(sequence))
            return None
        try:
            document = msgpack.unpackb(data[32:], raw=False, strict_map_key=True, max_ext_len=0)
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
            return None
        ours = isinstance(document, dict) and document.get("format") == _FORMAT
        return document if ours else None

    def _make_room(self, kind: str) -> None:
        files: List[Any] = []
        for path in self.directory.glob(f"*{kind}"):
            with contextlib.suppress(FileNotFoundError):
                files.append((path.stat().st_mtime, path))
        # the oldest files are evicted
        for _, path in sorted(files)[: max(0, len(files) - 31)]:
            path.unlink(missing_ok=True)


def _parse_profile(document: Mapping[str, Any], sequence: str) -> Optional[Profile]:
    if not 0 <= time.time() - float(document["measured"]) < PROFILE_S:
        return None
    profile = Profile.from_record(json.loads(document["profile"]))
    if profile.sequence != sequence:
        raise ValueError("a profile of another sequence")
    return profile
