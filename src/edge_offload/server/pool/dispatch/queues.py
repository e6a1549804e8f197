"""Pipelines of a plan with their workers: a queue of batches before each stage, in the order of deadlines."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import AbstractSet, Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from edge_offload.server.pool.columns import Cluster
from edge_offload.server.pool.links import LinkSchedule
from edge_offload.server.pool.plan import PlannedPipeline, PoolPlan
from edge_offload.server.pool.profile import BlockProfile

#: A worker: route, stage, number.
Worker = Tuple[int, int, int]


class PoolRequest(NamedTuple):
    """A request that is in no batch yet: absolute deadline (s), number, inputs."""

    deadline: float
    number: int
    inputs: Any


@dataclass(eq=False)
class StageQueue:
    """The queue and the workers of one stage; a worker is a GPU or a share of one.

    Attributes:
        machines: machine number of each worker.
        compute_s: seconds by number of frames, from 0.
        transfer_s: seconds of one frame's transfer from the stage before; 0 for the first.
        nodes: names of the workers' machines; empty: unknown.
        free_s: expected time at which each worker has finished its batches.
        busy_s: seconds of computing sent so far.
        absent: workers that are absent.
        present: workers that are present, on a machine that answers.
        calls: sent to each worker, in order.
        jobs: heap of waiting batches.
    """

    machines: Sequence[int]
    compute_s: Sequence[float]
    transfer_s: float
    busy_s: float = 0.0
    absent: Set[int] = field(default_factory=set)
    jobs: List[Tuple[float, int, Job]] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.machines)
        self.nodes = [""] * count
        self.free_s = [0.0] * count
        self.present = list(range(count))
        self.calls: List[List[StageCall]] = [[] for _ in range(count)]
        self.route: Route
        self.number = 0

    def accepts_batch(self, worker: int, now: float, lead_s: float) -> bool:
        """True if a worker accepts a batch: it is idle, or nearly, or the next one's tensors may arrive meanwhile."""
        calls = self.calls[worker]
        if calls and calls[0].overdue:
            calls = [call for call in calls if not call.overdue]
        if not calls:
            return self.number > 0 or self.free_s[worker] <= now + lead_s
        if len(calls) > 1 or calls[0].due < now:
            return False
        return calls[0].ready_at <= now if self.number else 0 < self.free_s[worker] - now <= lead_s


class Route:
    """A pipeline with its queues.

    Args:
        pipeline: of a plan.
        stages: their workers.
        links: of all machines, shared with other routes.

    Attributes:
        batch: frames of a full batch.
        path_s: by stage and number of frames, seconds from the stage's start to the answer without waiting.
        requests: waiting for the first stage.
        credit: share of a request that this route is due.
    """

    def __init__(self, pipeline: PlannedPipeline, stages: Sequence[StageQueue], links: LinkSchedule) -> None:
        self.pipeline, self.stages, self.links = pipeline, stages, links
        self.batch = pipeline.stages[0].batch
        self.requests: Deque[PoolRequest] = deque()
        self.credit = 0.0
        self.path_s: List[List[float]] = []
        rest = [0.0] * (self.batch + 1)
        for number in reversed(range(len(stages))):
            stage = stages[number]
            stage.route, stage.number = self, number
            path = [rest[size] + stage.compute_s[size] for size in range(self.batch + 1)]
            self.path_s.insert(0, path)
            rest = [path[size] + stage.transfer_s * size for size in range(self.batch + 1)]

    @property
    def weight(self) -> float:
        """Frames per second of its present workers; 0: a stage has none."""
        return self.pipeline.rate * min(len(stage.present) / len(stage.machines) for stage in self.stages)

    def drop_s(self, slack_s: float) -> float:
        """Return when the first waiting request can no longer end with this slack; infinite: none waits."""
        if not self.requests:
            return math.inf
        return self.requests[0].deadline - slack_s - self.path_s[0][1] + 1e-6

    def remaining_s(self, first: int, size: int) -> float:
        """Return seconds of the stages from ``first`` on, transfers included, without waiting."""
        if first == len(self.stages):
            return 0.0
        return self.path_s[first][size] + self.stages[first].transfer_s * size

    def expected_end(
        self, first: int, size: int, now: float, avoid: Set[str], tried: AbstractSet[Tuple[int, int]] = frozenset()
    ) -> float:
        """Return the expected end of a batch that reaches stage ``first`` at ``now``; infinite: never.

        Nodes in ``avoid`` and workers in ``tried`` do not count.
        """
        time_ = now
        for stage in self.stages[first:]:
            frees = [
                stage.free_s[worker]
                for worker in stage.present
                if stage.nodes[worker] not in avoid and (id(stage), worker) not in tried
            ]
            time_ = max(time_ + stage.transfer_s * size, min(frees, default=math.inf)) + stage.compute_s[size]
        return time_


