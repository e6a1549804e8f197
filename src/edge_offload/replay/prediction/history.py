"""Predicts the next step from the last few steps and kinds of outcomes, by a Markov model of variable order."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.ir.trace.symbols import BranchKey
from edge_offload.replay.flushed import READ

CONTEXTS = (6, 3, 2, 1)
MAX_CONTEXTS = 65536
MAX_PLACES = 8192
#: Times that a step has to follow a context before it is predicted.
MIN_COUNT = 2

#: Stands for every kind of outcome.
ANY: BranchKey = (-9,)
#: Positions of contexts that are used only while they have had a single follower.
SINGLE_FOLLOWER = (1, 2)
#: Marks a number of steps in a context.
COUNT: BranchKey = (-8,)
#: A step and the kind of its outcome.
Item = Tuple[int, BranchKey]
Trail = Tuple[Item, ...]


class ContextFollower:
    """Statistics of the steps that have followed a context.

    Attributes:
        signature: of the most frequent follower; None: no follower yet.
        count: times that it followed, less the times of others; at most twice :data:`MIN_COUNT`.
        varied: whether there were different followers.
    """

    __slots__ = ("count", "signature", "varied")

    def __init__(self) -> None:
        self.signature: Optional[int] = None
        self.count = 0
        self.varied = False

    def note_next(self, signature: int) -> bool:
        """Record that ``signature`` has followed; return True if this changes the prediction.

        A single occurrence in a long context is weaker evidence than a steady follower of a short one.
        """
        expected, count = (self.signature, self.count) if self.signature is not None else (signature, 0)
        if expected == signature:
            self.signature, self.count = signature, min(count + 1, 2 * MIN_COUNT)
        else:
            self.signature, self.count = (expected, count - 1) if count > 1 else (signature, 1)
            self.varied = True
        return self.signature != expected or not count or (self.count >= MIN_COUNT) != (count >= MIN_COUNT)


class TrailPlace:
    """The last few steps, and the number of steps since the inference began.

    Followers are looked up once per place; a repeated inference moves from place to place without lookups.

    Attributes:
        followers: statistics of its contexts, in the order of their use; ``distinct``: each once.
        next: places by the step that leads to them.
        opened: the place with the same steps at the begin of an inference.
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
        """Record the next step; return True if this changes a prediction."""
        fresh = False
        for follower in self.distinct:
            if follower.signature != signature or follower.count < 2 * MIN_COUNT:
                fresh = follower.note_next(signature) or fresh
        return fresh


class Contexts:
    """Followers of all contexts.

    Args:
        reason: returns why a step of a signature ends; None: unknown.
        max_steps: largest number of steps since the begin of the inference that is distinguished.
    """

    def __init__(self, reason: Callable[[int], Optional[int]], max_steps: int) -> None:
        self._reason = reason
        self._max_steps = max_steps
        self._followers: Dict[Trail, ContextFollower] = {}
        self._places: Dict[Tuple[Trail, int], TrailPlace] = {}

    def start_place(self) -> TrailPlace:
        """Return the place at the start of a program."""
        return self._place((), 0)

    def place_at_start(self, place: TrailPlace) -> TrailPlace:
        """Return the place with the steps of ``place`` at the begin of an inference."""
        if place.opened is None:
            place.opened = self._place(place.trail, 0)
        return place.opened

    def place_after(self, place: TrailPlace, signature: int, kind: BranchKey) -> TrailPlace:
        """Return the place after a step of ``signature`` with an outcome of ``kind``."""
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
        """Predict the signature after ``trail``, ``steps`` after the inference began; None: unknown."""
        follower_of = self._followers.get
        return self.expected_of([follower_of(context, _NOTHING) for context in self._contexts_of(trail, steps)])

    @staticmethod
    def expected_of(followers: Sequence[ContextFollower]) -> Optional[int]:
        """Predict the next signature from ``followers`` in the order of their use; None: unknown."""
        guess: Optional[int] = None
        for order, follower in enumerate(followers):
            if follower.count >= MIN_COUNT and (order not in SINGLE_FOLLOWER or not follower.varied):
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
        """Return contexts of the last few steps, with and without the kinds of outcomes, in the order of their use.

        The number of ``steps`` in the inference predicts the end of a loop over classes. The size of a result decides
        the next step more often than a number that is read.
        """
        bare = tuple([(signature, ANY) for signature, _ in trail])
        counted = [((steps, COUNT), trail[-1]), trail[-1:], ((steps, COUNT), bare[-1])] if trail else []
        recent = [trail[-length:] for length in CONTEXTS if len(trail) >= length]
        plain = [bare[-length:] for length in CONTEXTS if len(trail) >= length]
        if recent and self._reason(trail[-1][0]) == READ:
            return [*counted, *recent[:-1], *plain[:-1], recent[-1], plain[-1]]
        return counted + recent + plain


_NOTHING = ContextFollower()
