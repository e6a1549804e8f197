"""Copies of uploads: nobody else sees them, equal ones are kept once, a full disk costs a line and no result."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from edge_offload.protocol.blobs import NamedBlobs, digest
from edge_offload.replay.recovery import copies
from edge_offload.replay.recovery.copies import UploadCopies


def named(data: bytes) -> NamedBlobs:
    return NamedBlobs(len(data), (digest(data),))


def test_a_stored_copy_can_be_read_back_and_has_no_name_on_the_disk(tmp_path: pathlib.Path) -> None:
    copies = UploadCopies(tmp_path / "cache")
    uploads = [os.urandom(size) for size in (20_000, 1_000_000, 20_000)]
    for data in (*uploads, *uploads):
        assert copies.store_upload(named(data), memoryview(data))
    assert [copies.read_upload(named(data)) for data in reversed(uploads)] == uploads[::-1]
    assert list((tmp_path / "cache").iterdir()) == []
    assert copies._file is not None
    status = os.fstat(copies._file.fileno())
    assert (status.st_size, status.st_mode & 0o077, status.st_nlink) == (sum(map(len, uploads)), 0, 0)
    copies.close()


@pytest.mark.parametrize("how", ["full", "little", "no folder"])
def test_a_disk_that_cannot_store_copies_is_reported_once(
    how: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    retained = UploadCopies(tmp_path / "cache")
    if how == "full":

        def write(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(copies.os, "write", write)
    elif how == "little":
        monkeypatch.setattr(copies.shutil, "disk_usage", lambda _: _Usage())
    else:
        (tmp_path / "cache").write_text("in the way")
    for data in (b"a" * 20_000, b"b" * 20_000):
        assert not retained.store_upload(named(data), memoryview(data))
    (line,) = capsys.readouterr().err.splitlines()
    assert "no copy of the weights can be kept" in line
    assert "ends if it loses its server for good" in line


class _Usage:
    free = 1000