@dataclass(eq=False)
class Job:
    """A batch: its requests, and their data until they are answered.

    Attributes:
        deadline, latest: of its first and its last request.
        inputs: of each request.
        started_at: time at which the batch was formed.
        route, stage: its next stage.
        payload: tensors for that stage.
        holder: the node whose store has the payload, which is lost along with it; empty: the driver has it.
        machine: number of the machine that has it.
        queued: the stage in whose queue it waits.
        running, overdue: calls in flight.
        late_s: seconds by which its calls ended behind their expected ends.
        tried: workers that received it.
        watched: the stage with a timer for the moment when it can no longer be in time.
    """

    requests: Tuple[int, ...]
    deadline: float
    latest: float
    inputs: List[Any]
    started_at: float
    route: Route
    stage: int = 0
    payload: Any = None
    holder: str = ""
    machine: int = -1
    queued: Optional[StageQueue] = None
    running: int = 0
    overdue: int = 0
    done: bool = False
    late_s: float = 0.0
    stranded: Optional[Stranded] = None
    tried: Set[Tuple[int, int]] = field(default_factory=set)
    watched: Optional[StageQueue] = None

    def has_untried(self, stage: StageQueue) -> bool:
        """True if a present worker of a stage has not received it."""
        return any((id(stage), worker) not in self.tried for worker in stage.present)

    @property
    def remaining_s(self) -> float:
        """Seconds to the answer from here without waiting."""
        return self.route.remaining_s(self.stage, len(self.requests))

    def restart(self, route: Route) -> None:
        """Start again from the inputs on this route."""
        self.route, self.stage, self.holder, self.machine = route, 0, "", -1
        self.payload = [parcel for inputs in self.inputs for parcel in inputs]


@dataclass
class Stranded:
    """State of a batch when its call failed or was overdue; its fields are part of ``pool status``.

    Attributes:
        began: time of its admission.
        noticed: time of this state.
        due: expected end of the call.
        takes: computing time of the call (seconds).
        left_s: seconds of it and the stages after it on another node.
        free: start by a worker of the stage on another node; infinite: there is none.
        anew_s: seconds from its inputs by another route and other nodes; infinite: there is none.
        at: the node whose store has its last tensors; empty: the driver has them.
        deadline: of the batch.
        requests: their number.
        answered: time of its answer; infinite: there was none.
    """

    began: float
    noticed: float
    due: float
    takes: float
    left_s: float
    free: float
    anew_s: float
    at: str
    deadline: float
    requests: int
    answered: float = math.inf


#: A call is overdue this long after its expected end, or half of its time if that is longer (seconds).
OVERDUE_GRACE_S = 0.05


@dataclass(eq=False)
class StageCall:
    """One stage of one batch at one worker.

    Attributes:
        number: of the call.
        job: its batch.
        table: its stage, on the route of the batch at that time.
        worker: of the stage.
        payload: its inputs.
        holder: the node whose store has these.
        ready_at: time at which these are at the worker.
        compute_s: seconds of computing.
        due: its expected end.
        sent, overdue: it has been sent; it was abandoned.
        strikes: how often it exceeded its limit.
    """

    number: int
    job: Job
    table: StageQueue
    worker: int
    payload: Any
    holder: str
    ready_at: float
    compute_s: float
    due: float
    sent: bool = False
    overdue: bool = False
    strikes: int = 0

    @property
    def route(self) -> Route:
        """Route of its batch."""
        return self.table.route

    @property
    def stage(self) -> int:
        """Number of the stage."""
        return self.table.number

    @property
    def node(self) -> str:
        """Node of its worker; empty: unknown."""
        return self.table.nodes[self.worker]

    @property
    def limit(self) -> float:
        """Time from which it is overdue (again)."""
        return self.due + (1 + self.strikes) * max(OVERDUE_GRACE_S, self.compute_s / 2)


def routes_of(
    plan: PoolPlan,
    networks: Mapping[str, BlockProfile],
    cluster: Cluster,
    machines: Optional[Mapping[str, Sequence[int]]] = None,
) -> Dict[str, List[Route]]:
    """Make queues for a plan, by network; its GPUs are assigned in order, class by class.

    Args:
        plan: stages and their GPUs.
        networks: profiles of its networks.
        cluster: its machines.
        machines: of each GPU of each class, numbers from 0; None: GPUs that share a machine follow each other.
    """
    if machines is None:
        machines, first = {}, 0
        for gpu, count in cluster.gpus.items():
            per_machine = cluster.per_machine.get(gpu, 1)
            machines[gpu] = [first + number // per_machine for number in range(count)]
            first += math.ceil(count / per_machine)
    links = LinkSchedule(1 + max((number for numbers in machines.values() for number in numbers), default=-1))
    used = dict.fromkeys(cluster.gpus, 0)
    routes: Dict[str, List[Route]] = {}
    for pipeline in plan.pipelines:
        network = networks[pipeline.network]
        stages = []
        for stage in pipeline.stages:
            numbers = machines[stage.gpu][used[stage.gpu] : used[stage.gpu] + stage.gpus]
            used[stage.gpu] += stage.gpus
            workers = [machine for machine in numbers for _ in range(stage.parts)]
            transfer_s = float(network.cut_bytes[stage.first - 1]) / cluster.bytes_per_s if stage.first else 0.0
            compute_s = network.stage_seconds(stage.gpu, stage.parts, stage.first, stage.end)
            stages.append(StageQueue(workers, [0.0, *map(float, compute_s)], transfer_s))
        routes.setdefault(pipeline.network, []).append(Route(pipeline, stages, links))
    return routes
