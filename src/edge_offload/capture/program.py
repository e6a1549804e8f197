"""A segment that runs again and again: what to call with which tensors, worked out once.

:meth:`DeviceSession._run <edge_offload.capture.executor.DeviceSession>` finds storages by number, tensors by layout and
results by description, for every call. When a segment comes with the same operands for the second time, all of that is
known. A :class:`Program` holds it: registers for tensors, and per call the registers that it reads and writes. A
storage needs a :class:`~edge_offload.capture.entries.Slot` only if something asks for it that a register does not
answer: it is looked at in several ways, or outlives the segment, or belongs to a call that is no operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import torch

from edge_offload.capture.entries import Entry, Slot
from edge_offload.capture.journal import Undo
from edge_offload.capture.keys import Layout
from edge_offload.capture.segments import CallFailed, Outcome, Step

if TYPE_CHECKING:
    from edge_offload.capture.executor import DeviceSession

#: What a call leaves in registers: nothing, or several results; otherwise the register of its only one.
NOTHING, SEVERAL = -1, -2


class Made(NamedTuple):
    """A storage that a call makes: where its tensor is, what it is called, its number; whether it outlives the step."""

    register: int
    canonical: int
    ordinal: int
    kept: bool


class Whole(NamedTuple):
    """A call that the session runs as it runs one that is new.

    ``parts``: which of the step's numbers and payloads are its own; ``first``, ``ordinal``: of its first new storage,
    the canonical number and the one that is added to the step's base.
    """

    references: Tuple[int, ...]
    parts: Tuple[int, int, int, int]
    call: int
    wanted: bool
    describe: bool
    first: int
    ordinal: int
    dead: FrozenSet[int]


class Instruction(NamedTuple):
    """One call.

    Attributes:
        kernel, arguments, named: what to call; positional arguments with holes.
        fetched: (register, storage, layout) of tensors to be looked up before.
        holes: position of an argument, its register.
        lists: position of an argument that is a list of tensors, their registers (-1: none).
        target: register of the only result, or one of the constants above.
        several: (number of the result, number in its list or -1, register).
        made: storages that need a slot.
        done: registers that are not read any more; ``dropped``: slots.
        whole: run by the session.
    """

    entry: Entry
    kernel: Optional[Callable[..., Any]]
    arguments: List[Any]
    named: Dict[str, Any]
    fetched: Tuple[Tuple[int, int, Layout], ...] = ()
    holes: Tuple[Tuple[int, int], ...] = ()
    lists: Tuple[Tuple[int, Tuple[int, ...]], ...] = ()
    target: int = NOTHING
    several: Tuple[Tuple[int, int, int], ...] = ()
    made: Tuple[Made, ...] = ()
    done: Tuple[int, ...] = ()
    dropped: Tuple[int, ...] = ()
    whole: Optional[Whole] = None


Signature = Tuple[Tuple[int, ...], Tuple[int, ...], bytes, bool, FrozenSet[int]]


def signature(step: Step) -> Signature:
    """What a program takes for granted of a step."""
    return tuple([name for name, _ in step.live]), tuple(step.dead), step.numbers, step.describe, step.wanted


class Program:
    """What :func:`~edge_offload.capture.compiler.compile_segment` makes.

    Tensors of storages that were the same ones the last time (weights) are held; ``unbind`` lets go of them.
    """

    def __init__(
        self, step: Step, instructions: List[Instruction], registers: int, grown: int,
        live: List[List[Tuple[int, Layout]]],
    ) -> None:  # fmt: skip
        self.made_for = signature(step)
        self._instructions = instructions
        self._registers = registers
        self._grown = grown
        self._live = live
        self._last = [number for _, number in step.live]
        self._same: Optional[List[int]] = None  # positions in `live` of the storages that are held
        self._slots: Dict[int, Slot] = {}
        self._start: List[Optional[torch.Tensor]] = []

    def run(self, session: DeviceSession, step: Step, undo: Optional[Undo]) -> Outcome:
        """As :meth:`DeviceSession.run`, for a step whose :func:`signature` is the one that this was made for."""
        slots, values = self._bind(session, step)
        outcome, described = Outcome(), {}
        note, base = session.note, step.base
        for (
            entry,
            kernel,
            template,
            named,
            fetched,
            holes,
            lists,
            target,
            several,
            made,
            done,
            dropped,
            whole,
        ) in self._instructions:
            if whole is not None:
                outcome = self._whole(session, step, undo, entry, whole, slots, outcome)
                if whole.wanted and outcome.results is not None:
                    described[whole.call] = outcome.results
                if not whole.describe:
                    outcome.results = None
            else:
                note(entry)
                for register, canonical, layout in fetched:
                    values[register] = slots[canonical].view(layout)
                arguments: List[Any] = template.copy()
                for position, register in holes:
                    arguments[position] = values[register]
                for position, registers in lists:
                    arguments[position] = [values[register] if register >= 0 else None for register in registers]
                try:
                    returned = kernel(*arguments, **named)  # type: ignore[misc]
                except Exception as error:
                    raise CallFailed(entry.name, error) from None
                if target >= 0:
                    values[target] = returned
                elif target == SEVERAL:
                    results = returned if isinstance(returned, tuple) else (returned,)
                    for number, item, register in several:
                        values[register] = results[number] if item < 0 else results[number][item]
                    results = ()
                returned = None  # a tensor lives no longer here than in a program that drops it after its last use
                for register, canonical, ordinal, kept in made:
                    tensor = values[register]
                    assert tensor is not None
                    slot = slots[canonical] = Slot(tensor=tensor)
                    tensor = None
                    if kept:
                        session.keep(base + ordinal, slot, undo)
            for register in done:
                values[register] = None
            for canonical in dropped:
                del slots[canonical]
        outcome.described, outcome.grown = described, max(outcome.grown, self._grown)
        return outcome

    def _bind(self, session: DeviceSession, step: Step) -> Tuple[Dict[int, Slot], List[Optional[torch.Tensor]]]:
        """Slots by canonical number, and registers, of the storages that existed before."""
        numbers = [number for _, number in step.live]
        last, self._last = self._last, numbers
        same = self._same
        if same is None or any(numbers[position] != last[position] for position in same):
            self.unbind()
            same = [i for i, (number, earlier) in enumerate(zip(numbers, last)) if number == earlier]
            slots: Dict[int, Slot] = {}
            start: List[Optional[torch.Tensor]] = [None] * self._registers
            for position in same:  # one of them may be gone
                self._look_up(session, step, position, slots, start).bound = True
            self._same, self._slots, self._start = same, slots, start
            session.bound.add(self)
        slots, values = self._slots.copy(), self._start.copy()
        if len(same) < len(numbers):
            held = set(same)
            for position in range(len(numbers)):
                if position not in held:
                    self._look_up(session, step, position, slots, values)
        return slots, values

    def _look_up(
        self, session: DeviceSession, step: Step, position: int, slots: Dict[int, Slot],
        values: List[Optional[torch.Tensor]],
    ) -> Slot:  # fmt: skip
        canonical, number = step.live[position]
        slot = slots[canonical] = session.slot(number)
        for register, layout in self._live[position]:
            values[register] = slot.view(layout)
        return slot

    def unbind(self) -> None:
        """Let go of all storages: one of them is being freed, or looks otherwise now."""
        self._same = None
        self._slots, self._start = {}, []

    def _whole(
        self, session: DeviceSession, step: Step, undo: Optional[Undo], entry: Entry, whole: Whole,
        slots: Dict[int, Slot], outcome: Outcome,
    ) -> Outcome:  # fmt: skip
        used = [slots[canonical] for canonical in whole.references]
        number, numbers, host, hosts = whole.parts
        raw, payloads = step.numbers[16 * number : 16 * numbers], step.payloads[host:hosts]
        new, outcome = session.call(entry, used, raw, payloads, outcome, whole.wanted or whole.describe)
        for i, slot in enumerate(new):
            slots[whole.first + i] = slot
            if whole.first + i not in whole.dead:
                session.keep(step.base + whole.ordinal + i, slot, undo)
        outcome.grown = whole.ordinal + len(new)
        return outcome
