"""Every line of the threat model names tests that exist."""

import itertools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = re.compile(r"`((?:[\w/]+\.py)?)(?:::(\w+))?`")


def test_every_line_names_tests_that_exist():
    _, after = (ROOT / "docs/explanation/threat-model.md").read_text().split("| attacker |")
    rows = list(itertools.takewhile(lambda row: row.startswith("| "), after.splitlines()[1:]))[1:]
    assert len(rows) >= 15
    for row in rows:
        named = LINE.findall(row.rsplit("|", 2)[1])
        assert named, f"no test: {row}"
        path = ""
        for file, function in named:
            path = file or path
            text = (ROOT / "tests" / path).read_text()
            assert not function or f"def {function}(" in text, f"{path} has no {function}"
