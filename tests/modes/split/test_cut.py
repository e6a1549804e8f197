"""Under ``edge-offload exec --mode split``: programs that end in sizes that depend on data are divided up to there."""

from __future__ import annotations

import pytest

from edge_offload.native import libraries

pytestmark = [
    pytest.mark.process,
    pytest.mark.process,
    pytest.mark.skipif(
        not libraries.device_is_possible(),
        reason="no C++ compiler: the native device cannot be built",
    ),
]


@pytest.fixture(scope="module")
def told(told_by):
    return told_by("cut_app.py")


def grown(found, name):
    return found["after"][name] - found["before"][name]


@pytest.mark.parametrize("situation", ["above", "in place", "maps too", "now and then"])
def test_what_leads_to_the_selection_is_divided_and_all_is_right(told, situation):
    found = told[situation]
    assert found["distance"] <= 1e-12
    assert grown(found, "operators_split") >= 12, found["state"]
    assert grown(found, "failed") == 0, found["state"]
    assert found["sizes"] > 3, "the number of boxes did not depend on the picture"


def test_what_the_program_uses_is_brought_and_nothing_is_computed_twice(told):
    for situation in ("above", "in place", "maps too"):
        assert grown(told[situation], "owed") == 0, situation


def test_what_is_used_unexpectedly_is_computed_then(told):
    assert 1 <= grown(told["now and then"], "owed") < grown(told["now and then"], "inferences")


def test_without_the_server_it_goes_on(told):
    assert told["server gone"]["distance"] <= 1e-12
    assert grown(told["server gone"], "operators_split") >= 12
