"""What this machine takes for every operator of a network at several slice sizes, and for coding what may travel.

One profile is measured on the robot and one on the server, by the same command; together with a link they make the
cost model. A profile is tied to a sequence by its hash and says what machine it was measured on.
"""

from __future__ import annotations

import functools
import json
import pathlib
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch

from edge_offload import background, records
from edge_offload.errors import BadInput, ProtocolError
from edge_offload.execute.clocks import Clock, busy_clock, clock_of
from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.execute.sequence_runner import Values
from edge_offload.execute.tensors import pack_tensors, unpack_tensors
from edge_offload.ir import sequence_hash
from edge_offload.ir.liveness import free_after
from edge_offload.power.states import StatePowers
from edge_offload.split.footprints.registry import Locality
from edge_offload.split.model.cost import CodecCost, CopyCosts, CostModel, LinkCosts, OperatorCost, fit_cost
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side
from edge_offload.split.model.reference import HOST, copy_values, shared_values
from edge_offload.split.runtime.half import PieceHalf

FRACTIONS = (1.0, 0.5, 0.25, 0.0)
"""Slice sizes at which a local operator is measured, as fractions of its rows; 0 stands for a single row."""

PASSES_S = 4.0
"""Passes over the network end after this long, whatever ``repeats`` says: a network of seconds is timed once."""
SLOW_S = 0.05
"""An operator that takes longer finds nothing of use in the caches: its slices are timed once, without a warm-up."""

LEAST_CODED_BYTES = 4096
"""Smaller payloads go as they are."""
SAMPLE_BYTES = 128 * 1024
SAMPLE_PLACES = (0.5, 0.0, 1.0)
"""Where in a payload codecs are measured, from its first row to its last one."""
PAUSE_S, PAUSE_STEPS = 0.05, 10
"""Before a pass, and how often others are given way in it: an inference finds the caches as whatever ran since the last
frame left them."""
COPY_BYTES = (1 << 12, 1 << 17, 1 << 20, 1 << 23)
COPY_REPEATS = 9

MAX_PROFILE_BYTES = 32 << 20
"""Of a profile that came over a link."""

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
        codecs: value -> what codecs do to it, inputs and what operators make.
        whole_s: seconds of the unsplit network, run operator by operator.
        alone_s: seconds of the unsplit network as it runs without a plan; 0 if that is not known.
        copies: (bytes, seconds) of copies to where it computes, and back; none where that is the host.
    """

    model: str
    sequence: str
    axes: Mapping[int, int]
    machine: Mapping[str, Any]
    points: Tuple[Points, ...]
    codecs: Mapping[int, Tuple[CodecSpeed, ...]] = field(default_factory=dict)
    whole_s: float = 0.0
    alone_s: float = 0.0
    copies: Tuple[Points, ...] = ()

    def fit_costs(self, factor: float = 1.0) -> Tuple[OperatorCost, ...]:
        """Fit launch and slope of every operator, times ``factor`` (for an emulated slower machine)."""
        fitted = []
        for points in self.points:
            cost = fit_cost([p[0] for p in points], [p[1] for p in points]) if points else OperatorCost(0.0, 0.0)
            fitted.append(OperatorCost(cost.launch_s * factor, cost.row_s * factor))
        return tuple(fitted)

    def fit_copies(self) -> CopyCosts:
        """Fit costs of copies to a device; an emulated slower machine copies as fast as this one."""
        to_device, to_host = (fit_cost([p[0] for p in points], [p[1] for p in points]) for points in self.copies)
        return CopyCosts(to_device, to_host)

    def to_record(self) -> Dict[str, Any]:
        """Return a JSON record of kind ``split_profile``."""
        return {
            "model": self.model,
            "sequence": self.sequence,
            "axes": {str(number): axis for number, axis in self.axes.items()},
            "machine": dict(self.machine),
            "whole_s": self.whole_s,
            "alone_s": self.alone_s,
            "operators": [[[rows, seconds] for rows, seconds in points] for points in self.points],
            **({"copies": [[list(point) for point in points] for points in self.copies]} if self.copies else {}),
            "codecs": {str(number): [vars(speed) for speed in speeds] for number, speeds in self.codecs.items()},
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
        return Profile.from_record(record)

    @staticmethod
    def from_bytes(buffers: Sequence[Any]) -> Profile:
        """The profile in the one buffer of a server's reply.

        Raises:
            ProtocolError: it is none.
        """
        if len(buffers) != 1 or memoryview(buffers[0]).nbytes > MAX_PROFILE_BYTES:
            raise ProtocolError("the server sent no profile")
        try:
            return Profile.from_record(json.loads(bytes(buffers[0]).decode()))
        except (ValueError, RecursionError, BadInput) as error:
            raise ProtocolError(f"the server's profile cannot be read: {error}") from error

    @staticmethod
    def from_record(record: Any) -> Profile:
        """Parse the profile in a record.

        Raises:
            BadInput: it is none.
        """
        records.validate("split_profile", record)
        return Profile(
            record["model"], record["sequence"], {int(key): axis for key, axis in record["axes"].items()},
            record["machine"], tuple(tuple((int(r), float(s)) for r, s in points) for points in record["operators"]),
            {int(key): tuple(CodecSpeed(**speed) for speed in speeds) for key, speeds in record["codecs"].items()},
            record["whole_s"], record.get("alone_s", 0.0),
            tuple(tuple((int(b), float(s)) for b, s in points) for points in record.get("copies", ())),
        )  # fmt: skip


class _ProfileValues(Values):
    """Whole values of one run, for a rule's ``run``."""

    def __init__(self, network: TracedNetwork, shared: Mapping[int, torch.Tensor], device: torch.device) -> None:
        super().__init__(network.located.kernels_on(device), shared)
        self.located = network.located
        self.place = str(device)
        self.tensors.update(zip(network.program.sequence.inputs, network.inputs))

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        return self.tensors[number].narrow(self.located.axes[number], low, high - low)


