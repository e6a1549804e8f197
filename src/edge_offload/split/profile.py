"""What this machine takes for every operator of a network at several slice sizes, and for coding its input.

One profile is measured on the robot and one on the server, by the same command; together with a link they make the
cost model. A profile is tied to a sequence by its hash and says what machine it was measured on.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from edge_offload import records
from edge_offload.errors import BadInput
from edge_offload.execute.fingerprint import fingerprint
from edge_offload.power.states import StatePowers
from edge_offload.sequence import sequence_hash
from edge_offload.sequence.evaluate import call
from edge_offload.sequence.liveness import free_after
from edge_offload.split.cost import CodecCost, CostModel, Link, OperatorCost, fit
from edge_offload.split.footprint import Locality
from edge_offload.split.locality import LocalityMap
from edge_offload.split.networks import Network
from edge_offload.split.reference import shared_values

FRACTIONS = (1.0, 0.5, 0.25, 0.0)
"""Slice sizes at which a local operator is measured, as fractions of its rows; 0 stands for a single row."""

Points = Tuple[Tuple[int, float], ...]


@dataclass(frozen=True)
class CodecSpeed:
    """A codec on one payload, measured here: raw / coded bytes, and raw bytes per second of coding and decoding."""

    name: str
    ratio: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float


@dataclass(frozen=True)
class Profile:
    """Measurements of one side.

    Attributes:
        model: what was measured.
        sequence: hash of its sequence.
        axes: input value -> axis.
        machine: fingerprint of the machine.
        points: per operator, (rows, seconds) as measured; empty for free operators.
        codecs: input value -> what codecs do to it.
        whole_s: seconds of the unsplit network, run operator by operator.
    """

    model: str
    sequence: str
    axes: Mapping[int, int]
    machine: Mapping[str, Any]
    points: Tuple[Points, ...]
    codecs: Mapping[int, Tuple[CodecSpeed, ...]] = field(default_factory=dict)
    whole_s: float = 0.0

    def costs(self, factor: float = 1.0) -> Tuple[OperatorCost, ...]:
        """Launch and slope of every operator, times ``factor`` (for an emulated slower machine)."""
        fitted = []
        for points in self.points:
            cost = fit([p[0] for p in points], [p[1] for p in points]) if points else OperatorCost(0.0, 0.0)
            fitted.append(OperatorCost(cost.launch_s * factor, cost.row_s * factor))
        return tuple(fitted)

    def to_record(self) -> Dict[str, Any]:
        """JSON record of kind ``split_profile``."""
        return {
            "model": self.model,
            "sequence": self.sequence,
            "axes": {str(number): axis for number, axis in self.axes.items()},
            "machine": dict(self.machine),
            "whole_s": self.whole_s,
            "operators": [[[rows, seconds] for rows, seconds in points] for points in self.points],
            "codecs": {str(number): [vars(speed) for speed in found] for number, found in self.codecs.items()},
        }

    def write(self, path: Union[str, pathlib.Path]) -> None:
        """Write the record."""
        records.write(path, "split_profile", self.to_record())

    @staticmethod
    def read(path: Union[str, pathlib.Path]) -> Profile:
        """The profile in a file.

        Raises:
            BadInput: the file cannot be read or is not a profile.
        """
        try:
            record = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"cannot read profile {path}: {error}", remedy="make one: edge-offload profile") from error
        records.validate("split_profile", record)
        return Profile(
            record["model"], record["sequence"], {int(key): axis for key, axis in record["axes"].items()},
            record["machine"], tuple(tuple((int(r), float(s)) for r, s in points) for points in record["operators"]),
            {int(key): tuple(CodecSpeed(**speed) for speed in found) for key, found in record["codecs"].items()},
            record["whole_s"],
        )  # fmt: skip


class _Values:
    """Whole values of one run, as a rule's ``run`` reads them."""

    def __init__(self, located: LocalityMap, shared: Mapping[int, torch.Tensor]) -> None:
        self.located = located
        self.held: Dict[int, torch.Tensor] = dict(shared)

    def whole(self, number: int) -> torch.Tensor:
        return self.held[number]

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        return self.held[number].narrow(self.located.axes[number], low, high - low)


