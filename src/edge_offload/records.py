"""JSON that commands write: one schema file, one writer, one place where keys are defined.

The schema is ``schema/records.schema.json`` (JSON Schema draft 2020-12). Each kind of record is a definition in
its ``$defs``; ``write`` refuses a record that does not fit, so that no command can write a private dialect.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, Mapping, Sequence, Union

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.outputs import write_text

SCHEMA_PATH = pathlib.Path(__file__).parent / "schema" / "records.schema.json"
Record = Mapping[str, Any]


def schema() -> Dict[str, Any]:
    """The parsed schema file."""
    with SCHEMA_PATH.open(encoding="utf-8") as stream:
        loaded: Dict[str, Any] = json.load(stream)
    return loaded


def validate(kind: str, record: Record) -> None:
    """Check ``record`` against definition ``kind`` of the schema.

    Raises:
        BadInput: the record does not fit; the message names the key.
    """
    import jsonschema

    document = schema()
    if kind not in document["$defs"]:
        raise BadInput(f"no record kind {kind!r} in {SCHEMA_PATH.name}", remedy=f"kinds: {sorted(document['$defs'])}")
    validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": document["$defs"]})
    problems = sorted(validator.iter_errors(record), key=lambda error: list(map(str, error.absolute_path)))
    if problems:
        first = problems[0]
        where = "/".join(str(part) for part in first.absolute_path) or "the record"
        raise BadInput(f"{kind} record: {where}: {first.message}")


def write(path: Union[str, pathlib.Path], kind: str, record: Union[Record, Sequence[Record]]) -> None:
    """Validate one record, or a list of records of the same kind, and write it as indented JSON to ``path``.

    Raises:
        BadInput: a record does not fit the schema, or the file cannot be written.
    """
    records: List[Record] = [record] if isinstance(record, Mapping) else list(record)
    for item in records:
        validate(kind, item)
    payload = record if isinstance(record, Mapping) else records
    write_text(path, json.dumps(payload, indent=2, sort_keys=False) + "\n")


def read_list(path: Union[str, pathlib.Path, None], kind: str) -> List[Dict[str, Any]]:
    """The records of a kind that ``write`` left in ``path``; none where there is no such file.

    Raises:
        BadInput: it holds something else.
    """
    file = pathlib.Path(path) if path else None
    if file is None or not file.exists():
        return []
    try:
        records: List[Dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        for one in records:
            validate(kind, one)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{file} holds something else: {error}", remedy="name a new file") from error
    return records


def latency_summary(seconds: Sequence[float]) -> Dict[str, float]:
    """``{mean, p50, p99}`` of durations in seconds (linear interpolation between ranks).

    Raises:
        BadInput: no durations were given.
    """
    if not len(seconds):
        raise BadInput("no latencies to summarise", remedy="run at least one frame")
    values = np.asarray(seconds, dtype=float)
    return {
        "mean": float(values.mean()),
        "p50": float(np.percentile(values, 50)),
        "p99": float(np.percentile(values, 99)),
    }
