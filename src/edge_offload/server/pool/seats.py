"""The members of one driver: Ray's actors, one for each GPU (or share), looked up by name if they exist already.

They are detached: a driver that follows a dead one uses them as they are. A thread waits for Ray's head, so that a head
that does not answer stops no call in flight.
"""

from __future__ import annotations

import hashlib
import json
import math
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, Set, Tuple

from edge_offload.server.pool import cluster
from edge_offload.server.pool.member import Part

#: Node, class, GPU of the node, part of it.
Seat = Tuple[str, str, int, int]
#: Posts an event with its details, from any thread.
PostEvent = Callable[[str, Any], None]
#: A driver without a beat for so long is gone (seconds).
BEAT_TIMEOUT_S = 4.0
#: Errors of Ray for an actor that is gone.
GONE_ERRORS = ("ActorDiedError", "ActorUnavailableError", "RayActorError")


@dataclass
class SeatedActor:
    """State of an actor.

    Attributes:
        actor: Ray's handle; None: it is being looked up.
        present: it has answered, and was not lost since.
        pinged: an answer to a ping is awaited.
        prepared: stages that it has run once, with the largest batch.
        preparing: stages that it is running for the first time.
        since_s: time at which ``present`` last changed.
        retry_s: time of the next lookup; infinite: there is none.
    """

    since_s: float
    actor: Any = None
    present: bool = False
    pinged: bool = False
    prepared: Dict[Part, int] = field(default_factory=dict)
    preparing: Set[Tuple[Part, int]] = field(default_factory=set)
    retry_s: float = math.inf


def share_seats(seats: Iterable[Seat], own: str, drivers: Iterable[str]) -> List[Seat]:
    """Return the seats of driver ``own`` if several share a pool: GPUs of each class in turn, each with one driver."""
    order = sorted({own, *drivers})
    by_class: Dict[str, List[Seat]] = {}
    for seat in sorted(seats):
        by_class.setdefault(seat[1], []).append(seat)
    return [seat for seats_ in by_class.values() for seat in seats_[order.index(own) :: len(order)]]


