"""Pipelines of a plan with their workers: a queue of batches before each stage, in the order of deadlines."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import AbstractSet, Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from edge_offload.server.pool.columns import Cluster
from edge_offload.server.pool.links import Links
from edge_offload.server.pool.plan import Pipeline, Plan
from edge_offload.server.pool.profile import Network

#: A worker: route, stage, number.
Worker = Tuple[int, int, int]


class Request(NamedTuple):
    """A request that is in no batch yet: absolute deadline (s), number, inputs."""

    deadline: float
    number: int
    inputs: Any


@dataclass(eq=False)
class Stage:
    """The queue and the workers of one stage; a worker is a GPU or a share of one.

    Attributes:
        machines: of each worker.
        compute_s: by number of frames, from 0.
        transfer_s: seconds that one frame takes from the stage before; 0 for the first.
        nodes: names of the workers' machines; empty: unknown.
        free_s: when each worker ends the batches that it was sent, as far as that is expected.
        busy_s: seconds of computing that were sent so far.
        away: workers that are absent.
        there: workers that are present, on a machine that answers.
        calls: that each worker was sent, in turn.
        jobs: heap of batches that wait.
    """

    machines: Sequence[int]
    compute_s: Sequence[float]
    transfer_s: float
    busy_s: float = 0.0
    away: Set[int] = field(default_factory=set)
    jobs: List[Tuple[float, int, Job]] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.machines)
        self.nodes = [""] * count
        self.free_s = [0.0] * count
        self.there = list(range(count))
        self.calls: List[List[Call]] = [[] for _ in range(count)]
        self.route: Route
        self.number = 0

    def opens(self, worker: int, now: float, lead_s: float) -> bool:
        """Whether a worker takes a batch: it is idle, or nearly, or it computes and the next one's tensors may come."""
        calls = self.calls[worker]
        if calls and calls[0].overdue:
            calls = [call for call in calls if not call.overdue]
        if not calls:
            return self.number > 0 or self.free_s[worker] <= now + lead_s
        if len(calls) > 1 or calls[0].due < now:
            return False
        return calls[0].moved <= now if self.number else 0 < self.free_s[worker] - now <= lead_s


class Route:
    """A pipeline with its queues.

    Args:
        pipeline: of a plan.
        stages: their workers.
        links: of all machines, shared with other routes.

    Attributes:
        batch: frames of a full batch.
        path_s: by stage and number of frames, seconds to the answer from when the stage begins, nothing waiting.
        requests: that wait for the first stage.
        credit: share of a request that is due to this route.
    """

    def __init__(self, pipeline: Pipeline, stages: Sequence[Stage], links: Links) -> None:
        self.pipeline, self.stages, self.links = pipeline, stages, links
        self.batch = pipeline.stages[0].batch
        self.requests: Deque[Request] = deque()
        self.credit = 0.0
        self.path_s: List[List[float]] = []
        after = [0.0] * (self.batch + 1)
        for number in reversed(range(len(stages))):
            stage = stages[number]
            stage.route, stage.number = self, number
            path = [after[size] + stage.compute_s[size] for size in range(self.batch + 1)]
            self.path_s.insert(0, path)
            after = [path[size] + stage.transfer_s * size for size in range(self.batch + 1)]

    @property
    def weight(self) -> float:
        """Frames per second that its workers that are present do; 0: a stage has none."""
        return self.pipeline.rate * min(len(stage.there) / len(stage.machines) for stage in self.stages)

    def drop_s(self, slack_s: float) -> float:
        """When the first request that waits can no longer end by so much before its deadline; infinite: none waits."""
        if not self.requests:
            return math.inf
        return self.requests[0].deadline - slack_s - self.path_s[0][1] + 1e-6

    def left_s(self, first: int, size: int) -> float:
        """Seconds of the stages from ``first`` on, transfers included, nothing waiting."""
        if first == len(self.stages):
            return 0.0
        return self.path_s[first][size] + self.stages[first].transfer_s * size

    def expect(
        self, first: int, size: int, now: float, avoid: Set[str], tried: AbstractSet[Tuple[int, int]] = frozenset()
    ) -> float:
        """When a batch ends that comes to stage ``first`` now, by none of these nodes or workers; infinite: never."""
        at = now
        for stage in self.stages[first:]:
            frees = [
                stage.free_s[worker]
                for worker in stage.there
                if stage.nodes[worker] not in avoid and (id(stage), worker) not in tried
            ]
            at = max(at + stage.transfer_s * size, min(frees, default=math.inf)) + stage.compute_s[size]
        return at


