"""Profiles: times of a network's operators on this machine at several slice sizes, and speeds of codecs.

The robot and the server each measure a profile. Both profiles and the costs of the link make the cost model. A profile
names its operator sequence by hash, and the machine on which it was measured.
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
"""Seconds after which no further pass over the network starts; at least one is timed, besides the warm-up."""
SLOW_S = 0.05
"""Seconds. Slices of a slower operator are timed once, without a warm-up: earlier runs leave no useful caches."""

SAMPLE_PLACES = (0.5, 0.0, 1.0)
"""Places of the samples in a payload: 0 is its first row, 1 its last one."""
PAUSE_STEPS = 10
"""Steps of the pause before a pass. During the pause other work changes the caches, as it does between two frames."""
COPY_BYTES = (1 << 12, 1 << 17, 1 << 20, 1 << 23)

Points = Tuple[Tuple[int, float], ...]
"""Measurements: rows or bytes, and seconds."""


@dataclass(frozen=True)
class CodecSpeed:
    """Measured speed of a codec on one payload.

    Attributes:
        name: of the codec.
        ratio: raw bytes / coded bytes.
        encode_bytes_per_s, decode_bytes_per_s: raw bytes per second.
    """

    name: str
    ratio: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float


@dataclass(frozen=True)
class Profile:
    """Measurements of one network on one machine.

    Attributes:
        model: name of the network.
        sequence: hash of its operator sequence.
        axes: for each input value that is divided, the axis of its rows.
        machine: fingerprint of the machine.
        points: per operator, (rows, seconds) as measured; empty for free operators.
        codecs: for each value (an input or an operator's output), the speeds of codecs that suit it.
        whole_s: seconds of the undivided network, run operator by operator.
        alone_s: seconds of the undivided network as it runs without a plan; 0: not known.
        copies: (bytes, seconds) of copies from the host to the device, and back; empty: the host computes.
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
        """Fit the cost of every operator (launch and time per row), times ``factor`` for an emulated slower machine."""
        fitted = []
        for points in self.points:
            cost = fit_cost([p[0] for p in points], [p[1] for p in points]) if points else OperatorCost(0.0, 0.0)
            fitted.append(OperatorCost(cost.launch_s * factor, cost.row_s * factor))
        return tuple(fitted)

    def fit_copies(self) -> CopyCosts:
        """Fit the costs of copies to and from the device; an emulated slowdown does not change them."""
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
        """Write the record to a JSON file."""
        records.write(path, "split_profile", self.to_record())

    @staticmethod
    def read(path: Union[str, pathlib.Path]) -> Profile:
        """Return the profile in a file.

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
        """Return the profile in the only buffer of a server's response.

        Raises:
            ProtocolError: there is no valid profile.
        """
        if len(buffers) != 1 or memoryview(buffers[0]).nbytes > 32 << 20:
            raise ProtocolError("the server sent no profile")
        try:
            return Profile.from_record(json.loads(bytes(buffers[0]).decode()))
        except (ValueError, RecursionError, BadInput) as error:
            raise ProtocolError(f"the server's profile cannot be read: {error}") from error

    @staticmethod
    def from_record(record: Any) -> Profile:
        """Return the profile in a JSON record.

        Raises:
            BadInput: the record does not fit the schema.
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
    """Undivided values of one inference, of which a locality rule's ``run`` can read rows."""

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

    The time of a whole operator is its median over the passes, with the caches as the operators before it leave them.
    A slice is repeated by itself. It is taken from the middle, where its halos are full. Its time is scaled by the
    operator's time in the passes / its time when repeated. Slow operators are repeated less often. Between the passes
    the network runs without a plan.

    With one compute thread, processor time is measured, so that other load costs only accuracy. With several threads it
    is wall time, which is valid only on an idle machine. On a GPU it is the time between two CUDA events, after a
    warm-up; ``network`` and its values are copied there.

    Args:
        network: traced, with its inputs.
        repeats: timed passes, and timed runs of each slice.
        codecs: whether to measure codecs, too.
        report: called with the progress before each step; it may block to let other work run first.
        device: what computes.

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
    unused = free_after(sequence)
    report("timing the network as a whole")
    passes, alone_s = _NetworkPasses(network, shared, unused, device, clock).run_passes(repeats, report)
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
        operator_s = statistics.median(seconds[index] for seconds in passes)
        measured.append(_measure_slices(values, index, repeats, operator_s, clock))
        if codecs:
            report(f"timing operator {index + 1} of {len(sequence.operators)}")
            # a view has the same bytes as its base, whose measurements it takes
            sources = dict(operator.aliases)
            for position, number in enumerate(operator.outputs):
                if number is not None:
                    cached = codecs_of.get(sources.get(position, -1))
                    codecs_of[number] = measure_codecs(values.tensors[number].cpu()) if cached is None else cached
        for number in unused[index]:
            values.free_value(number)
    axes = {number: located.axes[number] for number in sequence.inputs if number in located.axes}
    whole_s = statistics.median(sum(seconds) for seconds in passes)
    return Profile(network.name, sequence_hash(sequence), axes, fingerprint_of(device), tuple(measured),
                   {number: speeds for number, speeds in codecs_of.items() if speeds}, whole_s, alone_s)  # fmt: skip


class _NetworkPasses:
    """Repeated passes over the whole network, timed operator by operator and as it runs without a plan.

    Args:
        network: traced, with its inputs.
        shared: values that both sides have from the start, on ``device``.
        unused: for each operator, the values that may be freed after it.
        device: what computes.
        clock: of ``device``.
    """

    def __init__(
        self,
        network: TracedNetwork,
        shared: Mapping[int, torch.Tensor],
        unused: Sequence[Sequence[int]],
        device: torch.device,
        clock: Clock,
    ) -> None:
        self._network, self._shared, self._unused = network, shared, unused
        self._device, self._clock = device, clock
        self._report_progress: Callable[[], None] = lambda: None

    def run_passes(self, repeats: int, report: Callable[[str], None]) -> Tuple[List[List[float]], float]:
        """Return the seconds of every operator in up to ``repeats`` passes, and the median seconds without a plan.

        A first pass warms up. A run without a plan follows each pass.
        """
        passes: List[List[float]] = []
        unplanned: List[float] = []
        started = time.monotonic()
        while len(passes) <= repeats and (len(passes) < 2 or time.monotonic() - started < PASSES_S):
            message = f"timing the network as a whole, pass {len(passes) + 1}"
            self._report_progress = functools.partial(report, message)
            passes.append(self._time_operators())
            unplanned.append(self._time_network())
        return passes[1:], statistics.median(unplanned[1:])

    def _pause_work(self) -> None:
        """Wait 50 ms, and report between its steps, so that other work can run."""
        for _ in range(PAUSE_STEPS):
            self._report_progress()
            threading.Event().wait(0.05 / PAUSE_STEPS)
        self._report_progress()

    def _time_network(self) -> float:
        """Return the seconds of one inference without a plan: of the module, or of its operators if it is absent."""
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
                values.run([(index, 0, entry.length)], [self._unused[index]])
        return clock.seconds_between(started, clock.record_mark())

    def _time_operators(self) -> List[float]:
        """Return the seconds of every undivided operator in one pass over the network; 0 for free operators.

        Values are stored as at run time (:class:`PieceHalf`), and the time to free their memory counts.
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
            half.run([(index, 0, entry.length)], [self._unused[index]])
            marks.append((index, clock.record_mark()))
        seconds = [0.0] * len(network.located.operators)
        for (index, started), (_, ended) in zip(marks[::2], marks[1::2]):
            seconds[index] = clock.seconds_between(started, ended)
        return seconds


def _measure_slices(values: _ProfileValues, index: int, repeats: int, operator_s: float, clock: Clock) -> Points:
    """Return (rows, seconds) of an operator, scaled so that all rows take ``operator_s``."""
    entry = values.located.operators[index]
    local = entry.local
    if local is None:
        return ((1, operator_s),)
    on_host = values.place == "cpu"
    is_slow = operator_s > SLOW_S and on_host
    points: List[Tuple[int, float]] = []
    for size in sorted({max(1, round(entry.length * fraction)) for fraction in FRACTIONS}):
        if is_slow and size == entry.length:
            points.append((size, operator_s))
            continue
        low = (entry.length - size) // 2
        seconds = []
        for _ in range(1 if is_slow else repeats + 1):
            started, mark = busy_clock(), clock.record_mark()
            if size == entry.length:
                values.kernels[index](values.whole)
            else:
                local.run(low, low + size, values)
            busy_s = busy_clock() - started
            seconds.append(busy_s if on_host else clock.seconds_between(mark, clock.record_mark()))
        points.append((size, seconds[0] if is_slow else statistics.median(seconds[1:])))
    scale = operator_s / max(points[-1][1], 1e-9)
    return tuple((size, repeated_s * scale) for size, repeated_s in points)


def time_copies(to_device: Callable[[torch.Tensor], Any], to_host: Callable[[int], Any]) -> Tuple[Points, Points]:
    """Return (bytes, median seconds) of copies to a device and back, for the sizes :data:`COPY_BYTES`.

    Args:
        to_device: copies a uint8 tensor of the host, and waits.
        to_host: copies so many bytes back, and waits.
    """

    def median_s(copy: Callable[[Any], Any], payload: Any) -> float:
        seconds = []
        for _ in range(10):
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
    """Return the lossless codecs that make a payload at least 5 % smaller, with their speeds.

    They are measured on samples from several places, because not all parts of an image compress equally well.

    Args:
        tensor: the payload, on the host.
    """
    from edge_offload.link import codecs
    from edge_offload.link.codecs.choice import candidate_codecs, content_class, cut_slab

    if tensor.dtype == torch.bfloat16 or tensor.numel() * tensor.element_size() < 4096:
        return ()
    values = tensor.contiguous().numpy()
    pieces = [np.ascontiguousarray(cut_slab(values, 128 * 1024, place)) for place in SAMPLE_PLACES]
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
            # the first sample counts, too: in an inference the caches are cold for every piece
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
    """Return the cost model made from a profile of each side.

    Args:
        located: the sequence that both profiles measured.
        robot: profile of the robot.
        server: profile of the server.
        link: delay and asymmetry.
        power: the robot's watts by state.
        request_s: overhead of the runtime per inference that uses the link, seconds.
        slowdown: factor on the robot's times, for a robot that is emulated on a faster machine.

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
    """Return by value the codecs that both sides measured, without dominated ones."""
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
    """Return whether another option is at least as good as ``option`` in all respects and better in one."""

    def list_merits(item: CodecCost) -> Tuple[Any, ...]:
        return (item.ratio, item.robot_bytes_per_s, item.server_bytes_per_s, item.robot_decode_bytes_per_s,
                item.server_encode_bytes_per_s)  # fmt: skip

    own_merits = list_merits(option)
    others = [list_merits(other) for other in options if other is not option]
    return any(all(a >= b for a, b in zip(other, own_merits)) and other != own_merits for other in others)
