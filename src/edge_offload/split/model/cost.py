"""What things cost: operators by rows on each side, payloads on the link, codecs, requests, and the robot's power.

t(operator, rows) = launch + rows x slope, fitted from several slice sizes. It does not go through zero: a narrow slice
still pays the launch, and leaving that out is what made published predictions of deep networks 40 ms too short.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.power.states import StatePowers
from edge_offload.split.footprints.registry import Locality
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import PlanStep, Side

Seconds = Union[float, Array]

PIECE_BYTES = 128 * 1024
"""What the robot sends is cut into pieces of rows of about this size, so that coding, sending and decoding overlap."""
MAX_PIECES = 24
"""Per transfer: every piece is a message, and both ends bound how many of them wait."""


@dataclass(frozen=True)
class OperatorCost:
    """Seconds for ``rows`` output rows of one operator on one side: ``launch_s + rows * row_s``."""

    launch_s: float
    row_s: float

    def __post_init__(self) -> None:
        if not (self.launch_s >= 0 and self.row_s >= 0):
            raise BadInput(f"an operator cannot cost {self.launch_s} s + {self.row_s} s per row")

    def seconds_for(self, rows: float) -> float:
        """Return the cost of a slice; 0 for no rows."""
        return self.launch_s + rows * self.row_s if rows > 0 else 0.0


def fit_cost(rows: Sequence[int], seconds: Sequence[float]) -> OperatorCost:
    """Fit launch and slope to measurements at several slice sizes: least relative squares, both at least zero.

    Raises:
        BadInput: no measurements.
    """
    if not len(rows) or len(rows) != len(seconds):
        raise BadInput("no measurements to fit a cost to")
    x, y = np.asarray(rows, dtype=float), np.maximum(np.asarray(seconds, dtype=float), 1e-9)
    if len(set(rows)) == 1:
        return OperatorCost(0.0, float(y.mean() / x[0]))
    from scipy.optimize import nnls

    weights = 1.0 / y
    (launch, slope), _ = nnls(np.stack([weights, x * weights], axis=1), np.ones_like(y))
    return OperatorCost(float(launch), float(slope))


@dataclass(frozen=True)
class CopyCosts:
    """Seconds of one copy by its bytes (in place of rows): from the host to a side's device, and back."""

    to_device: OperatorCost
    to_host: OperatorCost


@dataclass(frozen=True)
class CodecCost:
    """What a codec does to payloads of one kind.

    Attributes:
        name: the codec's name in plans; ``raw`` is always there.
        ratio: raw bytes / coded bytes, measured.
        robot_bytes_per_s, server_bytes_per_s: raw bytes per second: coding on the robot, decoding on the server.
        robot_decode_bytes_per_s, server_encode_bytes_per_s: the other way; as fast as the first if not given.
    """

    name: str
    ratio: float
    robot_bytes_per_s: float
    server_bytes_per_s: float
    robot_decode_bytes_per_s: Optional[float] = None
    server_encode_bytes_per_s: Optional[float] = None

    def encode_s(self, raw_bytes: float, sender: Side) -> float:
        """Return seconds of coding on the sender's side."""
        if sender is Side.ROBOT:
            return raw_bytes / self.robot_bytes_per_s
        return raw_bytes / (self.server_encode_bytes_per_s or self.server_bytes_per_s)

    def decode_s(self, raw_bytes: float, sender: Side) -> float:
        """Return seconds of decoding on the other side."""
        if sender is Side.ROBOT:
            return raw_bytes / self.server_bytes_per_s
        return raw_bytes / (self.robot_decode_bytes_per_s or self.robot_bytes_per_s)


RAW = CodecCost("raw", 1.0, float("inf"), float("inf"))


@dataclass(frozen=True)
class LinkCosts:
    """The radio, apart from its bandwidth, which plans are made for.

    Attributes:
        latency_s: one-way delay of a message.
        message_s: time that the link is taken by a message beyond its bytes.
        down_factor: bandwidth down / bandwidth up.
    """

    latency_s: float = 0.0013
    message_s: float = 0.0001
    down_factor: float = 1.0


