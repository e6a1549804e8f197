"""Records of a run as JSON lines: what they are, writing them, reading them back.

A record is a dictionary with ``kind``, ``t_s`` (when it was received, seconds since 1970) and the keys that the
definition ``run_<kind>`` of the schema lists. Keys that the schema does not know are let through: a newer writer may
say more.
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
"""Every kind of record; the schema has a definition ``run_<kind>`` of each."""

MAX_LINE = 64 << 10
"""Characters that one line may have."""

Record = Dict[str, Any]


class Checker:
    """Checks records against the schema. Made once, used for many."""

    def __init__(self) -> None:
        import jsonschema

        definitions = records.schema()["$defs"]
        self._validators = {
            kind: jsonschema.Draft202012Validator({**definitions[f"run_{kind}"], "$defs": definitions})
            for kind in KINDS
        }

    def check(self, record: Any) -> Record:
        """``record``, if it is one.

        Raises:
            BadInput: it is not; the message names the key.
        """
        if not isinstance(record, dict) or record.get("kind") not in KINDS:
            remedy = f"a record is an object whose 'kind' is one of {', '.join(KINDS)}"
            raise BadInput("no record of a run", remedy=remedy)
        for error in self._validators[record["kind"]].iter_errors(record):
            where = "/".join(str(part) for part in error.absolute_path) or "the record"
            raise BadInput(f"{record['kind']} record: {where}: {error.message[:200]}")
        return record

    def parse(self, line: str) -> Record:
        """The record in one line of JSON.

        Raises:
            BadInput: there is none.
        """
        if len(line) > MAX_LINE:
            raise BadInput(f"a line of {len(line)} characters is no record")
        try:
            # the limits of JSON itself: Python would read NaN and numbers that overflow, which no browser takes
            decoded = json.loads(line, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"a line is not JSON ({error})") from error
        return self.check(decoded)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def dumps(record: Mapping[str, Any]) -> str:
    """``record`` as one line of JSON, without the line's end."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


@dataclass
class Reading:
    """How reading went so far.

    Attributes:
        good: records read.
        bad: lines that held none.
        first_problem: what was wrong with the first of those; empty when none was.
    """

    good: int = 0
    bad: int = 0
    first_problem: str = ""

    def note(self, where: str, error: BadInput) -> None:
        """One more bad line."""
        self.bad += 1
        if not self.first_problem:
            self.first_problem = f"{where}: {error.cause}"


def read_lines(stream: IO[str], reading: Reading, more: Callable[[], bool] = lambda: False) -> Iterator[Record]:
    """Records from a text stream, one per line. Lines that hold none are counted in ``reading`` and left out.

    Args:
        stream: the lines; never more than :data:`MAX_LINE` characters are held.
        reading: brought up to date while records are taken.
        more: called at the end of the stream; waits, and says whether to look for more (a file that grows).
    """
    checker = Checker()
    for number, line in enumerate(_lines(stream, more), 1):
        if not line.strip():
            continue
        try:
            record = checker.parse(line.strip())
        except BadInput as error:
            reading.note(f"line {number}", error)
        else:
            reading.good += 1
            yield record


def _lines(stream: IO[str], more: Callable[[], bool]) -> Iterator[str]:
    held = ""
    while True:
        text = stream.readline(MAX_LINE)
        # the last line may still be in the making
        if not text and more():
            continue
        # of a line that is too long no more is held than shows that it is
        held = (held + text)[: MAX_LINE + 1]
        if text.endswith("\n") or not text:
            if held:
                yield held
            held = ""
        if not text:
            return


def read(path: pathlib.Path, reading: Optional[Reading] = None) -> Iterator[Record]:
    """Records of a file of JSON lines.

    Raises:
        BadInput: the file cannot be read, or holds no record at all.
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
"""What a file of records holds at most, unless said otherwise."""


class Writer:
    """Writes records as JSON lines, up to a size; thread-unsafe on purpose: give it to one thread or lock it.

    Args:
        path: the file, replaced if it is there.
        max_bytes: nothing is written beyond this; the file stays readable.
    """

    def __init__(self, path: pathlib.Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._left = max_bytes
        self.full = False
        self._stream = path.open("w", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; nothing once the file is full.

        Raises:
            OSError: the disk is full, or gone.
        """
        line = dumps(record) + "\n"
        self.full = self.full or len(line) > self._left
        if self.full or self._stream.closed:
            return
        self._left -= len(line)
        self._stream.write(line)

    def flush(self) -> None:
        """Give what was written to the operating system."""
        if not self._stream.closed:
            self._stream.flush()

    def close(self) -> None:
        """Finish the file."""
        self._stream.close()
