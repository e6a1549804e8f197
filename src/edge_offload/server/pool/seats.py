"""The members of one driver: Ray's actors, one for each GPU (or share), found by their names if they are there already.

They are detached: a driver that follows one that has died finds them as they are, and needs not begin them. All that
waits for Ray's head is done on a thread of its own, so that a head that is away stops nothing that is under way.
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
#: Takes what happened and what about, from any thread.
Post = Callable[[str, Any], None]
#: Seconds until a member is tried again that could not begin, or could not run its stage.
AGAIN_S = 5.0
#: A driver that has said nothing for so long is not there (seconds).
DRIVER_S = 4.0
#: Errors of Ray that say that an actor is not there.
GONE = ("ActorDiedError", "ActorUnavailableError", "RayActorError")


@dataclass
class Sitting:
    """An actor.

    Attributes:
        actor: Ray's handle; None: it is being sought.
        here: whether it has answered, and was not lost since.
        asked: whether an answer to a question is awaited.
        prepared: what it has run once, with the largest batch.
        preparing: what it is running for the first time.
        since_s: when ``here`` last changed.
        again_s: when it is sought anew; infinite: it is not to be.
    """

    since_s: float
    actor: Any = None
    here: bool = False
    asked: bool = False
    prepared: Dict[Part, int] = field(default_factory=dict)
    preparing: Set[Tuple[Part, int]] = field(default_factory=set)
    again_s: float = math.inf


def shared(seats: Iterable[Seat], own: str, drivers: Iterable[str]) -> List[Seat]:
    """Those of a driver, where several have one pool: GPUs of each class in turn, none with two."""
    order = sorted({own, *drivers})
    by_class: Dict[str, List[Seat]] = {}
    for seat in sorted(seats):
        by_class.setdefault(seat[1], []).append(seat)
    return [seat for of in by_class.values() for seat in of[order.index(own) :: len(order)]]


class Others:
    """The drivers that have the pool, too, by what they say.

    Args:
        own: name of this one.
    """

    def __init__(self, own: str) -> None:
        self.own = own
        self.beat = 0
        self._said: Dict[str, Tuple[bytes, float]] = {}

    def there(self, said: Mapping[str, bytes], now: float) -> List[str]:
        """All that said something new lately, this one too."""
        for name, word in said.items():
            if self._said.get(name, (None,))[0] != word:
                self._said[name] = word, now
        self._said = {name: of for name, of in self._said.items() if name in said and now - of[1] < DRIVER_S}
        return sorted({self.own, *self._said})


class Seats:
    """Finds, begins and ends actors.

    Args:
        ray: connected.
        model: what members build.
        threads, batches: as members take them.
        post: told ``nodes`` (a list, and drivers' names) or ``away`` (words) after :meth:`look`; ``here`` (seat);
            ``prepared`` (seat, part, batch); ``lost`` (seat, actor, words): it is not there, or cannot run a stage.
        name: of this driver, the same for one that follows it.
    """

    def __init__(self, ray: Any, model: Dict[str, Any], threads: int, batches: int, post: Post, name: str) -> None:
        self._ray, self._model, self._threads, self._batches, self._post = ray, model, threads, batches, post
        told = json.dumps([model, threads, batches, cluster.version()], sort_keys=True)
        self._name = hashlib.sha256(told.encode()).hexdigest()[:12]
        self.sitting: Dict[Seat, Sitting] = {}
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.others = Others(name)
        self._looking = threading.Event()
        threading.Thread(target=self._work, name="edge-offload-seats", daemon=True).start()

    def look(self) -> None:
        """Ask the head who is there."""
        if not self._looking.is_set():
            self._looking.set()
            self._orders.put(self._look)

    def want(self, seat: Seat, now: float) -> Sitting:
        """A member; it is begun if it is not there."""
        found = self.sitting.get(seat)
        if found is None:
            found = self.sitting[seat] = Sitting(now)
            self._orders.put(lambda: self._seat(seat))
        return found

    def seated(self, seat: Seat, actor: Any) -> None:
        """An actor was found or begun; it answers when it can."""
        found = self.sitting.get(seat)
        if found is not None:
            found.actor = actor
            self.ask(seat)

    def ask(self, seat: Seat) -> None:
        """Have a member answer."""
        found = self.sitting.get(seat)
        if found is None or found.actor is None or found.asked:
            return
        found.asked = True
        self._when(found.actor.ready.remote(), "here", seat, seat, found.actor)

    def answered(self, seat: Seat, now: float) -> bool:
        """A member has answered; whether it was not here before."""
        found = self.sitting.get(seat)
        if found is None:
            return False
        found.asked = False
        if found.here:
            return False
        found.here, found.since_s = True, now
        return True

    def lost(self, seat: Seat, actor: Any, now: float) -> bool:
        """A member is not there: it is sought, and begun, anew, at once if it was; False: that is known already."""
        found = self.sitting.get(seat)
        if found is None or found.actor is not actor or math.isfinite(found.again_s):
            return False
        was = found.here
        self.sitting[seat] = Sitting(now if was else found.since_s, again_s=now if was else now + AGAIN_S)
        self.again(now)
        return True

    def again(self, now: float) -> None:
        """Seek those whose time has come."""
        for seat, found in self.sitting.items():
            if now >= found.again_s:
                found.again_s = math.inf
                self._orders.put(lambda seat=seat: self._seat(seat))  # type: ignore[misc]

    def prepare(self, seat: Seat, part: Part, batch: int) -> bool:
        """Whether a member has run a stage before; if not, it does now."""
        found = self.sitting[seat]
        if found.here and found.prepared.get(part, 0) >= batch:
            return True
        if found.actor is not None and (part, batch) not in found.preparing:
            found.preparing.add((part, batch))
            self._when(found.actor.prepare.remote(part, batch), "prepared", (seat, part, batch), seat, found.actor)
        return False

    def prepared(self, seat: Seat, part: Part, batch: int) -> None:
        """A member has run a stage."""
        found = self.sitting.get(seat)
        if found is not None:
            found.preparing.discard((part, batch))
            found.prepared[part] = max(found.prepared.get(part, 0), batch)

    def forget(self, seats: List[Seat], end: bool) -> None:
        """These are not wanted any more."""
        for seat in seats:
            found = self.sitting.pop(seat, None)
            if end and found is not None and found.actor is not None:
                self._orders.put(lambda actor=found.actor: self._ray.kill(actor))  # type: ignore[misc]

    def end(self, members: bool = True) -> None:
        """End, all members too unless another driver is to find them as they are; waits for it."""
        done = threading.Event()
        self.forget(list(self.sitting), members)
        self._orders.put(lambda: cluster.driver_ends(self.others.own))
        self._orders.put(done.set)
        done.wait(5.0)

    # ------------------------------------------------------------------ the thread that waits for the head

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            try:
                order()
            except Exception as error:
                self._post("away", f"{type(error).__name__}: {str(error)[:200]}")

    def _look(self) -> None:
        try:
            self.others.beat += 1
            drivers = self.others.there(cluster.drivers(self.others.own, self.others.beat), time.monotonic())
            self._post("nodes", (cluster.nodes(self._ray), drivers))
        finally:
            self._looking.clear()

    def _seat(self, seat: Seat) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from edge_offload.server.pool.member import Member

        node, gpu, number, part = seat
        # a fraction: the shares of the next plan begin beside those of this one; who runs where is the plan's matter
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
            told = (self._model, gpu, self._threads, self._batches, number)
            actor = self._ray.remote(Member).options(**options).remote(*told)
        except Exception as error:
            self._post("lost", (seat, None, f"{type(error).__name__}: {str(error)[:200]}"))
            return
        self._post("seated", (seat, actor))

    def _when(self, reference: Any, what: str, about: Any, seat: Seat, actor: Any) -> None:
        def done(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._post(what, about)
            else:
                self._post("lost", (seat, actor, " ".join(str(error).split())[-300:]))

        reference.future().add_done_callback(done)