@dataclass(frozen=True)
class CostModel:
    """Everything that ``simulate`` needs besides a plan and a bandwidth.

    Attributes:
        located: the sequence and its axes.
        robot, server: cost of every operator.
        codecs: value -> codecs that its payloads may take besides ``raw``.
        link: see :class:`LinkCosts`.
        power: the robot's watts by state.
        request_s: the runtime's own time on the path of every inference that uses the link, both sides together.
        alone_s: the whole network on the robot as it runs without a plan, which is what a plan without transfers does;
            None: as its operators cost.
        copies: of sides that do not compute on the host.
    """

    located: LocalityMap
    robot: Tuple[OperatorCost, ...]
    server: Tuple[OperatorCost, ...]
    codecs: Mapping[int, Tuple[CodecCost, ...]] = field(default_factory=dict)
    link: LinkCosts = field(default_factory=LinkCosts)
    power: StatePowers = field(default_factory=StatePowers)
    request_s: float = 0.0
    alone_s: Optional[float] = None
    copies: Mapping[Side, CopyCosts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.located.operators)
        if len(self.robot) != count or len(self.server) != count:
            raise BadInput(f"costs of {len(self.robot)} and {len(self.server)} operators for a sequence of {count}")

    def operator_s(self, side: Side, index: int, rows: int) -> float:
        """Return seconds for output rows of one operator; free operators cost nothing."""
        if self.located.operators[index].kind is Locality.FREE:
            return 0.0
        costs = self.robot if side is Side.ROBOT else self.server
        return costs[index].seconds_for(rows)

    def network_s(self, side: Side) -> float:
        """Return seconds for the whole network on one side, without any transfer."""
        return sum(self.operator_s(side, index, entry.length) for index, entry in enumerate(self.located.operators))

    def find_codec(self, number: int, name: str) -> CodecCost:
        """The codec called ``name`` for payloads of a value.

        Raises:
            BadInput: the model knows no such codec for that value.
        """
        for option in (RAW, *self.codecs.get(number, ())):
            if option.name == name:
                return option
        raise BadInput(f"no cost is known of codec {name!r} for value {number}")

    def make_payload(self, number: int, rows: int, sender: Side, name: str) -> Payload:
        """Return the costs of moving ``rows`` rows of a value with a codec."""
        option = self.find_codec(number, name)
        raw = rows * self.located.row_bytes(number)
        pieces = self.count_pieces(number, rows, sender)
        encode_s, decode_s = option.encode_s(raw, sender), option.decode_s(raw, sender)
        sequence = self.located.sequence
        # inputs and whole results are on the robot's host
        if sender in self.copies and not (sender is Side.ROBOT and number in sequence.inputs):
            encode_s += pieces * self.copies[sender].to_host.seconds_for(raw / pieces)
        if sender.opposite in self.copies and not (sender is Side.SERVER and number in sequence.outputs):
            decode_s += pieces * self.copies[sender.opposite].to_device.seconds_for(raw / pieces)
        return Payload(raw, raw / option.ratio, encode_s, decode_s, pieces)

    def local_copies_s(self, steps: Sequence[PlanStep]) -> Tuple[float, float]:
        """Return seconds of copying the robot's inputs to its device, and its results back."""
        if Side.ROBOT not in self.copies or not steps:
            return 0.0, 0.0
        located, copies = self.located, self.copies[Side.ROBOT]
        operators = [located.sequence.operators[step.operator] for step in steps]
        read = {number for operator in operators for number in operator.input_ids()}
        produced = {number for operator in operators for number in operator.output_ids()}
        to_device = sum(
            copies.to_device.seconds_for(located.nbytes(number)) for number in located.sequence.inputs if number in read
        )
        to_host = sum(
            copies.to_host.seconds_for(located.nbytes(number))
            for number in located.sequence.retained_ids()
            if number in produced
        )
        return to_device, to_host

    def count_pieces(self, number: int, rows: int, sender: Side) -> int:
        """Return the number of pieces of a transfer: the robot cuts along the rows, the server sends one message."""
        if sender is Side.SERVER or number not in self.located.axes:
            return 1
        return max(1, min(int(rows * self.located.row_bytes(number) // PIECE_BYTES), MAX_PIECES, rows))

    def best_codec(self, number: int, rows: int, sender: Side, bandwidth: float) -> str:
        """Return the codec with which the rows arrive first, at ``bandwidth`` bytes per second."""
        options = (RAW, *self.codecs.get(number, ()))
        if len(options) == 1:
            return RAW.name
        rate = bandwidth * (1.0 if sender is Side.ROBOT else self.link.down_factor)
        return min(
            options, key=lambda option: float(self.make_payload(number, rows, sender, option.name).idle_link_s(rate))
        ).name


@dataclass(frozen=True)
class Payload:
    """One transfer: raw and coded bytes, seconds of coding and decoding, and pieces that are pipelined.

    Numbers, or arrays over bandwidths where the best codec depends on the bandwidth.
    """

    raw_bytes: Any
    coded_bytes: Any
    encode_s: Any
    decode_s: Any
    pieces: Any

    def idle_link_s(self, rate: Seconds) -> Array:
        """Return seconds from ready to usable on an idle link without delay, at one bandwidth or several."""
        wire = self.coded_bytes / np.maximum(rate, 1e-9)
        slowest = np.maximum(np.maximum(self.encode_s, wire), self.decode_s)
        return np.asarray(slowest + (self.encode_s + wire + self.decode_s - slowest) / self.pieces)
