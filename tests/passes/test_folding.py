"""What is computed from nothing that was uploaded is found, and only that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List, Set, Tuple

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.ir.trace.calls import ALLOC, DOWNLOAD, UPLOAD
from edge_offload.passes.folding import fold_constants

LIVE = {0, 1}
TAKE = "take"
"""A call that a tensor of the host travels with."""


def call(name: str, written: List[int]) -> Any:
    """The part of a bound operator that counts here."""
    return SimpleNamespace(name=name, written=written, hosts=[0] if name in (UPLOAD, TAKE) else [])


@st.composite
def segments(draw: Any) -> Tuple[Any, List[Tuple[int, ...]]]:
    """Random calls on weights 0 and 1: each makes a storage or writes to some that were made before."""
    calls, made, count = [], [], 2
    for _ in range(draw(st.integers(2, 14))):
        mine = list(range(2, count))
        kind = draw(st.sampled_from([ALLOC, UPLOAD, "make", "make", "write", "both", TAKE, DOWNLOAD]))
        if kind in (UPLOAD, "write", "both", DOWNLOAD) and not mine:
            kind = ALLOC
        used = draw(st.lists(st.sampled_from([*LIVE, *mine]), max_size=2))
        if kind in (UPLOAD, "write", "both", DOWNLOAD):
            used = [draw(st.sampled_from(mine)), *(used if kind in ("write", "both") else [])]
        written = [0] if kind in (UPLOAD, "write", "both") else []
        used = [] if kind == ALLOC else used
        new = (count,) if kind in (ALLOC, "make", "both", TAKE) else ()
        calls.append((call(kind, written), tuple(used), 0))
        made.append(new)
        count += len(new)
    return SimpleNamespace(calls=calls), made


def play(segment: Any, made: List[Tuple[int, ...]], upload: str, skipped: Set[int], given: Dict[int, str]) -> List[str]:
    """What is read, with contents as words; ``skipped`` calls are not made, ``given`` contents are there instead."""
    contents = {0: "w0", 1: "w1", **given}
    read = []
    for index, (entry, used, _) in enumerate(segment.calls):
        if index in skipped:
            continue
        if entry.name == DOWNLOAD:
            read.append(contents[used[0]])
            continue
        operands = [upload] * (entry.name == TAKE) + [contents[number] for number in used]
        value = upload if entry.name == UPLOAD else f"{entry.name}{index}({','.join(operands)})"
        for number in (*made[index], *(used[position] for position in entry.written)):
            contents[number] = value
    return read + [contents[number] for number in sorted(contents) if number not in given and number >= 2]


@settings(max_examples=600, deadline=None)
@given(segments())
def test_what_is_folded_need_not_be_computed(case: Tuple[Any, List[Tuple[int, ...]]]) -> None:
    segment, made = case
    folded = fold_constants(segment, made, LIVE)
    contents = {0: "w0", 1: "w1"}
    for index, (entry, used, _) in enumerate(segment.calls):  # as they are at the end, for one upload
        if entry.name != DOWNLOAD:
            operands = ["up"] * (entry.name == TAKE) + [contents[number] for number in used]
            value = "up" if entry.name == UPLOAD else f"{entry.name}{index}({','.join(operands)})"
            for number in (*made[index], *(used[position] for position in entry.written)):
                contents[number] = value
    folded_contents = {number: contents[number] for number in folded.storages}
    for upload in ("up", "other"):  # and they serve any upload
        everything = play(segment, made, upload, set(), {})
        reads = sum(entry.name == DOWNLOAD for entry, _, _ in segment.calls)
        assert play(segment, made, upload, folded.calls, folded_contents)[:reads] == everything[:reads]


def test_a_grid_is_folded_and_a_picture_is_not() -> None:
    calls = [
        (call(ALLOC, []), (), 0),  # 2: the picture
        (call(UPLOAD, [0]), (2,), 0),
        (call("empty", []), (), 0),  # 3
        (call("arange", [0]), (3,), 0),
        (call("add", []), (2, 3), 0),  # 4
        (call(DOWNLOAD, []), (4,), 0),
    ]
    folded = fold_constants(SimpleNamespace(calls=calls), [(2,), (), (3,), (), (4,), ()], LIVE)  # type: ignore[arg-type]
    assert folded.storages == {3}
    assert folded.calls == {2, 3}