@dataclass(eq=False)
class Job:
    """A batch: its requests, and what is stored of them until they are answered.

    Attributes:
        deadline, latest: of its first and its last request.
        inputs: of each request.
        began: when the batch was formed.
        route, stage: where it goes next.
        payload: tensors for that stage.
        at: the node whose store holds the payload, which is lost along with it; empty: the driver has it.
        machine: number of the machine that holds it.
        queued: the stage in whose queue it waits.
        running, overdue: calls under way.
        late_s: seconds by which its calls ended behind their expected ends.
        tried: workers that it was sent to.
        watched: the stage that is looked at when it can no longer be in time.
    """

    requests: Tuple[int, ...]
    deadline: float
    latest: float
    inputs: List[Any]
    began: float
    route: Route
    stage: int = 0
    payload: Any = None
    at: str = ""
    machine: int = -1
    queued: Optional[Stage] = None
    running: int = 0
    overdue: int = 0
    done: bool = False
    late_s: float = 0.0
    stranded: Optional[Stranded] = None
    tried: Set[Tuple[int, int]] = field(default_factory=set)
    watched: Optional[Stage] = None

    def untried(self, stage: Stage) -> bool:
        """Whether a worker of a stage is there that it was not sent to."""
        return any((id(stage), worker) not in self.tried for worker in stage.there)

    @property
    def left_s(self) -> float:
        """Seconds to the answer from here, nothing waiting."""
        return self.route.left_s(self.stage, len(self.requests))

    def restart(self, route: Route) -> None:
        """Go by this route from the inputs."""
        self.route, self.stage, self.at, self.machine = route, 0, "", -1
        self.payload = [parcel for inputs in self.inputs for parcel in inputs]


@dataclass
class Stranded:
    """A batch whose call has failed or is overdue, as it stood when that was noticed.

    Attributes:
        began: when it was let in.
        noticed: when.
        due: when the call was to end.
        takes: seconds of the call.
        left_s: seconds that it and the stages after it take elsewhere.
        free: when a worker of the stage on another node begins it; infinite: there is none.
        anew_s: seconds that it takes by another route and other nodes, from its inputs; infinite: there is none.
        at: the node whose store has its last tensors; empty: the driver has them.
        deadline: of the batch.
        requests: how many.
        answered: when it was, after all; infinite: it was not.
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


#: A call is overdue so long behind its expected end, or half of its time if that is longer (seconds).
GRACE_S = 0.05


@dataclass(eq=False)
class Call:
    """One stage of one batch at one worker.

    Attributes:
        number: of the call.
        job: what it is for.
        table: its stage, of the route that the batch went by then.
        worker: of the stage.
        payload: what it takes.
        at: the node whose store holds that.
        moved: when that is at the worker.
        takes: seconds of computing.
        due: when it is expected to end.
        sent, overdue: whether it has been sent; whether it is no longer counted on.
        strikes: how often it was later than it may be.
    """

    number: int
    job: Job
    table: Stage
    worker: int
    payload: Any
    at: str
    moved: float
    takes: float
    due: float
    sent: bool = False
    overdue: bool = False
    strikes: int = 0

    @property
    def route(self) -> Route:
        """By which its batch went."""
        return self.table.route

    @property
    def stage(self) -> int:
        """Number of the stage."""
        return self.table.number

    @property
    def node(self) -> str:
        """Where it is made; empty: that is unknown."""
        return self.table.nodes[self.worker]

    @property
    def limit(self) -> float:
        """It is overdue (again) from then on."""
        return self.due + (1 + self.strikes) * max(GRACE_S, self.takes / 2)


def routes_of(
    plan: Plan,
    networks: Mapping[str, Network],
    cluster: Cluster,
    machines: Optional[Mapping[str, Sequence[int]]] = None,
) -> Dict[str, List[Route]]:
    """Queues for a plan, by network; its GPUs are dealt out in turn, class by class.

    Args:
        plan: what runs where.
        networks: profiles of its networks.
        cluster: what it runs on.
        machines: of each GPU of each class, numbers from 0; None: GPUs that share a machine follow each other.
    """
    if machines is None:
        machines, first = {}, 0
        for gpu, count in cluster.gpus.items():
            together = cluster.per_machine.get(gpu, 1)
            machines[gpu] = [first + number // together for number in range(count)]
            first += math.ceil(count / together)
    links = Links(1 + max((number for of in machines.values() for number in of), default=-1))
    taken = dict.fromkeys(cluster.gpus, 0)
    routes: Dict[str, List[Route]] = {}
    for pipeline in plan.pipelines:
        network = networks[pipeline.network]
        stages = []
        for stage in pipeline.stages:
            of = machines[stage.gpu][taken[stage.gpu] : taken[stage.gpu] + stage.gpus]
            taken[stage.gpu] += stage.gpus
            workers = [machine for machine in of for _ in range(stage.parts)]
            transfer_s = float(network.cut_bytes[stage.first - 1]) / cluster.bytes_per_s if stage.first else 0.0
            compute_s = network.stage_s(stage.gpu, stage.parts, stage.first, stage.end)
            stages.append(Stage(workers, [0.0, *map(float, compute_s)], transfer_s))
        routes.setdefault(pipeline.network, []).append(Route(pipeline, stages, links))
    return routes
