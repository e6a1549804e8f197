"""Inputs of a frame that go to the server while the frame before it is computed: the results are those of the CPU."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from edge_offload.native import libraries
from tests.programs.serving import FOLDER, Serving, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]


def test_results_are_exact_whatever_was_sent_ahead(tmp_path: pathlib.Path) -> None:
    serving = Serving(tmp_path)
    try:
        app = [sys.executable, str(FOLDER / "ahead_app.py"), serving.address, str(serving.keys)]
        done = run([*serving.exec("--absent", "later"), *app])
    finally:
        serving.close()
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert outcome.pop("exact_together")
    assert outcome.pop("used_together"), "a call that waits for its turn sends its inputs ahead"
    for case, results in outcome.items():
        assert all(equal and not fallback_reason for equal, fallback_reason, _ in results), (case, results)
    used = {case: [ahead_s > 0 for _, _, ahead_s in results] for case, results in outcome.items()}
    assert all(used["equal"]), "what a frame contains was there before its turn"
    for case in ("changed", "another", "too_large", "refused"):
        assert not any(used[case]), case
