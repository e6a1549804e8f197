"""The collector looks at everything once, again after a while, and cycles go nevertheless."""

from __future__ import annotations

import gc
import weakref

import pytest

from edge_offload.nodes.common.collector import Collector


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector():
    passed = [0.0]
    made = Collector(600.0, lambda: passed[0])
    made.passed = passed
    yield made
    made.end()
    made.end()


def test_what_has_been_looked_at_is_not_looked_at_again_before_a_while(collector):
    kept = Cycle()
    collector.begin()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    young, gone = Cycle(), weakref.ref(Cycle())
    collector.look()
    assert gone() is None, "cycles that are young go"
    assert gc.get_freeze_count() > frozen, "what stays is not looked at any more"
    there = [weakref.ref(each) for each in (kept, young)]
    del kept, young
    collector.look()
    assert None not in [each() for each in there]
    collector.passed[0] = 601.0
    collector.look()
    assert [each() for each in there] == [None, None], "after a while they go, too"


def test_at_the_end_all_is_as_before_and_nothing_happens_before_the_begin(collector):
    before = gc.get_threshold()
    collector.look()
    assert gc.get_freeze_count() == 0
    collector.begin()
    assert gc.get_threshold()[2] > before[2]
    collector.end()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)