@torch.no_grad()
def measure_profile(
    network: TracedNetwork,
    repeats: int = 5,
    codecs: bool = True,
    report: Callable[[str], None] = lambda what: None,
    device: torch.device = HOST,
) -> Profile:
    """Time every operator on real intermediate values: whole in passes over the network, then slices of several sizes.

    A whole operator costs what it costs in its place, with the caches as the operators before it leave them: the median
    over ``repeats`` passes. Slices are repeated one after the other, taken from the middle, where their halos are full,
    and scaled by what the whole costs in place / repeated. What takes long is repeated less often. With one compute
    thread the time is the processor's, so that inferences beside it cost accuracy but no more; with several it is only
    worth something on an idle machine. Between the passes the network is run as it is, without a plan. ``report`` hears
    how far it is.

    On a GPU the time is that between two of its events, behind a warm-up; ``network`` and its values are copied there.

    Raises:
        OutOfMemory, DeviceLost: the GPU failed.
    """
    with gpu_failures():
        network = network.copy_to(device)
        clock = clock_of(device)
        with clock.timed_stream():
            return _measure_network(network, repeats, codecs, report, device, clock)


def _measure_network(
    network: TracedNetwork,
    repeats: int,
    codecs: bool,
    report: Callable[[str], None],
    device: torch.device,
    clock: Clock,
) -> Profile:
    located, sequence = network.located, network.program.sequence
    shared = copy_values(shared_values(located, network.program.constants), device)
    dead = free_after(sequence)
    report("timing the network as a whole")
    in_place, alone_s = _NetworkPasses(network, shared, dead, device, clock).run_passes(repeats, report)
    values = _ProfileValues(network, shared, device)
    measured: List[Points] = []
    codecs_of: Dict[int, Tuple[CodecSpeed, ...]] = {}
    if codecs:
        codecs_of = {number: measure_codecs(tensor.cpu()) for number, tensor in zip(sequence.inputs, network.inputs)}
    for index, (operator, entry) in enumerate(zip(sequence.operators, located.operators)):
        background.check()
        report(f"timing operator {index + 1} of {len(sequence.operators)}")
        if entry.kind is Locality.FREE:
            measured.append(())
            continue
        values.run_operator(index)
        whole_s = statistics.median(seconds[index] for seconds in in_place)
        measured.append(_measure_slices(values, index, repeats, whole_s, clock))
        if codecs:
            report(f"timing operator {index + 1} of {len(sequence.operators)}")
            # a view has the bytes of what it is a view of
            sources = dict(operator.aliases)
            for position, number in enumerate(operator.outputs):
                if number is not None:
                    cached = codecs_of.get(sources.get(position, -1))
                    codecs_of[number] = measure_codecs(values.tensors[number].cpu()) if cached is None else cached
        for number in dead[index]:
            values.free_value(number)
    axes = {number: located.axes[number] for number in sequence.inputs if number in located.axes}
    whole_s = statistics.median(sum(seconds) for seconds in in_place)
    return Profile(network.name, sequence_hash(sequence), axes, fingerprint_of(device), tuple(measured),
                   {number: speeds for number, speeds in codecs_of.items() if speeds}, whole_s, alone_s)  # fmt: skip


