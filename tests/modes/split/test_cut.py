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
def outputs(outputs_of):
    return outputs_of("cut_app.py")


def grown(situation, name):
    return situation["after"][name] - situation["before"][name]


@pytest.mark.parametrize("situation", ["above", "in place", "maps too", "now and then"])
def test_what_leads_to_the_selection_is_divided_and_all_is_right(outputs, situation):
    outcome = outputs[situation]
    assert outcome["distance"] <= 1e-12
    assert grown(outcome, "operators_split") >= 12, outcome["state"]
    assert grown(outcome, "failed") == 0, outcome["state"]
    assert outcome["sizes"] > 3, "the number of boxes did not depend on the picture"


def test_what_the_program_uses_is_brought_and_nothing_is_computed_twice(outputs):
    for situation in ("above", "in place", "maps too"):
        assert grown(outputs[situation], "owed") == 0, situation


def test_what_is_used_unexpectedly_is_computed_then(outputs):
    assert 1 <= grown(outputs["now and then"], "owed") < grown(outputs["now and then"], "inferences")


def test_without_the_server_it_goes_on(outputs):
    assert outputs["server gone"]["distance"] <= 1e-12
    assert grown(outputs["server gone"], "operators_split") >= 12
