"""Records of a run: what is one, writing and reading them, and what of a damaged file survives."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.dashboard.stream import MAX_LINE, Checker, Reading, Writer, read, read_lines
from edge_offload.errors import BadInput
from tests.dashboard import made_up

CHECKER = Checker()


def test_what_is_written_is_read_back(tmp_path):
    path, records = tmp_path / "run.jsonl", made_up.run(5)
    writer = Writer(path)
    for record in records:
        writer.write(record)
    writer.close()
    assert list(read(path)) == records


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "latency", "t_s": 1}', "required property"),
        ('{"kind": "power", "t_s": 1, "watts": NaN}', "NaN"),
        ('{"kind": "power", "t_s": 1, "watts": 1e999}', "too large"),
        ('{"kind": "power", "t_s": "yesterday", "watts": 1}', "t_s"),
        ('{"kind": "mode", "t_s": 1, "mode": "magic", "reason": ""}', "mode"),
        ('{"frames_in": 27}', "no record"),
        ("[" * 100_000, "characters|JSON"),
        ("[" * 5_000, "JSON"),
        ("half a li", "JSON"),
    ],
)
def test_what_is_no_record_is_refused_with_the_cause(line, message):
    with pytest.raises(BadInput, match=message):
        CHECKER.parse(line)


def test_fields_of_a_newer_writer_are_accepted():
    assert CHECKER.parse('{"kind": "people", "t_s": 1, "people": 2, "horses": 1}')["people"] == 2


def test_damaged_lines_are_omitted_and_counted(tmp_path):
    good = [json.dumps(record) for record in made_up.run(2)]
    path = tmp_path / "run.jsonl"
    lines = [*good[:5], "{broken", "", "x" * (3 * MAX_LINE), *good[5:]]
    path.write_bytes("\n".join(lines).encode() + b'\n\xff\xfe\n{"kind":')
    reading = Reading()
    assert len(list(read(path, reading))) == len(good)
    assert (reading.good, reading.bad) == (len(good), 4)
    assert "line 6" in reading.first_problem


def test_the_memory_for_one_line_is_bounded():
    class Endless(io.StringIO):
        largest = 0

        def readline(self, size=-1):
            Endless.largest = max(Endless.largest, size)
            self.remaining = getattr(self, "remaining", 200) - 1
            return "x" * size if self.remaining else ""

    reading = Reading()
    assert list(read_lines(Endless(), reading)) == []
    assert 0 < Endless.largest <= MAX_LINE
    assert reading.bad == 1


def test_a_file_without_any_record_is_an_error(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text('{\n  "frames_in": 27\n}\n')
    with pytest.raises(BadInput, match=r"holds no record of a run \(line 1.*jsonl"):
        list(read(path))


def test_a_line_that_is_still_being_written_is_waited_for():
    text = json.dumps(made_up.run(2)[0])
    stream = io.StringIO(text[:20])
    pieces = [text[20:40], text[40:] + "\n"]

    def more():
        if not pieces:
            return False
        position = stream.tell()
        stream.write(pieces.pop(0))
        stream.seek(position)
        return True

    assert len(list(read_lines(stream, Reading(), more))) == 1


def test_the_file_does_not_grow_beyond_its_size(tmp_path):
    writer = Writer(tmp_path / "run.jsonl", max_bytes=2000)
    for record in made_up.run(5):
        writer.write(record)
    writer.close()
    assert writer.full
    assert (tmp_path / "run.jsonl").stat().st_size <= 2000
    assert len(list(read(tmp_path / "run.jsonl"))) > 2


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["kind", "t_s", "mode", "total_s", "stages_s", "watts", "people", "load"]),
                       st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
                                 st.sampled_from(["latency", "power", "mode", "server"]),
                                 st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))))  # fmt: skip
def test_anything_else_is_refused_with_a_message(made):
    try:
        CHECKER.parse(json.dumps(made))
    except BadInput:
        return
    assert {"kind", "t_s"} <= set(made)