class _NetworkPasses:
    """Repeated passes over the whole network: operator by operator, and as it runs without a plan."""

    def __init__(
        self,
        network: TracedNetwork,
        shared: Mapping[int, torch.Tensor],
        dead: Sequence[Sequence[int]],
        device: torch.device,
        clock: Clock,
    ) -> None:
        self._network, self._shared, self._dead = network, shared, dead
        self._device, self._clock = device, clock
        self._give_way: Callable[[], None] = lambda: None

    def run_passes(self, repeats: int, report: Callable[[str], None]) -> Tuple[List[List[float]], float]:
        """Seconds of every operator in up to ``repeats`` passes, and the median of the network alone.

        One pass warms up; the network alone is run in turn with the passes.
        """
        passes: List[List[float]] = []
        unplanned: List[float] = []
        started = time.monotonic()
        while len(passes) <= repeats and (len(passes) < 2 or time.monotonic() - started < PASSES_S):
            message = f"timing the network as a whole, pass {len(passes) + 1}"
            self._give_way = functools.partial(report, message)
            passes.append(self._time_operators())
            unplanned.append(self._time_network())
        return passes[1:], statistics.median(unplanned[1:])

    def _pause_work(self) -> None:
        for _ in range(PAUSE_STEPS):
            self._give_way()
            threading.Event().wait(PAUSE_S / PAUSE_STEPS)
        self._give_way()

    def _time_network(self) -> float:
        """Return seconds of one inference without a plan: of the model itself, or of its record, call by call."""
        network, clock = self._network, self._clock
        values = _ProfileValues(network, self._shared, self._device)
        self._pause_work()
        started = clock.record_mark()
        if network.module is not None:
            network.module(*network.inputs)
            return clock.seconds_between(started, clock.record_mark())
        for index, entry in enumerate(network.located.operators):
            background.check()
            if entry.kind is not Locality.FREE:
                values.run([(index, 0, entry.length)], [self._dead[index]])
        return clock.seconds_between(started, clock.record_mark())

    def _time_operators(self) -> List[float]:
        """Seconds of every operator, whole, in one pass over the network; 0 for free operators.

        As the runtime computes it: after a pause, as between two frames, with the runtime's own keeping of values, and
        giving their memory back counts.
        """
        network, clock = self._network, self._clock
        half = PieceHalf(network.located, self._shared, {}, self._device)
        for number, tensor in zip(network.program.sequence.inputs, network.inputs):
            half.store_rows(number, 0, tensor)
        self._pause_work()
        marks: List[Any] = []
        for index, entry in enumerate(network.located.operators):
            background.check()
            if entry.kind is Locality.FREE:
                continue
            marks.append((index, clock.record_mark()))
            half.run([(index, 0, entry.length)], [self._dead[index]])
            marks.append((index, clock.record_mark()))
        seconds = [0.0] * len(network.located.operators)
        for (index, started), (_, ended) in zip(marks[::2], marks[1::2]):
            seconds[index] = clock.seconds_between(started, ended)
        return seconds


def _measure_slices(values: _ProfileValues, index: int, repeats: int, in_place_s: float, clock: Clock) -> Points:
    entry = values.located.operators[index]
    local = entry.local
    if local is None:
        return ((1, in_place_s),)
    on_host = values.place == "cpu"
    slow = in_place_s > SLOW_S and on_host
    points: List[Tuple[int, float]] = []
    for size in sorted({max(1, round(entry.length * fraction)) for fraction in FRACTIONS}):
        if slow and size == entry.length:
            points.append((size, in_place_s))
            continue
        low = (entry.length - size) // 2
        seconds = []
        for _ in range(1 if slow else repeats + 1):
            started, mark = busy_clock(), clock.record_mark()
            if size == entry.length:
                values.kernels[index](values.whole)
            else:
                local.run(low, low + size, values)
            busy_s = busy_clock() - started
            seconds.append(busy_s if on_host else clock.seconds_between(mark, clock.record_mark()))
        points.append((size, seconds[0] if slow else statistics.median(seconds[1:])))
    scale = in_place_s / max(points[-1][1], 1e-9)
    return tuple((size, repeated_s * scale) for size, repeated_s in points)


