"""What is expected after the last few steps: going from place to place tells the same as asking every context."""

from __future__ import annotations

import random
from typing import Dict, List, Optional, Set, Tuple

import pytest

from edge_offload.replay.flushed import DYNAMIC, READ
from edge_offload.replay.prediction import history
from edge_offload.replay.prediction.history import Contexts, Trail

STEPS = 64


def reason(form: int) -> int:
    return READ if form % 2 else DYNAMIC


class EveryContext:
    """Looks each context up anew, at every step."""

    def __init__(self) -> None:
        self.forms: Dict[Trail, Tuple[int, int]] = {}
        self.varied: Set[Trail] = set()

    def of(self, trail: Trail, steps: int) -> List[Trail]:
        bare = tuple((form, history.ANY) for form, _ in trail)
        if not trail:
            return []
        count = (steps, history.COUNT)
        lengths = [length for length in history.CONTEXTS if len(trail) >= length]
        contexts, plain = [trail[-n:] for n in lengths], [bare[-n:] for n in lengths]
        counted = [(count, trail[-1]), trail[-1:], (count, bare[-1])]
        if reason(trail[-1][0]) == READ:
            return [*counted, *contexts[:-1], *plain[:-1], contexts[-1], plain[-1]]
        return counted + contexts + plain

    def expected(self, trail: Trail, steps: int) -> Optional[int]:
        guess: Optional[int] = None
        for order, context in enumerate(self.of(trail, steps)):
            form, sure = self.forms.get(context, (None, 0))
            if sure >= history.MIN_COUNT and (order not in history.SINGLE_FOLLOWER or context not in self.varied):
                return form
            guess = form if guess is None else guess
        return guess

    def note(self, trail: Trail, steps: int, form: int) -> None:
        for context in set(self.of(trail, steps)):
            form_before, sure = self.forms.get(context, (form, 0))
            if form_before == form:
                self.forms[context] = form, min(sure + 1, 2 * history.MIN_COUNT)
            else:
                self.forms[context] = (form_before, sure - 1) if sure > 1 else (form, 1)
                self.varied.add(context)


@pytest.mark.parametrize("places", [history.MAX_PLACES, 20])
@pytest.mark.parametrize("seed", range(4))
def test_places_predict_as_their_contexts_do(seed: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_PLACES", places)
    random_ = random.Random(seed)
    plain, contexts = EveryContext(), Contexts(reason, STEPS)
    trail: Trail = ()
    steps, place = 0, contexts.start_place()
    differ = 0
    for turn in range(1200):
        if turn % 12 == 0:
            steps, place = 0, contexts.place_at_start(place)
        form = turn % 12 if random_.random() < 0.9 else random_.randrange(12)
        kind = (random_.randrange(3),) if form % 3 == 0 else ()
        expected = plain.expected(trail, steps)
        assert contexts.expected_of(place.followers) == expected
        assert contexts.expected_after(trail, steps) == expected
        differ += expected != form
        plain.note(trail, steps, form)
        place.note_next(form)
        place = contexts.place_after(place, form, kind)
        trail = (*trail[1 - history.CONTEXTS[0] :], (form, kind))
        steps = min(steps + 1, STEPS)
    assert 50 < differ < 600  # it was neither always right nor never


def test_a_place_detects_that_its_expectation_has_changed() -> None:
    contexts = Contexts(reason, STEPS)
    place = contexts.place_after(contexts.start_place(), 2, ())
    assert [place.note_next(4) for _ in range(5)] == [True, True, False, False, False]
    assert [place.note_next(6) for _ in range(4)] == [False, False, True, True]
    assert contexts.expected_of(place.followers) == 6
