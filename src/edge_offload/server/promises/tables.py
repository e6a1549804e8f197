"""Latencies of batches on disk: CSV that people write (``batch,latency_ms``)."""

from __future__ import annotations

import csv
import pathlib
from typing import List

from edge_offload.errors import BadInput
from edge_offload.server.promises.latencies import MAX_BATCH, Latencies

COLUMNS = ("batch", "latency_ms")
MAX_BYTES = 1 << 20


def load_csv(path: pathlib.Path) -> Latencies:
    """Read latencies, in seconds, from columns ``batch`` (1, 2, …, without a gap) and ``latency_ms``.

    Raises:
        BadInput: it cannot be read, has other columns, or is no such table.
    """
    try:
        text = path.read_bytes()[: MAX_BYTES + 1].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}", remedy="give a CSV file: batch,latency_ms") from error
    if len(text) > MAX_BYTES:
        raise BadInput(f"{path} is no table of latencies: it has more than {MAX_BYTES} bytes")
    rows = csv.DictReader(text.splitlines())
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise BadInput(f"{path} has the columns {rows.fieldnames}", remedy=f"give {','.join(COLUMNS)}")
    values: List[object] = []
    for row in rows:
        if len(values) == MAX_BATCH or row["batch"] != str(len(values) + 1):
            raise BadInput(
                f"{path}: batch {row['batch']} stands where {len(values) + 1} should",
                remedy=f"list batches 1, 2, … without a gap, at most {MAX_BATCH}",
            )
        try:
            values.append(float(row["latency_ms"]))
        except (TypeError, ValueError) as error:
            raise BadInput(f"{path}: latency_ms of batch {row['batch']} is {row['latency_ms']!r}") from error
    try:
        return Latencies(tuple(one / 1e3 for one in Latencies.parse(values).seconds))
    except BadInput as error:
        raise BadInput(f"{path}, in ms: {error.cause}", error.remedy) from error
