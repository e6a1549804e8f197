"""The collector looks at everything once, again after a while, and cycles go nevertheless."""

from __future__ import annotations

import gc
import weakref

import pytest

from edge_offload import background
from edge_offload.execute.collector import Collector


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector():
    passed = [0.0]
    learns = [False]
    made = Collector(600.0, lambda: passed[0], lambda: learns[0])
    made.passed, made.learns = passed, learns
    yield made
    made.stop()
    made.stop()


def test_inspected_objects_are_skipped_for_a_while(collector):
    alive = Cycle()
    collector.start()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    young, collected = Cycle(), weakref.ref(Cycle())
    collector.collect_new()
    assert collected() is None, "cycles that are young go"
    assert gc.get_freeze_count() > frozen, "what stays is not looked at any more"
    references = [weakref.ref(each) for each in (alive, young)]
    del alive, young
    collector.collect_new()
    assert None not in [each() for each in references]
    collector.passed[0] = 601.0
    collector.collect_new()
    assert [each() for each in references] == [None, None], "after a while they go, too"


def test_at_the_end_all_is_as_before_and_nothing_happens_before_the_begin(collector):
    before = gc.get_threshold()
    collector.collect_new()
    assert gc.get_freeze_count() == 0
    collector.start()
    assert gc.get_threshold()[2] > before[2]
    collector.stop()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_what_was_made_while_something_learns_is_not_looked_at_before_everything_is(collector):
    collector.start()
    collected, frozen = weakref.ref(Cycle()), gc.get_freeze_count()
    collector.learns[0] = True
    collector.collect_new()
    assert (collected() is None, gc.get_freeze_count()) == (False, frozen), "nobody looks while something learns"
    collector.learns[0] = False
    collector.collect_new()
    assert collected() is not None, "nor once it has learnt"
    assert gc.get_freeze_count() > frozen
    young = weakref.ref(Cycle())
    collector.collect_new()
    assert (young() is None, collected() is None) == (True, False), "what is made from then on goes as before"
    collector.passed[0] = 601.0
    collector.collect_new()
    assert collected() is None, "and after a while what learning left goes, too"


def test_collecting_starts_on_time_and_restores_everything():
    before = gc.get_threshold()
    with Collector().running():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[2] > before[2]
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_a_thread_that_gives_way_counts_as_learning():
    assert not background.is_learning()
    with background.yielding():
        assert background.is_learning()
    assert not background.is_learning()
