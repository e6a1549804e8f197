"""Event simulation of a plan: compute on both sides, both directions of the link, barriers, codecs, energy.

Each side takes its steps in order, one at a time; each direction of the link sends its transfers in order, one at a
time. A step waits for the transfers that bring its footprint; a transfer waits for the steps that make its rows. A
plan is compiled once into blocks between such waits, and then costs a handful of operations per bandwidth, so that
all bandwidths of a table are simulated together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.cost import CostModel, Payload, Seconds
from edge_offload.split.model.plan import Side, SplitPlan

Sources = Callable[[Side, int, Range, int], Tuple[int, List[int]]]
Times = Tuple[Array, Array]


@dataclass(frozen=True)
class StepBlock:
    """Steps of one side without a wait in between.

    Attributes:
        awaits: indices of the transfers that must have arrived before.
        seconds: compute time.
        first, last: positions of its steps in the side's list.
    """

    awaits: Tuple[int, ...]
    seconds: float
    first: int
    last: int


@dataclass(frozen=True)
class CompiledPlan:
    """A plan as blocks and payloads.

    Attributes:
        plan: the plan.
        blocks: of each side, in order.
        payloads: of each transfer.
        after: transfer -> (blocks of the sender that must have run, transfers that the sender must have received).
        results: transfers that bring outputs to the robot, beyond what its steps wait for.
    """

    plan: SplitPlan
    blocks: Mapping[Side, Tuple[StepBlock, ...]]
    payloads: Tuple[Payload, ...]
    after: Tuple[Tuple[int, Tuple[int, ...]], ...]
    results: Tuple[int, ...]


def robot_energy(model: CostModel, makespan: Seconds, robot_s: Seconds, communication_s: Seconds) -> Seconds:
    """Return the robot's joules over a makespan: standby throughout, plus computing and communication."""
    power = model.power
    return (makespan * power.standby + robot_s * (power.inference - power.standby)
            + communication_s * (power.communication - power.standby))  # fmt: skip


def compile_plan(plan: SplitPlan, model: CostModel, payloads: Optional[Sequence[Payload]] = None) -> CompiledPlan:
    """Find out who waits for what. ``payloads`` replaces those of the plan's codecs (arrays over bandwidths).

    Raises:
        BadInput: a step's rows come from nowhere; ``check`` says which plan is right.
    """
    makers: Dict[Side, Dict[int, List[Tuple[Range, int]]]] = {side: {} for side in Side}
    for side in Side:
        for position, step in enumerate(plan.steps_of(side)):
            for number in model.located.made_by[step.operator]:
                makers[side].setdefault(number, []).append(((step.low, step.high), position))
    arrivals: Dict[Side, Dict[int, List[Tuple[Range, int]]]] = {side: {} for side in Side}
    for index, transfer in enumerate(plan.transfers):
        arrivals[transfer.sender.opposite].setdefault(transfer.value, []).append(((transfer.low, transfer.high), index))

    def find_sources(side: Side, number: int, rows: Range, before: int) -> Tuple[int, List[int]]:
        """Last own step that makes the rows, and the transfers that bring what no own step makes."""
        if side is Side.ROBOT and number in model.located.sequence.inputs:
            return -1, []
        own_steps = makers[side].get(number, [])
        if (
            len(own_steps) == 1
            and own_steps[0][1] < before
            and own_steps[0][0][0] <= rows[0]
            and rows[1] <= own_steps[0][0][1]
        ):
            return own_steps[0][1], []
        last, missing = -1, [rows]
        for made, position in own_steps:
            if position < before and made[0] < rows[1] and rows[0] < made[1]:
                last = max(last, position)
                missing = _subtract_rows(missing, made)
        transfers: List[int] = []
        for made, index in arrivals[side].get(number, []):
            if any(made[0] < part[1] and part[0] < made[1] for part in missing):
                transfers.append(index)
                missing = _subtract_rows(missing, made)
        if missing:
            raise BadInput(f"rows {missing} of value {number} never reach the {side.value}", remedy="check the plan")
        return last, transfers

    after: List[Tuple[int, Tuple[int, ...]]] = []
    cuts: Dict[Side, Set[int]] = {side: set() for side in Side}
    raw_after: List[Tuple[int, Tuple[int, ...]]] = []
    for transfer in plan.transfers:
        last, needed = find_sources(transfer.sender, transfer.value, (transfer.low, transfer.high), 1 << 60)
        raw_after.append((last, tuple(needed)))
        if last >= 0:
            cuts[transfer.sender].add(last)
    blocks: Dict[Side, Tuple[StepBlock, ...]] = {}
    block_of: Dict[Side, Dict[int, int]] = {side: {} for side in Side}
    for side in Side:
        blocks[side], block_of[side] = _make_blocks(plan, model, side, cuts[side], find_sources)
    if plan.is_local and plan.robot and model.alone_s is not None:  # the network as it is, nothing by plan
        blocks[Side.ROBOT] = (StepBlock((), model.alone_s, 0, len(plan.robot) - 1),)
    blocks[Side.ROBOT] = _add_copies(blocks[Side.ROBOT], *model.local_copies_s(plan.robot))
    for transfer, (last, awaited) in zip(plan.transfers, raw_after):
        after.append((block_of[transfer.sender][last] + 1 if last >= 0 else 0, awaited))
    results: List[int] = []
    for number in model.located.sequence.retained_ids():
        if number not in model.located.free:
            results += find_sources(Side.ROBOT, number, (0, model.located.count_rows(number)), 1 << 60)[1]
    all_payloads = (
        payloads
        if payloads is not None
        else tuple(
            model.make_payload(transfer.value, transfer.high - transfer.low, transfer.sender, transfer.codec)
            for transfer in plan.transfers
        )
    )
    return CompiledPlan(plan, blocks, tuple(all_payloads), tuple(after), tuple(dict.fromkeys(results)))


