"""Records of a run as JSON lines: their format, writing and reading.

A record is a dictionary with ``kind``, ``t_s`` (time of receipt, seconds since 1970) and the keys of the schema's
definition ``run_<kind>``. Unknown keys are accepted, because a newer writer may add some.
"""

from __future__ import annotations

import json
import math
import pathlib
from dataclasses import dataclass
from typing import IO, Any, Callable, Dict, Iterator, Mapping, Optional

from edge_offload import records
from edge_offload.errors import BadInput

KINDS = ("about", "latency", "people", "scene", "mode", "bandwidth", "power", "server", "diagnostic")
"""Kinds of records; the schema has a definition ``run_<kind>`` of each."""

MAX_LINE = 64 << 10
"""Most characters of a line."""

Record = Dict[str, Any]


class Checker:
    """Checker of records against the schema; costly to make, so used for many."""

    def __init__(self) -> None:
        import jsonschema

        definitions = records.schema()["$defs"]
        self._validators = {
            kind: jsonschema.Draft202012Validator({**definitions[f"run_{kind}"], "$defs": definitions})
            for kind in KINDS
        }

    def check_record(self, record: Any) -> Record:
        """Return ``record`` if it fits the schema.

        Raises:
            BadInput: it does not; the message names the key.
        """
        if not isinstance(record, dict) or record.get("kind") not in KINDS:
            remedy = f"a record is an object whose 'kind' is one of {', '.join(KINDS)}"
            raise BadInput("no record of a run", remedy=remedy)
        for error in self._validators[record["kind"]].iter_errors(record):
            where = "/".join(str(part) for part in error.absolute_path) or "the record"
            raise BadInput(f"{record['kind']} record: {where}: {error.message[:200]}")
        return record

    def parse(self, line: str) -> Record:
        """Parse one line of JSON.

        Raises:
            BadInput: it is no record.
        """
        if len(line) > MAX_LINE:
            raise BadInput(f"a line of {len(line)} characters is no record")
        try:
            # JSON's own limits: Python also reads NaN and numbers that overflow, which browsers reject
            decoded = json.loads(line, parse_constant=_reject_constant, parse_float=_parse_finite)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"a line is not JSON ({error})") from error
        return self.check_record(decoded)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def dumps(record: Mapping[str, Any]) -> str:
    """Encode ``record`` as one line of JSON, without a newline."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


@dataclass
class Reading:
    """Progress of reading.

    Attributes:
        good: number of records.
        bad: number of lines that are no record.
        first_problem: error of the first such line; empty: none.
    """

    good: int = 0
    bad: int = 0
    first_problem: str = ""

    def count_bad_line(self, where: str, error: BadInput) -> None:
        """Count a line that is no record."""
        self.bad += 1
        if not self.first_problem:
            self.first_problem = f"{where}: {error.cause}"


def read_lines(stream: IO[str], reading: Reading, more: Callable[[], bool] = lambda: False) -> Iterator[Record]:
    """Yield the records of a text stream, one per line; other lines are counted and skipped.

    Args:
        stream: the lines, of which at most :data:`MAX_LINE` characters are buffered.
        reading: updated while records are read.
        more: called at the end of the stream; waits, and returns whether to read on (a growing file).
    """
    checker = Checker()
    for number, line in enumerate(_split_lines(stream, more), 1):
        if not line.strip():
            continue
        try:
            record = checker.parse(line.strip())
        except BadInput as error:
            reading.count_bad_line(f"line {number}", error)
        else:
            reading.good += 1
            yield record


def _split_lines(stream: IO[str], more: Callable[[], bool]) -> Iterator[str]:
    partial = ""
    while True:
        text = stream.readline(MAX_LINE)
        # the last line may be incomplete
        if not text and more():
            continue
        # of a line that is too long, one character above the limit is enough to reject it
        partial = (partial + text)[: MAX_LINE + 1]
        if text.endswith("\n") or not text:
            if partial:
                yield partial
            partial = ""
        if not text:
            return


def read(path: pathlib.Path, reading: Optional[Reading] = None) -> Iterator[Record]:
    """Yield the records of a file of JSON lines.

    Raises:
        BadInput: the file cannot be read, or has no record.
    """
    reading = Reading() if reading is None else reading
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            yield from read_lines(stream, reading)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    if not reading.good:
        why = f" ({reading.first_problem})" if reading.first_problem else ""
        raise BadInput(f"{path} holds no record of a run{why}", remedy="give the .jsonl file that a run wrote")


MAX_BYTES = 512 << 20
"""Default limit of a file of records."""


class Writer:
    """Writer of records as JSON lines, up to a size. Not thread-safe.

    Args:
        path: the file; an existing one is replaced.
        max_bytes: limit of the file; later records are dropped.
    """

    def __init__(self, path: pathlib.Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._remaining_bytes = max_bytes
        self.full = False
        self._stream = path.open("w", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record unless the file is full.

        Raises:
            OSError: the disk is full or removed.
        """
        line = dumps(record) + "\n"
        self.full = self.full or len(line) > self._remaining_bytes
        if self.full or self._stream.closed:
            return
        self._remaining_bytes -= len(line)
        self._stream.write(line)

    def flush(self) -> None:
        """Flush the buffer to the operating system."""
        if not self._stream.closed:
            self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
