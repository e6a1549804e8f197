"""One inference of a plan on a bandwidth trace: the event simulation of :mod:`edge_offload.split.model.simulate` with a
link whose bandwidth changes while a transfer is under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

from edge_offload.errors import BadInput
from edge_offload.link.emulate.trace import Trace
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.plan import Side
from edge_offload.split.model.simulate import Compiled


@dataclass(frozen=True)
class Inference:
    """What happened.

    Attributes:
        latency_s: from the input to the last result on the robot.
        robot_s: time in which the robot computed, coding included.
        wire_s: time in which the robot's radio was busy.
        bytes_up, bytes_down: coded bytes.
        seen_bytes_per_s: bandwidth that the uplink transfers showed; 0 if there were none.
    """

    latency_s: float
    robot_s: float
    wire_s: float
    bytes_up: float
    bytes_down: float
    seen_bytes_per_s: float


def replay(compiled: Compiled, model: CostModel, trace: Trace, start_s: float) -> Inference:
    """Run a compiled plan from ``start_s`` on the trace; both directions of the link have its bandwidth.

    Raises:
        BadInput: the plan's two sides wait for each other.
    """
    plan = compiled.plan
    ends: Dict[Side, List[float]] = {side: [] for side in Side}
    queues = {side: [i for i, t in enumerate(plan.transfers) if t.sender is side] for side in Side}
    heads = dict.fromkeys(Side, 0)
    free = dict.fromkeys(Side, start_s)
    arrived: Dict[int, float] = {}
    overhead = model.request_s if plan.transfers else 0.0
    sizes, wires = dict.fromkeys(Side, 0.0), dict.fromkeys(Side, 0.0)
    coding_s = 0.0
    busy: List[Tuple[float, float]] = []
    progress = True
    while progress:
        progress = False
        for side in Side:
            blocks, done = compiled.blocks[side], ends[side]
            while len(done) < len(blocks) and all(i in arrived for i in blocks[len(done)].awaits):
                block = blocks[len(done)]
                begin = max([done[-1] if done else start_s, *(arrived[i] for i in block.awaits)])
                done.append(begin + block.seconds)
                progress = True
            queue = queues[side]
            while heads[side] < len(queue):
                index = queue[heads[side]]
                steps, brought = compiled.after[index]
                if len(done) < steps or any(i not in arrived for i in brought):
                    break
                ready = done[steps - 1] if steps else start_s + (overhead if side is Side.ROBOT else 0.0)
                ready = max([ready, *(arrived[i] for i in brought)])
                payload = compiled.payloads[index]
                begin = max(free[side], ready + payload.encode_s / payload.pieces)
                end = trace.finish(begin, payload.coded_bytes)
                spent = end - begin
                end = max(end, ready + payload.encode_s + spent / payload.pieces) + model.link.message_s
                free[side] = end
                arrived[index] = model.link.latency_s + max(
                    end + payload.decode_s / payload.pieces, begin + spent / payload.pieces + payload.decode_s
                )
                busy.append((begin, end))
                sizes[side] += payload.coded_bytes
                wires[side] += spent
                coding_s += payload.encode_s if side is Side.ROBOT else payload.decode_s
                heads[side] += 1
                progress = True
    if any(heads[side] < len(queues[side]) or len(ends[side]) < len(compiled.blocks[side]) for side in Side):
        raise BadInput("the plan's two sides wait for each other", remedy="check the plan")
    finish = max([start_s, *ends[Side.ROBOT][-1:], *(arrived[i] for i in compiled.results)])
    return Inference(
        finish - start_s,
        sum(block.seconds for block in compiled.blocks[Side.ROBOT]) + coding_s,
        union_s(busy),
        sizes[Side.ROBOT],
        sizes[Side.SERVER],
        sizes[Side.ROBOT] / wires[Side.ROBOT] if wires[Side.ROBOT] > 0 else 0.0,
    )


def union_s(spans: List[Tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reach), 0.0)
        reach = max(reach, end)
    return total