def _add_copies(blocks: Tuple[StepBlock, ...], to_device_s: float, to_host_s: float) -> Tuple[StepBlock, ...]:
    """Add copies of inputs before the first block, and of results behind the last."""
    if not blocks or not to_device_s + to_host_s:
        return blocks
    blocks = (replace(blocks[0], seconds=blocks[0].seconds + to_device_s), *blocks[1:])
    return (*blocks[:-1], replace(blocks[-1], seconds=blocks[-1].seconds + to_host_s))


def sweep_bandwidths(compiled: CompiledPlan, model: CostModel, bandwidths: Array) -> Tuple[Array, Array]:
    """Return makespan in seconds and the robot's energy in joules at each bandwidth (bytes per second, uplink)."""
    makespan, _, wire = run_schedule(compiled, model, np.asarray(bandwidths, dtype=float))
    robot_s = sum(block.seconds for block in compiled.blocks[Side.ROBOT])
    busy = _busy_seconds(compiled, wire)
    return makespan, np.asarray(robot_energy(model, makespan, robot_s, busy))


def _busy_seconds(compiled: CompiledPlan, wire: Sequence[Times]) -> Array:
    """Return seconds in which the link is busy in either direction; each direction's spans are disjoint."""
    spans_by_side: Dict[Side, List[Times]] = {side: [] for side in Side}
    for transfer, span in zip(compiled.plan.transfers, wire):
        spans_by_side[transfer.sender].append(span)
    total: Array = sum((end - start for start, end in wire), np.zeros(()))
    for start, end in spans_by_side[Side.ROBOT]:
        for other_start, other_end in spans_by_side[Side.SERVER]:
            total = total - np.maximum(np.minimum(end, other_end) - np.maximum(start, other_start), 0.0)
    return total


def run_schedule(
    compiled: CompiledPlan, model: CostModel, bandwidth: Array
) -> Tuple[Array, Dict[Side, List[Times]], List[Times]]:
    """Return the schedule at each bandwidth."""
    rate = {Side.ROBOT: np.maximum(bandwidth, 1e-9),
            Side.SERVER: np.maximum(bandwidth * model.link.down_factor, 1e-9)}  # fmt: skip
    return schedule_plan(compiled, model, lambda side, start, size: size / rate[side], np.zeros_like(bandwidth))