@torch.no_grad()
def measure(network: Network, repeats: int = 5, codecs: bool = True) -> Profile:
    """Time every operator on real intermediate values, ``repeats`` times per slice size; the median counts.

    Slices are taken from the middle, where their halos are full. Timings are only worth something on an idle machine.
    """
    located, sequence = network.located, network.program.sequence
    values = _Values(located, shared_values(located, network.program.constants))
    values.held.update(zip(sequence.inputs, network.inputs))
    dead = free_after(sequence)
    measured: List[Points] = []
    whole_s = 0.0
    for index, (operator, entry) in enumerate(zip(sequence.operators, located.operators)):
        if entry.kind is Locality.FREE:
            measured.append(())
            continue
        started = time.perf_counter()
        results = call(operator, values.whole)
        whole_s += time.perf_counter() - started
        measured.append(_points(values, index, repeats))
        values.held.update({number: r for number, r in zip(operator.outputs, results) if number is not None})
        for number in dead[index]:
            values.held.pop(number, None)
    pairs = zip(sequence.inputs, network.inputs) if codecs else ()
    coded = {number: _codec_speeds(tensor, repeats) for number, tensor in pairs}
    axes = {number: located.axes[number] for number in sequence.inputs if number in located.axes}
    return Profile(network.name, sequence_hash(sequence), axes, fingerprint("cpu"), tuple(measured), coded, whole_s)


def _points(values: _Values, index: int, repeats: int) -> Points:
    entry = values.located.operators[index]
    operator = values.located.sequence.operators[index]
    local = entry.local
    found: List[Tuple[int, float]] = []
    for size in sorted({max(1, round(entry.length * fraction)) for fraction in FRACTIONS}):
        low = (entry.length - size) // 2
        seconds = []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            if local is None:
                call(operator, values.whole)
            else:
                local.run(low, low + size, values)
            seconds.append(time.perf_counter() - started)
        found.append((size, statistics.median(seconds[1:])))
        if local is None:
            break
    return tuple(found)


def _codec_speeds(tensor: torch.Tensor, repeats: int) -> Tuple[CodecSpeed, ...]:
    """Every lossless codec that suits the payload and makes it at least 5 % smaller."""
    from edge_offload.link import codecs

    array = tensor.contiguous().numpy()
    found: List[CodecSpeed] = []
    for name in codecs.codec_names():
        if name in ("raw", "auto") or name in codecs.TEMPORAL:
            continue
        try:
            encoded = codecs.encode(array, name)
        except (codecs.NotApplicable, BadInput):
            continue
        coded = sum(memoryview(buffer).nbytes for buffer in encoded.buffers)
        if coded > 0.95 * array.nbytes:
            continue
        encode_s = _median_s(lambda name=name: codecs.encode(array, name), repeats)
        decode_s = _median_s(lambda e=encoded: codecs.decode(e.descriptor, e.buffers, array.nbytes), repeats)
        found.append(CodecSpeed(name, array.nbytes / max(coded, 1), array.nbytes / encode_s, array.nbytes / decode_s))
    return tuple(found)


def _median_s(run: Any, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return max(statistics.median(seconds), 1e-9)


def cost_model(
    located: LocalityMap,
    robot: Profile,
    server: Profile,
    link: Optional[Link] = None,
    power: Optional[StatePowers] = None,
    request_s: float = 0.0,
    slowdown: float = 1.0,
) -> CostModel:
    """Costs from a profile of each side.

    Args:
        located: the sequence that both profiles are of.
        robot, server: measurements.
        link: delay and asymmetry.
        power: the robot's watts by state.
        request_s: the runtime's own time per inference that uses the link.
        slowdown: the robot's times are multiplied by this, for a robot that is emulated on the profiled machine.

    Raises:
        BadInput: a profile is of another sequence or split along another axis.
    """
    identity = sequence_hash(located.sequence)
    axes = {number: located.axes[number] for number in located.sequence.inputs if number in located.axes}
    for profile in (robot, server):
        if profile.sequence != identity or dict(profile.axes) != axes:
            raise BadInput(f"the profile of {profile.model} was measured for another network, size or axis",
                           remedy="profile again with the options that you plan with")  # fmt: skip
    return CostModel(located, robot.costs(slowdown), server.costs(), _codec_costs(robot, server, slowdown),
                     link or Link(), power or StatePowers(), request_s)  # fmt: skip


def _codec_costs(robot: Profile, server: Profile, slowdown: float) -> Dict[int, Tuple[CodecCost, ...]]:
    """Inputs travel up: coded by the robot, decoded by the server. Codecs that another beats in everything go."""
    costs: Dict[int, Tuple[CodecCost, ...]] = {}
    for number, found in robot.codecs.items():
        there = {speed.name: speed for speed in server.codecs.get(number, ())}
        options = [CodecCost(s.name, s.ratio, s.encode_bytes_per_s / slowdown, there[s.name].decode_bytes_per_s)
                   for s in found if s.name in there]  # fmt: skip
        costs[number] = tuple(option for option in options if not _beaten(option, options))
    return costs


def _beaten(option: CodecCost, options: Sequence[CodecCost]) -> bool:
    mine = (option.ratio, option.robot_bytes_per_s, option.server_bytes_per_s)
    others = [(o.ratio, o.robot_bytes_per_s, o.server_bytes_per_s) for o in options if o is not option]
    return any(all(a >= b for a, b in zip(other, mine)) and other != mine for other in others)
