"""Making a :class:`~edge_offload.capture.program.Program` of a segment whose calls have all run before."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from edge_offload.capture.entries import ALLOC, DOWNLOAD, NEW, UPLOAD, Entry, plain_number
from edge_offload.capture.keys import Layout, Operand
from edge_offload.capture.program import NOTHING, SEVERAL, Instruction, Made, Program, Whole
from edge_offload.capture.segments import Segment, Step

_SPECIAL = (ALLOC, UPLOAD, DOWNLOAD)


class _Use(NamedTuple):
    """What the calls of a segment do with its storages."""

    makes: List[Tuple[int, ...]]  # canonical numbers of each call's new storages
    layouts: Dict[int, Set[Layout]]  # in which each storage is looked at, or made
    last: Dict[int, int]  # the last call that touches it
    following: List[int]  # the canonical number of the next new storage, at each call


def compile_segment(segment: Segment, step: Step) -> Optional[Program]:
    """The program for ``segment`` and steps like ``step``; None if it has a call that needs looking at every time."""
    final = len(segment.calls) - 1
    whole: List[bool] = []
    for index, (entry, _, _) in enumerate(segment.calls):
        asked = index in step.wanted or (index == final and step.describe)
        if asked and index != final:
            return None  # how many storages it makes may differ from time to time
        if entry.refused is not None:
            return None
        if not (entry.name in _SPECIAL or asked or _settled(entry)):
            return None
        whole.append(asked or entry.overload is None or not (entry.fixed and _plain(entry)))
    use = _uses(segment, final if whole and whole[final] and segment.calls[final][0].overload is not None else -1)
    live = [canonical for canonical, _ in step.live]
    dead = set(step.dead)
    touched = {reference for (_, used, _), is_whole in zip(segment.calls, whole) if is_whole for reference in used}
    by_whole = {made for making, is_whole in zip(use.makes, whole) if is_whole for made in making}
    made = [canonical for making in use.makes for canonical in making]
    if len(set(made) | set(live)) != len(made) + len(live) or not _exist(segment, use, live):
        return None
    slotted = {n for n in made if n not in dead or n in touched or n in by_whole or len(use.layouts.get(n, ())) > 1}
    return _Compiler(segment, step, use, live, slotted).program(whole)


def _settled(entry: Entry) -> bool:
    """Whether it can run, and makes the same storages every time; one that makes none may resize what it gets."""
    if entry.overload is None or entry.results is None:
        return False
    return entry.fixed or not _new_layouts(entry)


def _plain(entry: Entry) -> bool:
    """Whether its operands are tensors and Python numbers."""
    for position, hole in entry.direct:
        if not isinstance(hole, Operand) or hole.kind not in "TW":
            return False
        if hole.kind == "T" and position >= entry.positional:
            return False
    if any(not number.wrapped for number in entry.parsed.numbers):
        return False
    items = [item for _, values in entry.nested for item in values]
    return all(item is None or (isinstance(item, Operand) and item.kind == "T") for item in items)


def _uses(segment: Segment, open_call: int) -> _Use:
    """``open_call``: the one of which it is not known what it makes, or -1."""
    use = _Use([], {}, {}, [])
    following = segment.first_new
    for index, (entry, references, least) in enumerate(segment.calls):
        following = max(following, least)
        use.following.append(following)
        for canonical in references:
            use.last[canonical] = index
        for reference, layout in entry.operands:
            use.layouts.setdefault(references[reference], set()).add(layout)
        made = [] if index == open_call else _new_layouts(entry)
        for canonical, new in enumerate(made, following):
            use.last.setdefault(canonical, index)
            if new is not None:
                use.layouts.setdefault(canonical, set()).add(new)
        use.makes.append(tuple(range(following, following + len(made))))
        following += len(made)
    return use


def _new_layouts(entry: Entry) -> List[Optional[Layout]]:
    if entry.name == ALLOC:
        return [None]
    return [result.layout for _, known in entry.results or () for result in known if result.kind == NEW]


def _exist(segment: Segment, use: _Use, live: List[int]) -> bool:
    """Whether every storage is there when it is touched."""
    there = set(live)
    for (_, references, _), makes in zip(segment.calls, use.makes):
        if not there.issuperset(references):
            return False
        there.update(makes)
    return True


class _Compiler:
    """Gives out registers and writes the instructions of one segment."""

    def __init__(self, segment: Segment, step: Step, use: _Use, live: List[int], slotted: Set[int]) -> None:
        self._segment = segment
        self._step = step
        self._use = use
        self._dead = frozenset(step.dead)
        self._slotted = slotted
        self._registers: Dict[Tuple[int, Layout], int] = {}
        self._live = [
            [(self._register(canonical, layout), layout) for layout in use.layouts.get(canonical, ())]
            for canonical in live
        ]
        self._filled: Set[int] = {register for wanted in self._live for register, _ in wanted}

    def program(self, whole: List[bool]) -> Program:
        """``whole``: of each call, whether the session runs it."""
        instructions: List[Instruction] = []
        number = host = ordinal = 0
        for index, (entry, references, _) in enumerate(self._segment.calls):
            makes = self._use.makes[index]
            parts = (number, number + entry.number_count, host, host + entry.host_count)
            number, host = parts[1], parts[3]
            if entry.name == ALLOC and self._dead.issuperset(makes) and self._use.last[makes[0]] == index:
                pass  # nobody looks at it
            elif whole[index]:
                instructions.append(self._whole(index, entry, references, parts, ordinal))
            else:
                instructions.append(self._call(index, entry, references, parts[0], ordinal))
            ordinal += len(makes)
        return Program(self._step, instructions, len(self._registers), ordinal, self._live)

    def _register(self, canonical: int, layout: Layout) -> int:
        return self._registers.setdefault((canonical, layout), len(self._registers))

    def _whole(
        self, index: int, entry: Entry, references: Tuple[int, ...], parts: Tuple[int, int, int, int], ordinal: int
    ) -> Instruction:
        wanted, final = index in self._step.wanted, index == len(self._segment.calls) - 1
        if entry.overload is not None and not entry.fixed:  # what it resizes is looked at anew
            self._filled -= {register for (n, _), register in self._registers.items() if n in references}
        first = self._use.following[index]
        done, dropped = self._over(index, references)
        asked = final and self._step.describe
        run = Whole(references, parts, index, wanted, asked, first, ordinal, self._dead)
        return Instruction(entry, None, [], {}, done=done, dropped=dropped, whole=run)

    def _call(self, index: int, entry: Entry, references: Tuple[int, ...], number: int, ordinal: int) -> Instruction:
        arguments = list(entry.arguments)
        operands = [self._register(references[reference], layout) for reference, layout in entry.operands]
        fetched = []
        for register, (reference, layout) in zip(operands, entry.operands):
            if register not in self._filled:
                self._filled.add(register)
                fetched.append((register, references[reference], layout))
        holes: List[Tuple[int, int]] = []
        for position, hole in entry.direct:
            assert isinstance(hole, Operand)
            if hole.kind == "W":
                raw = self._step.numbers[16 * (number + hole.number) :]
                arguments[position] = plain_number(raw, entry.parsed.numbers[hole.number])
            else:
                holes.append((position, operands[hole.number]))
        lists = [
            (position, tuple([-1 if item is None else operands[item.number] for item in items]))
            for position, items in entry.nested
        ]
        target, several, made = self._results(index, entry, ordinal)
        done, dropped = self._over(index, references)
        return Instruction(
            entry, entry.kernel, arguments[: entry.positional],
            dict(zip(entry.keywords, arguments[entry.positional :])), tuple(fetched), tuple(holes), tuple(lists),
            target, several, made, done, dropped,
        )  # fmt: skip

    def _results(
        self, index: int, entry: Entry, ordinal: int
    ) -> Tuple[int, Tuple[Tuple[int, int, int], ...], Tuple[Made, ...]]:
        several: List[Tuple[int, int, int]] = []
        made: List[Made] = []
        makes = iter(self._use.makes[index])
        for number, (kind, known) in enumerate(entry.results or ()):
            for item, result in enumerate(known):
                if result.kind != NEW or result.layout is None:
                    continue
                canonical = next(makes)
                register = self._register(canonical, result.layout)
                self._filled.add(register)
                several.append((number, item if kind == "l" else -1, register))
                if canonical in self._slotted:
                    kept = canonical not in self._dead
                    made.append(Made(register, canonical, ordinal + len(several) - 1, kept))
        if not several:
            return NOTHING, (), ()
        if len(entry.results or ()) == 1 and several[0][1] == -1:
            return several[0][2], (), tuple(made)
        return SEVERAL, tuple(several), tuple(made)

    def _over(self, index: int, references: Tuple[int, ...]) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
        """Registers and slots of new storages that nothing touches after this call."""
        over = [
            canonical for canonical in dict.fromkeys((*references, *self._use.makes[index]))
            if self._use.last[canonical] == index and canonical in self._dead
        ]  # fmt: skip
        known = [self._registers.get((n, layout)) for n in over for layout in self._use.layouts.get(n, ())]
        registers = tuple(register for register in known if register is not None)
        return registers, tuple(n for n in over if n in self._slotted)
