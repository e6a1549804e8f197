"""The one table of execution modes: where an inference ran, or is asked to run.

``auto`` is not a mode. It is the name of a policy, which picks one of these per frame; a report
(``Latency.mode``, a JSON record) always names the mode that really ran.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Dict, Tuple

from edge_offload.errors import BadInput

AUTO = "auto"

POLICY_NAMES = (AUTO, "latency", "energy", "energy_under_deadline")
"""What may be asked for instead of a mode; :data:`edge_offload.manager.policy.POLICIES` has what each of them is."""


class Mode(str, enum.Enum):
    """An execution mode. The value is its name in parameters, messages and JSON."""

    LOCAL = "local"
    SERVER = "server"
    PER_OP = "per_op"
    CACHED = "cached"
    LAZY = "lazy"
    REPLAY = "replay"
    SPLIT = "split"

    #: The value, in every Python.
    __str__ = str.__str__


@dataclass(frozen=True)
class ModeInfo:
    """Facts on one mode.

    Attributes:
        code: the number that stands for the mode in messages (``OffloadMode.code``); never reused.
        needs_link: whether the mode can only run while a server answers.
        summary: one line for ``--help``, dashboards and reports.
        baseline: the published system that the mode reproduces, or an empty string.
    """

    mode: Mode
    code: int
    needs_link: bool
    summary: str
    baseline: str = ""


TABLE: Dict[Mode, ModeInfo] = {
    info.mode: info
    for info in (
        ModeInfo(Mode.LOCAL, 1, False, "the whole model on the robot", "device-only"),
        ModeInfo(Mode.SERVER, 2, True, "the whole model on the server's replica", "NNTO (native offload)"),
        ModeInfo(Mode.PER_OP, 3, True, "every operator is a round trip", "Cricket"),
        ModeInfo(Mode.CACHED, 4, True, "one round trip per operator, queries answered from a cache", "semi-RRTO"),
        ModeInfo(Mode.LAZY, 5, True, "operators buffered up to the next host read, no speculation"),
        ModeInfo(Mode.REPLAY, 6, True, "the recorded sequence replayed in one round trip", "RRTO"),
        ModeInfo(Mode.SPLIT, 7, True, "robot and server compute parts of the same operators", "Intra-DP, LOPInfer"),
    )
}


#: The first, a copy of the model on the server that needs no learning, stands in for the second until that is ready,
#: and while that is slower.
BRIDGE, BRIDGED = Mode.SERVER, Mode.REPLAY


def parse_mode(text: str) -> Mode:
    """Return the mode named ``text``.

    Raises:
        BadInput: no such mode; the message lists those that exist.
    """
    try:
        return Mode(text.strip().lower())
    except ValueError:
        raise BadInput(
            f"unknown mode {text!r}",
            remedy=f"use one of: {', '.join(names())}" + (" ('auto' is a policy)" if text == AUTO else ""),
        ) from None


def names() -> Tuple[str, ...]:
    """Names of all modes, in the order of the table."""
    return tuple(mode.value for mode in TABLE)