def schedule_plan(
    compiled: CompiledPlan, model: CostModel, wire_s: Callable[[Side, Array, float], Array], zero: Array
) -> Tuple[Array, Dict[Side, List[Times]], List[Times]]:
    """Last result on the robot, times of every block and of every transfer; arrays over links that are simulated alike.

    Args:
        compiled: the plan.
        model: its costs.
        wire_s: seconds that the link takes from a start on for a sender's bytes.
        zero: when the inference begins.

    Raises:
        BadInput: the plan's two sides wait for each other.
    """
    plan = compiled.plan
    end: Dict[Side, List[Times]] = {side: [] for side in Side}
    wire: List[Times] = [(zero, zero)] * len(plan.transfers)
    arrived: Dict[int, Array] = {}
    free = dict.fromkeys(Side, zero)
    queue = {side: [index for index, transfer in enumerate(plan.transfers) if transfer.sender is side] for side in Side}
    overhead = model.request_s if plan.transfers else 0.0
    while True:
        progress = False
        for side in Side:
            blocks = compiled.blocks[side]
            while len(end[side]) < len(blocks) and all(i in arrived for i in blocks[len(end[side])].awaits):
                block = blocks[len(end[side])]
                start = end[side][-1][1] if end[side] else zero
                for index in block.awaits:
                    start = np.maximum(start, arrived[index])
                end[side].append((start, start + block.seconds))
                progress = True
            while queue[side]:
                index = queue[side][0]
                steps, awaited = compiled.after[index]
                if len(end[side]) < steps or any(i not in arrived for i in awaited):
                    break
                ready = end[side][steps - 1][1] if steps else zero + (overhead if side is Side.ROBOT else 0.0)
                for other in awaited:
                    ready = np.maximum(ready, arrived[other])
                payload = compiled.payloads[index]
                start = np.maximum(free[side], ready + payload.encode_s / payload.pieces)
                seconds = wire_s(side, start, payload.coded_bytes)
                sent_at = np.maximum(start + seconds, ready + payload.encode_s + seconds / payload.pieces)
                sent_at = sent_at + model.link.message_s
                free[side] = sent_at
                arrived[index] = model.link.latency_s + np.maximum(
                    sent_at + payload.decode_s / payload.pieces, start + seconds / payload.pieces + payload.decode_s
                )
                wire[index] = (start, sent_at)
                queue[side].pop(0)
                progress = True
        if not progress:
            break
    if any(queue.values()) or any(len(end[side]) < len(compiled.blocks[side]) for side in Side):
        raise BadInput("the plan's two sides wait for each other", remedy="check the plan")
    total = end[Side.ROBOT][-1][1] if end[Side.ROBOT] else zero
    for index in compiled.results:
        total = np.maximum(total, arrived[index])
    return total, {side: list(times) for side, times in end.items()}, wire


def _make_blocks(
    plan: SplitPlan, model: CostModel, side: Side, cuts: Set[int], sources: Sources
) -> Tuple[Tuple[StepBlock, ...], Dict[int, int]]:
    blocks: List[StepBlock] = []
    block_of: Dict[int, int] = {}
    seen: Set[int] = set()
    awaits: Tuple[int, ...] = ()
    seconds, first = 0.0, 0
    steps = plan.steps_of(side)
    for position, step in enumerate(steps):
        needed: List[int] = []
        for number, rows in model.located.footprint(step.operator, step.low, step.high).items():
            needed += sources(side, number, rows, position)[1]
        fresh = tuple(index for index in dict.fromkeys(needed) if index not in seen)
        if fresh and position > first:
            blocks.append(StepBlock(awaits, seconds, first, position - 1))
            awaits, seconds, first = (), 0.0, position
        awaits += fresh
        seen.update(fresh)
        seconds += model.operator_s(side, step.operator, step.high - step.low)
        block_of[position] = len(blocks)
        if position in cuts or position == len(steps) - 1:
            blocks.append(StepBlock(awaits, seconds, first, position))
            awaits, seconds, first = (), 0.0, position + 1
    return tuple(blocks), block_of


def _subtract_rows(parts: Sequence[Range], made: Range) -> List[Range]:
    remaining: List[Range] = []
    for low, high in parts:
        for piece in ((low, min(high, made[0])), (max(low, made[1]), high)):
            if piece[0] < piece[1]:
                remaining.append(piece)
    return remaining