def time_copies(to_device: Callable[[torch.Tensor], Any], to_host: Callable[[int], Any]) -> Tuple[Points, Points]:
    """Medians of copies of several sizes; each function waits for what it copies (back: so many bytes)."""

    def median_s(copy: Callable[[Any], Any], payload: Any) -> float:
        seconds = []
        for _ in range(COPY_REPEATS + 1):
            started = time.perf_counter()
            copy(payload)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])

    rows = [torch.zeros(size, dtype=torch.uint8) for size in COPY_BYTES]
    return (
        tuple((tensor.numel(), median_s(to_device, tensor)) for tensor in rows),
        tuple((size, median_s(to_host, size)) for size in COPY_BYTES),
    )


def measure_codecs(tensor: torch.Tensor) -> Tuple[CodecSpeed, ...]:
    """Lossless codecs that suit a payload and make it at least 5 % smaller, measured on stretches of about a piece.

    Of several places, because a picture is not as rich everywhere.
    """
    from edge_offload.link import codecs
    from edge_offload.link.codecs.choice import candidate_codecs, content_class, cut_slab

    if tensor.dtype == torch.bfloat16 or tensor.numel() * tensor.element_size() < LEAST_CODED_BYTES:
        return ()
    values = tensor.contiguous().numpy()
    pieces = [np.ascontiguousarray(cut_slab(values, SAMPLE_BYTES, place)) for place in SAMPLE_PLACES]
    array = pieces[0]
    speeds: List[CodecSpeed] = []
    for name in candidate_codecs(values, content_class(values)):
        seconds: List[Tuple[float, float]] = []
        sizes: List[int] = []
        try:
            for piece in pieces:
                started = busy_clock()
                descriptors, buffers = pack_tensors([torch.from_numpy(piece)], name)
                coded_at = busy_clock()
                sizes.append(sum(memoryview(buffer).nbytes for buffer in buffers))
                if sizes[0] > 0.95 * array.nbytes:
                    break
                unpack_tensors(descriptors, buffers)
                seconds.append((coded_at - started, busy_clock() - coded_at))
        except (codecs.NotApplicable, BadInput):
            continue
        coded = statistics.mean(sizes)
        if coded <= 0.95 * array.nbytes:
            # the first one counts, too: in an inference every piece finds other things in the caches
            encode_s, decode_s = (max(statistics.mean(times), 1e-9) for times in zip(*seconds))
            speeds.append(CodecSpeed(name, array.nbytes / max(coded, 1), array.nbytes / encode_s,
                                    array.nbytes / decode_s))  # fmt: skip
    return tuple(speeds)


def make_cost_model(
    located: LocalityMap,
    robot: Profile,
    server: Profile,
    link: Optional[LinkCosts] = None,
    power: Optional[StatePowers] = None,
    request_s: float = 0.0,
    slowdown: float = 1.0,
) -> CostModel:
    """Derive costs from a profile of each side.

    Args:
        located: the sequence that both profiles are of.
        robot: measured on the robot.
        server: measured on the server.
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
    copies = {side: profile.fit_copies() for side, profile in zip(Side, (robot, server)) if profile.copies}
    return CostModel(located, robot.fit_costs(slowdown), server.fit_costs(), _codec_costs(robot, server, slowdown),
                     link or LinkCosts(), power or StatePowers(), request_s,
                     robot.alone_s * slowdown if robot.alone_s else None,
                     copies)  # fmt: skip


def _codec_costs(robot: Profile, server: Profile, slowdown: float) -> Dict[int, Tuple[CodecCost, ...]]:
    """Return codecs that both sides have measured, without dominated ones."""
    costs: Dict[int, Tuple[CodecCost, ...]] = {}
    for number, speeds in robot.codecs.items():
        on_server = {speed.name: speed for speed in server.codecs.get(number, ())}
        options = [CodecCost(s.name, s.ratio, s.encode_bytes_per_s / slowdown, on_server[s.name].decode_bytes_per_s,
                             s.decode_bytes_per_s / slowdown, on_server[s.name].encode_bytes_per_s)
                   for s in speeds if s.name in on_server]  # fmt: skip
        undominated = tuple(option for option in options if not _is_dominated(option, options))
        if undominated:
            costs[number] = undominated
    return costs


def _is_dominated(option: CodecCost, options: Sequence[CodecCost]) -> bool:
    def list_merits(item: CodecCost) -> Tuple[Any, ...]:
        return (item.ratio, item.robot_bytes_per_s, item.server_bytes_per_s, item.robot_decode_bytes_per_s,
                item.server_encode_bytes_per_s)  # fmt: skip

    own_merits = list_merits(option)
    others = [list_merits(other) for other in options if other is not option]
    return any(all(a >= b for a, b in zip(other, own_merits)) and other != own_merits for other in others)