class DriverBeats:
    """Other drivers of the pool, by their beats.

    Args:
        name: of this driver.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.beat = 0
        self._beats: Dict[str, Tuple[bytes, float]] = {}

    def live_drivers(self, beats: Mapping[str, bytes], now: float) -> List[str]:
        """Return all drivers with a recent beat, this one too."""
        for name, beat in beats.items():
            if self._beats.get(name, (None,))[0] != beat:
                self._beats[name] = beat, now
        self._beats = {
            name: entry for name, entry in self._beats.items() if name in beats and now - entry[1] < BEAT_TIMEOUT_S
        }
        return sorted({self.name, *self._beats})


class ActorPool:
    """Finds, starts and ends actors.

    Args:
        ray: connected.
        model: the network that members build.
        threads, batches: arguments of members.
        post: receives ``nodes`` (a list, and drivers' names) or ``away`` (message) after :meth:`survey_nodes`; ``here``
            (seat); ``prepared`` (seat, part, batch); ``lost`` (seat, actor, message): it is gone, or cannot run a
            stage.
        name: of this driver, the same for its successor.
    """

    def __init__(self, ray: Any, model: Dict[str, Any], threads: int, batches: int, post: PostEvent, name: str) -> None:
        self._ray, self._model, self._threads, self._batches, self._post = ray, model, threads, batches, post
        facts = json.dumps([model, threads, batches, cluster.release_version()], sort_keys=True)
        self._name = hashlib.sha256(facts.encode()).hexdigest()[:12]
        self.actors: Dict[Seat, SeatedActor] = {}
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.beats = DriverBeats(name)
        self._surveying = threading.Event()
        threading.Thread(target=self._run_orders, name="edge-offload-seats", daemon=True).start()

    def survey_nodes(self) -> None:
        """Ask the head for its nodes."""
        if not self._surveying.is_set():
            self._surveying.set()
            self._orders.put(self._survey)

    def find_or_start(self, seat: Seat, now: float) -> SeatedActor:
        """Return a member, which is started if it does not exist."""
        entry = self.actors.get(seat)
        if entry is None:
            entry = self.actors[seat] = SeatedActor(now)
            self._orders.put(lambda: self._start_actor(seat))
        return entry

    def set_actor(self, seat: Seat, actor: Any) -> None:
        """Set an actor that was looked up or started, and ping it."""
        entry = self.actors.get(seat)
        if entry is not None:
            entry.actor = actor
            self.ping_actor(seat)

    def ping_actor(self, seat: Seat) -> None:
        """Ping a member."""
        entry = self.actors.get(seat)
        if entry is None or entry.actor is None or entry.pinged:
            return
        entry.pinged = True
        self._post_result(entry.actor.ready.remote(), "here", seat, seat, entry.actor)

    def record_answer(self, seat: Seat, now: float) -> bool:
        """Record a member's answer; return True if it was not present before."""
        entry = self.actors.get(seat)
        if entry is None:
            return False
        entry.pinged = False
        if entry.present:
            return False
        entry.present, entry.since_s = True, now
        return True

    def lose_actor(self, seat: Seat, actor: Any, now: float) -> bool:
        """Restart a lost member, at once if it was present; False: the loss was recorded already."""
        entry = self.actors.get(seat)
        if entry is None or entry.actor is not actor or math.isfinite(entry.retry_s):
            return False
        was_present = entry.present
        self.actors[seat] = SeatedActor(
            now if was_present else entry.since_s, retry_s=now if was_present else now + 5.0
        )
        self.retry_due(now)
        return True

    def retry_due(self, now: float) -> None:
        """Start actors whose retry is due."""
        for seat, entry in self.actors.items():
            if now >= entry.retry_s:
                entry.retry_s = math.inf
                self._orders.put(lambda seat=seat: self._start_actor(seat))  # type: ignore[misc]

    def prepare_stage(self, seat: Seat, part: Part, batch: int) -> bool:
        """Return True if a member has run a stage before; if not, it does now."""
        entry = self.actors[seat]
        if entry.present and entry.prepared.get(part, 0) >= batch:
            return True
        if entry.actor is not None and (part, batch) not in entry.preparing:
            entry.preparing.add((part, batch))
            self._post_result(
                entry.actor.prepare.remote(part, batch), "prepared", (seat, part, batch), seat, entry.actor
            )
        return False

    def record_prepared(self, seat: Seat, part: Part, batch: int) -> None:
        """Record that a member has run a stage."""
        entry = self.actors.get(seat)
        if entry is not None:
            entry.preparing.discard((part, batch))
            entry.prepared[part] = max(entry.prepared.get(part, 0), batch)

    def remove_seats(self, seats: List[Seat], end: bool) -> None:
        """Remove members, and end their actors if ``end``."""
        for seat in seats:
            entry = self.actors.pop(seat, None)
            if end and entry is not None and entry.actor is not None:
                self._orders.put(lambda actor=entry.actor: self._ray.kill(actor))  # type: ignore[misc]

    def end_actors(self, members: bool = True) -> None:
        """End this driver's beats, and all members unless another driver is to use them; wait for it."""
        done = threading.Event()
        self.remove_seats(list(self.actors), members)
        self._orders.put(lambda: cluster.remove_driver(self.beats.name))
        self._orders.put(done.set)
        done.wait(5.0)

    # ------------------------------------------------------------------ the thread that waits for the head

    def _run_orders(self) -> None:
        while True:
            order = self._orders.get()
            try:
                order()
            except Exception as error:
                self._post("away", f"{type(error).__name__}: {str(error)[:200]}")

    def _survey(self) -> None:
        try:
            self.beats.beat += 1
            drivers = self.beats.live_drivers(
                cluster.exchange_beats(self.beats.name, self.beats.beat), time.monotonic()
            )
            self._post("nodes", (cluster.list_nodes(self._ray), drivers))
        finally:
            self._surveying.clear()

    def _start_actor(self, seat: Seat) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from edge_offload.server.pool.member import Member

        node, gpu, number, part = seat
        # a fraction: shares of the next plan start beside those of this one; the plan decides who runs where
        options = {
            "num_cpus": 0,
            "resources": {f"{cluster.RESOURCE}{gpu}": math.floor(1e4 / 16) / 1e4},
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
            "max_restarts": 0,
            # a call that waits for tensors of a machine that is gone must not hold up those behind it
            "allow_out_of_order_execution": True,
            "lifetime": "detached",
            "name": f"{self._name}-{node}-{number}-{part}",
            "get_if_exists": True,
        }
        try:
            arguments = (self._model, gpu, self._threads, self._batches, number)
            actor = self._ray.remote(Member).options(**options).remote(*arguments)
        except Exception as error:
            self._post("lost", (seat, None, f"{type(error).__name__}: {str(error)[:200]}"))
            return
        self._post("seated", (seat, actor))

    def _post_result(self, reference: Any, kind: str, details: Any, seat: Seat, actor: Any) -> None:
        def post_outcome(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._post(kind, details)
            else:
                self._post("lost", (seat, actor, " ".join(str(error).split())[-300:]))

        reference.future().add_done_callback(post_outcome)
