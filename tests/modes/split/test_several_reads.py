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
def outputs(outputs_of):
    return outputs_of("several_reads_app.py")


@pytest.mark.parametrize("situation", ["heads", "between", "encoder", "vision"])
def test_all_of_it_is_divided_and_right(outputs, situation):
    outcome = outputs[situation]
    assert outcome["distance"] <= 1e-12
    divided = outcome["after"]["operators_split"] - outcome["before"]["operators_split"]
    assert divided >= 3, outcome["state"]
    assert outcome["as_planned"] == divided, "to the last bit what the plan gives in one process"
    assert outcome["after"]["owed"] == outcome["before"]["owed"], "nothing is computed twice"
    assert outcome["after"]["failed"] == outcome["before"]["failed"], outcome["state"]


def test_reads_in_another_order_are_right(outputs):
    assert outputs["another order"]["distance"] <= 1e-12
