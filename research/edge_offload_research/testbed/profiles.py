"""What the LOPInfer authors measured, as its extract lays it out in CSV and JSON files.

``op_profiles/<model>.csv`` holds each operator's time on both sides, ``summary.csv`` each run's latency, period and
power. Times are in milliseconds there and in seconds here.
"""

from __future__ import annotations

import csv
import pathlib
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple

from edge_offload.errors import BadInput

MODELS: Tuple[str, ...] = ("VGG19_BN", "ConvNeXt_Large", "ResNet152", "DenseNet121", "kapao", "agrnav")
METHODS: Dict[str, str] = {
    "device_only": "local",
    "server_only": "all",
    "dsccs": "flex",
    "spso_ga": "fix",
    "loss_de": "mixed2",
    "loss_beam": "mixed2",
}
"""Planner here -> method there. Both LOSS planners stand beside LOPInfer's runs."""

MAX_ROWS = 100_000


@dataclass(frozen=True)
class ProfiledOperator:
    """One row of a profile.

    Attributes:
        index: position in the authors' call order.
        name: the call: ``conv2d``, ``__getitem__``, ...
        axis: axis of the output along which it may be split; ``None`` for a global operator.
        inputs: positions of the operators whose output it takes (with the authors' aliases of in-place results).
        shape: of its first output; empty if it has none.
        nbytes: of all its outputs.
        robot_s, server_s: seconds for the whole operator.
    """

    index: int
    name: str
    axis: Optional[int]
    inputs: Tuple[int, ...]
    shape: Tuple[int, ...]
    nbytes: int
    robot_s: float
    server_s: float


@dataclass(frozen=True)
class Measured:
    """One of the authors' runs.

    Attributes:
        mean_s, p50_s, p99_s: latency. In every method it contains the hooks of the authors' interception.
        period_s: mean time from one inference to the next.
        power_w: mean power of the whole robot computer.
        energy_j: power x mean latency.
    """

    mean_s: float
    p50_s: float
    p99_s: float
    period_s: float
    power_w: float
    energy_j: float


def read_operators(directory: pathlib.Path, model: str) -> List[ProfiledOperator]:
    """The profile of one model; the first entry is the input and the last one the end.

    The first operator was logged as 0 and its time spread over the others. Where an older log has it, it is put back
    and the others are scaled so that the sum stays what a whole forward pass takes.

    Raises:
        BadInput: the file is missing or is no profile.
    """
    path = directory / "op_profiles" / f"{model}.csv"
    operators: List[ProfiledOperator] = []
    older: Dict[str, float] = {}
    try:
        for number, row in enumerate(_read_rows(path)):
            shapes = [shape for shape in row["out_shapes"].split(";") if shape]
            operators.append(ProfiledOperator(
                int(row["idx"]), row["op"], int(row["local_dim"]) if row["local_dim"] else None,
                tuple(int(item) for item in row["input_from"].split()),
                tuple(int(size) for size in shapes[0].split("x")) if shapes else (),
                int(row["out_bytes_est"]), float(row["robot_ms"]) / 1e3, float(row["server_ms"]) / 1e3,
            ))  # fmt: skip
            if operators[-1].index != number or any(not 0 <= item < number for item in operators[-1].inputs):
                raise BadInput(f"{path}, operator {number}: out of order")
            if number == 1:
                older = {side: float(row[f"{side}_ms_oldfmt"] or 0) / 1e3 for side in ("robot", "server")}
    except (KeyError, ValueError) as error:
        raise BadInput(f"{path} is not an operator profile: {error!r}") from error
    if len(operators) < 3 or operators[0].name != "_start" or operators[-1].name != "_end":
        raise BadInput(f"{path} is not an operator profile", remedy="it begins with _start and ends with _end")
    return _with_first(operators, older["robot"], older["server"])


def _with_first(operators: List[ProfiledOperator], robot_s: float, server_s: float) -> List[ProfiledOperator]:
    total_robot, total_server = sum(op.robot_s for op in operators), sum(op.server_s for op in operators)
    robot = 1 - robot_s / total_robot if operators[1].robot_s == 0 else 1.0
    server = 1 - server_s / total_server if operators[1].robot_s == 0 else 1.0
    scaled = []
    for op in operators:
        times = (op.robot_s * robot, op.server_s * server)
        if op.index == 1 and op.robot_s == 0:
            times = (robot_s, server_s + op.server_s * server)
        scaled.append(ProfiledOperator(op.index, op.name, op.axis, op.inputs, op.shape, op.nbytes, *times))
    return scaled


def read_measured(directory: pathlib.Path, environment: str = "indoors") -> Dict[Tuple[str, str], Measured]:
    """(model, method) -> what the authors measured.

    Raises:
        BadInput: ``summary.csv`` is missing or is no summary.
    """
    path = directory / "summary.csv"
    by_method: Dict[Tuple[str, str], Measured] = {}
    try:
        for row in _read_rows(path):
            if row["env"] == environment:
                by_method[row["model"], row["method"]] = Measured(
                    float(row["dur_mean_ms"]) / 1e3,
                    float(row["dur_p50_ms"]) / 1e3,
                    float(row["dur_p99_ms"]) / 1e3,
                    float(row["period_mean_ms"]) / 1e3,
                    float(row["power_mean_W"]),
                    float(row["energy_J"]),
                )
    except (KeyError, ValueError) as error:
        raise BadInput(f"{path} is not a summary of runs: {error!r}") from error
    return by_method


def _read_rows(path: pathlib.Path) -> Iterator[Dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for number, row in enumerate(csv.DictReader(stream)):
                if number >= MAX_ROWS:
                    raise BadInput(f"{path} has more than {MAX_ROWS} rows")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"cannot read {path}: {error}", remedy="give the directory of the measured data") from error
