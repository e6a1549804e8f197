"""Under ``edge-offload exec --mode split``: an inference that ends in several reads, and transformers, are divided."""

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
    return told_by("several_reads_app.py")


@pytest.mark.parametrize("situation", ["heads", "between", "encoder", "vision"])
def test_all_of_it_is_divided_and_right(told, situation):
    found = told[situation]
    assert found["distance"] <= 1e-12
    divided = found["after"]["operators_split"] - found["before"]["operators_split"]
    assert divided >= 3, found["state"]
    assert found["as_planned"] == divided, "to the last bit what the plan gives in one process"
    assert found["after"]["owed"] == found["before"]["owed"], "nothing is computed twice"
    assert found["after"]["failed"] == found["before"]["failed"], found["state"]


def test_reads_in_another_order_are_right(told):
    assert told["another order"]["distance"] <= 1e-12
