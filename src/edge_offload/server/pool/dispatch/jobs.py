"""What is under way in a pool: batches, their ways through routes, calls of stages, and batches that were stranded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, List, Optional, Set, Tuple

from edge_offload.server.pool.reserve import Route, StageTable, Use

#: A call is overdue so long behind its reserved end, or half of its time if that is longer (seconds).
GRACE_S = 0.05

#: A worker: route, stage, number.
Worker = Tuple[int, int, int]


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


@dataclass
class Job:
    """A batch: its requests, and what is kept of them until they are answered."""

    requests: Tuple[int, ...]
    deadline: float
    inputs: List[Any]
    began: float = 0.0
    running: int = 0
    done: bool = False
    tracks: List[Track] = field(default_factory=list)
    promised: float = math.inf
    stranded: Optional[Stranded] = None
    anew: bool = False


@dataclass
class Track:
    """A way of a batch through a route; there is a second one where the first cannot go on.

    ``at``: the node whose store holds ``payload``, which is lost along with it; empty: the driver has it.
    """

    job: Job
    route: Route
    uses: Tuple[Use, ...]
    payload: Any
    stage: int = 0
    at: str = ""
    tried: Set[int] = field(default_factory=set)

    def rest_s(self, first: int) -> float:
        """Seconds of the stages from ``first`` on when nothing waits."""
        batch = len(self.job.requests)
        return sum(float(stage.compute_s[batch - 1]) + stage.transfer_s * batch for stage in self.route.stages[first:])


@dataclass(eq=False)
class Call:
    """One stage of one batch at one worker.

    Attributes:
        number: of the call.
        track: what it is for; :attr:`Track.payload` is what it takes.
        stage: where.
        use: its turn at a worker.
        ready: it is not sent before.
        sent: whether it has been.
    """

    number: int
    track: Track
    stage: int
    use: Use
    ready: float
    sent: bool = False
    overdue: bool = False

    @property
    def worker(self) -> int:
        """Of the stage."""
        return self.use.worker

    @property
    def due(self) -> float:
        """When it is to end."""
        return self.use.end

    @property
    def takes(self) -> float:
        """Seconds."""
        return self.use.takes

    @property
    def limit(self) -> float:
        """It is overdue from then on."""
        return self.due + max(GRACE_S, self.takes / 2)

    @property
    def wanted(self) -> bool:
        """Whether its batch still needs what it gives."""
        return not self.track.job.done and self.track.stage == self.stage

    @property
    def rest_s(self) -> float:
        """Seconds of the stages behind its own when nothing waits."""
        return self.track.rest_s(self.stage + 1)

    @property
    def table(self) -> StageTable:
        """Of its stage."""
        return self.track.route.stages[self.stage]


def begin(job: Job, route: Route, uses: Tuple[Use, ...]) -> Track:
    """A way of a batch from its inputs."""
    for use in uses:
        use.deadline = job.deadline
    track = Track(job, route, uses, [parcel for inputs in job.inputs for parcel in inputs])
    job.tracks.append(track)
    return track
