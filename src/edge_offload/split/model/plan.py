"""A plan: which rows of which operator each side computes, in which order, and what crosses the link.

A plan is data, small, readable, and tied to one sequence by its hash. :func:`edge_offload.split.model.check.check_plan`
proves that it computes what the unsplit network computes; nothing runs a plan that has not passed it.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field, fields, replace
from typing import Any, List, Mapping, NamedTuple, NoReturn, Tuple

from edge_offload.errors import BadInput

FORMAT = 1
_KEYS = {"format", "sequence", "axes", "robot", "server", "transfers", "about"}


class Side(str, enum.Enum):
    """Where something happens. The input and the results are the robot's."""

    ROBOT = "robot"
    SERVER = "server"

    @property
    def opposite(self) -> Side:
        """The peer."""
        return Side.SERVER if self is Side.ROBOT else Side.ROBOT


class PlanStep(NamedTuple):
    """Compute output rows [low, high) of an operator; a global operator has the one row 0."""

    operator: int
    low: int
    high: int


@dataclass(frozen=True)
class RowTransfer:
    """Send rows [low, high) of a value to the other side, as soon as ``sender`` has them all.

    Attributes:
        value: number of the value; (0, 1) of a value without an axis is all of it.
        low, high: rows.
        sender: who sends.
        codec: name of the payload codec; ``raw`` sends the bytes as they are.
    """

    value: int
    low: int
    high: int
    sender: Side
    codec: str = "raw"


@dataclass(frozen=True)
class SplitPlan:
    """A whole plan.

    Attributes:
        sequence: hash of the sequence that it is for (32 hexadecimal digits).
        axes: input value -> axis that it is split along.
        robot, server: the steps of each side, in the order in which that side takes them.
        transfers: what crosses the link; each direction sends in this order.
        about: how the plan came about (planner, objective, bandwidth, predicted cost); not part of its meaning.
    """

    sequence: str
    axes: Mapping[int, int]
    robot: Tuple[PlanStep, ...]
    server: Tuple[PlanStep, ...]
    transfers: Tuple[RowTransfer, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def steps_of(self, side: Side) -> Tuple[PlanStep, ...]:
        """The steps of one side."""
        return self.robot if side is Side.ROBOT else self.server

    def transfers_from(self, sender: Side) -> Tuple[RowTransfer, ...]:
        """Return the transfers of one direction, in order."""
        return tuple(transfer for transfer in self.transfers if transfer.sender is sender)

    def with_about(self, **facts: Any) -> SplitPlan:
        """Return the plan with more facts on its origin."""
        return replace(self, about={**self.about, **facts})

    @property
    def is_local(self) -> bool:
        """True if the robot computes everything."""
        return not self.server and not self.transfers

    @property
    def splits_an_operator(self) -> bool:
        """True if some operator runs on both sides: the plan is not device-only, server-only or a layer cut."""
        return bool({step.operator for step in self.robot} & {step.operator for step in self.server})

    @property
    def kind(self) -> str:
        """``device``, ``server``, ``layers`` (whole operators on both sides) or ``split`` (an operator on both)."""
        if self.is_local:
            return "device"
        if not self.robot:
            return "server"
        return "split" if self.splits_an_operator else "layers"

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(
            {
                "format": FORMAT,
                "sequence": self.sequence,
                "axes": {str(number): axis for number, axis in self.axes.items()},
                "robot": [[step.operator, step.low, step.high] for step in self.robot],
                "server": [[step.operator, step.low, step.high] for step in self.server],
                "transfers": [[t.value, t.low, t.high, t.sender.value, t.codec] for t in self.transfers],
                "about": dict(self.about),
            }
        )

    @staticmethod
    def from_json(text: str) -> SplitPlan:
        """The plan in ``text``.

        Raises:
            BadInput: it is not a plan of this format. Whether it is right for a sequence is ``check``'s to say.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"not a plan: {error}") from error
        if not isinstance(document, dict) or set(document) != _KEYS or document["format"] != FORMAT:
            _refuse_plan(f"not a plan of format {FORMAT}")
        if not isinstance(document["sequence"], str) or not isinstance(document["about"], dict):
            _refuse_plan("a hash and facts are missing")
        axes = document["axes"]
        if not isinstance(axes, dict) or not all(key.isdecimal() and _is_count(axis) for key, axis in axes.items()):
            _refuse_plan("axes are not numbers")
        transfers: List[RowTransfer] = []
        for row in _parse_rows(document["transfers"]):
            read = RowTransfer(*row) if len(row) == len(fields(RowTransfer)) else None
            counts = read is not None and all(map(_is_count, (read.value, read.low, read.high)))
            if read is None or not counts or not isinstance(read.codec, str) or len(read.codec) > 64:
                _refuse_plan("a transfer is [value, low, high, sender, codec]")
            if read.sender not in (Side.ROBOT.value, Side.SERVER.value):
                _refuse_plan(f"{read.sender!r} is neither robot nor server")
            transfers.append(replace(read, sender=Side(read.sender)))
        return SplitPlan(
            document["sequence"],
            {int(number): axis for number, axis in axes.items()},
            _parse_steps(document["robot"]),
            _parse_steps(document["server"]),
            tuple(transfers),
            document["about"],
        )


def _parse_steps(item: Any) -> Tuple[PlanStep, ...]:
    steps = []
    for row in _parse_rows(item):
        if len(row) != 3 or not all(map(_is_count, row)):
            _refuse_plan("a step is [operator, low, high]")
        steps.append(PlanStep(*row))
    return tuple(steps)


def _parse_rows(item: Any) -> List[List[Any]]:
    most = 200_000
    if not isinstance(item, list) or len(item) > most or not all(isinstance(row, list) for row in item):
        _refuse_plan(f"no list of at most {most} rows")
    return list(item)


def _is_count(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**53


def _refuse_plan(reason: str) -> NoReturn:
    raise BadInput(f"not a plan: {reason}")
