"""Which step followed the same few steps and kinds of outcomes before: a Markov model of variable order."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.ir.trace.symbols import BranchKey
from edge_offload.replay.flushed import READ

CONTEXTS = (6, 3, 2, 1)
MAX_CONTEXTS = 65536
MAX_PLACES = 8192
#: How often a step has to follow others before that is taken as a rule.
SURE = 2

#: Stands for every kind of outcome.
ANY: BranchKey = (-9,)
#: Contexts that count, by their order, only while they have always had the same follower.
STRICT = (1, 2)
#: Marks a number of steps among them.
COUNT: BranchKey = (-8,)
#: A step and the kind of its outcome.
Item = Tuple[int, BranchKey]
Trail = Tuple[Item, ...]


class ContextFollower:
    """Statistics of the steps that have followed a context.

    Attributes:
        signature: of the step that did so most; None if none did.
        sure: how often, less the times that another one did; at most twice :data:`SURE`.
        varied: whether more than one has.
    """

    __slots__ = ("signature", "sure", "varied")

    def __init__(self) -> None:
        self.signature: Optional[int] = None
        self.sure = 0
        self.varied = False

    def note_next(self, signature: int) -> bool:
        """Notes that ``signature`` has followed; returns True if another step is expected than before.

        What has come once says less than what always comes after fewer steps.
        """
        expected, sure = (self.signature, self.sure) if self.signature is not None else (signature, 0)
        if expected == signature:
            self.signature, self.sure = signature, min(sure + 1, 2 * SURE)
        else:
            self.signature, self.sure = (expected, sure - 1) if sure > 1 else (signature, 1)
            self.varied = True
        return self.signature != expected or not sure or (self.sure >= SURE) != (sure >= SURE)


class TrailPlace:
    """The last few steps, and how many there were since the inference began.

    Its followers are looked up once: a program that does what it did before goes from place to place.

    Attributes:
        followers: of each of its contexts, in the order in which they are asked; ``distinct``: each once.
        next: the place after a step.
        opened: the same steps when an inference begins.
    """

    __slots__ = ("distinct", "followers", "next", "opened", "steps", "trail")

    def __init__(self, trail: Trail, steps: int, followers: List[ContextFollower]) -> None:
        self.trail = trail
        self.steps = steps
        self.followers = followers
        self.distinct = list(dict.fromkeys(followers))
        self.next: Dict[Item, TrailPlace] = {}
        self.opened: Optional[TrailPlace] = None

    def note_next(self, signature: int) -> bool:
        """Notes the next step; returns True if another step is expected than before."""
        fresh = False
        for follower in self.distinct:
            if follower.signature != signature or follower.sure < 2 * SURE:
                fresh = follower.note_next(signature) or fresh
        return fresh


class Contexts:
    """Remembers what has followed each context.

    Args:
        reason: why a step of this signature ends, if that is known.
        max_steps: as many since the inference began are told apart.
    """

    def __init__(self, reason: Callable[[int], Optional[int]], max_steps: int) -> None:
        self._reason = reason
        self._max_steps = max_steps
        self._followers: Dict[Trail, ContextFollower] = {}
        self._places: Dict[Tuple[Trail, int], TrailPlace] = {}

    def start_place(self) -> TrailPlace:
        """Place at which a program begins."""
        return self._place((), 0)

    def place_at_start(self, place: TrailPlace) -> TrailPlace:
        """``place`` if an inference begins there."""
        if place.opened is None:
            place.opened = self._place(place.trail, 0)
        return place.opened

    def place_after(self, place: TrailPlace, signature: int, kind: BranchKey) -> TrailPlace:
        """The place after a step of ``signature`` whose outcome is of ``kind``."""
        item = signature, kind
        following = place.next.get(item)
        if following is None:
            if len(self._places) > MAX_PLACES or len(self._followers) > MAX_CONTEXTS:
                if len(self._followers) > MAX_CONTEXTS:
                    self._followers.clear()
                self._places.clear()
            trail = (*place.trail[-CONTEXTS[0] + 1 :], item)
            following = place.next[item] = self._place(trail, min(place.steps + 1, self._max_steps))
        return following

    def expected_after(self, trail: Trail, steps: int) -> Optional[int]:
        """The signature that will probably follow ``trail``, ``steps`` after the inference began."""
        follower_of = self._followers.get
        return self.expected_of([follower_of(context, _NOTHING) for context in self._contexts_of(trail, steps)])

    @staticmethod
    def expected_of(followers: Sequence[ContextFollower]) -> Optional[int]:
        """The signature that is probably next; the contexts' ``followers`` in the order in which they are asked."""
        guess: Optional[int] = None
        for order, follower in enumerate(followers):
            if follower.sure >= SURE and (order not in STRICT or not follower.varied):
                return follower.signature
            guess = follower.signature if guess is None else guess
        return guess

    def _place(self, trail: Trail, steps: int) -> TrailPlace:
        place = self._places.get((trail, steps))
        if place is None:
            followers = [
                self._followers.setdefault(context, ContextFollower()) for context in self._contexts_of(trail, steps)
            ]
            place = self._places[trail, steps] = TrailPlace(trail, steps, followers)
        return place

    def _contexts_of(self, trail: Trail, steps: int) -> List[Trail]:
        """The last few steps, as they may tell what is next: with the kinds of their outcomes, and without.

        How many ``steps`` of the inference there were says when a loop over classes ends. The size of a result decides
        what is computed next more often than a number that is read.
        """
        bare = tuple([(signature, ANY) for signature, _ in trail])
        counted = [((steps, COUNT), trail[-1]), trail[-1:], ((steps, COUNT), bare[-1])] if trail else []
        recent = [trail[-length:] for length in CONTEXTS if len(trail) >= length]
        plain = [bare[-length:] for length in CONTEXTS if len(trail) >= length]
        if recent and self._reason(trail[-1][0]) == READ:
            return [*counted, *recent[:-1], *plain[:-1], recent[-1], plain[-1]]
        return counted + recent + plain


_NOTHING = ContextFollower()
