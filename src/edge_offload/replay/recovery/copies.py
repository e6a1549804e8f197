"""Large uploads, kept on this machine so that the program can go on without its server."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from typing import IO, Dict, Optional, Tuple

from edge_offload.errors import LinkLost
from edge_offload.notices import notify
from edge_offload.protocol.blobs import NamedBlobs


class UploadCopies:
    """A file without a name that goes away with the process; of equal uploads there is one copy.

    Args:
        folder: on the disk where it lies; half of what is free there is the most that it takes.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._file: Optional[IO[bytes]] = None
        self._places: Dict[Tuple[bytes, ...], int] = {}
        self._end = self._room = 0
        self._full = False

    def store_upload(self, named: NamedBlobs, data: memoryview) -> bool:
        """Stores ``data`` as ``named``; returns True if it is stored."""
        if named.names in self._places:
            return True
        if self._full:
            return False
        try:
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 — it lives as long as this does
                self._room = shutil.disk_usage(self._folder).free // 2
            if self._end + named.nbytes > self._room:
                raise OSError(f"{named.nbytes / 1e6:.0f} MB more than half of what was free")
            os.lseek(self._file.fileno(), self._end, os.SEEK_SET)
            remaining = data
            while remaining:
                remaining = remaining[os.write(self._file.fileno(), remaining) :]
        except OSError as error:
            self._full = True
            notify(
                f"no copy of the weights can be kept in {self._folder} ({error}): "
                "this program ends if it loses its server for good"
            )
            return False
        self._places[named.names] = self._end
        self._end += named.nbytes
        return True

    def read_upload(self, named: NamedBlobs) -> bytes:
        """Reads the bytes that were stored as ``named``.

        Raises:
            LinkLost: they cannot be read.
        """
        assert self._file is not None
        place, pieces, remaining = self._places[named.names], [], named.nbytes
        while remaining:
            piece = os.pread(self._file.fileno(), remaining, place)
            if not piece:
                raise LinkLost("the copy of an upload on this machine's disk ends too early")
            pieces.append(piece)
            place, remaining = place + len(piece), remaining - len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()
