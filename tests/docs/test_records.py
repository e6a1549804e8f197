"""Recorded results hold what their pages show, and no more."""

from __future__ import annotations

import pathlib
import shutil
import sys
from typing import Any, List

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 500_000


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    yield pytest.importorskip("generate.results")
    for name in [name for name in sys.modules if name.split(".")[0] == "generate"]:
        del sys.modules[name]


def test_records_are_short(generate: Any, tmp_path: pathlib.Path) -> None:
    folder = shutil.copytree(ROOT / "docs" / "results", tmp_path / "results")
    longer = [path.name for path in generate.shorten_records(folder)]
    assert longer == [], "run scripts/docs --shorten"
    assert sum(path.stat().st_size for path in folder.glob("*.json")) <= MOST_BYTES


def test_records_without_a_page_are_omitted_and_the_page_stays(generate: Any) -> None:
    def render(record: Any) -> List[str]:
        return [f"{row['speed']['mean']:.2f} {row.get('unit', 'm')} {len(record['rows'])}" for row in record["rows"]]

    rows = [
        {"speed": {"mean": 1.23456789, "p99": 3.0}, "samples": [1, 2], "unit": "m"},
        {"speed": {"mean": 0.1, "p99": 3.0}, "unit": None},
    ]
    record = {"rows": rows, "load": 2.0}
    shorter = generate.shorten.shorten(record, render)
    assert shorter == {"rows": [{"speed": {"mean": 1.23}, "unit": "m"}, {"speed": {"mean": 0.1}, "unit": None}]}
    assert render(shorter) == render(record)
    assert rows[0]["samples"] == [1, 2], "the record itself is left as it is"
