"""How the integers of a signature's calls follow from earlier outcomes, as learnt from the steps that had it.

Equal numbers are many, and samples are few. What is near in the data is therefore asked first: the size of a tensor is
most likely one that the step brought after which it was made, and what is behind a concatenation is as long as all that
was put into it. A formula that turns out wrong costs a round trip and is corrected.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Optional, Sequence, Set, Tuple

from edge_offload.errors import ProtocolError
from edge_offload.ir.operators import View
from edge_offload.ir.trace.budget import Work
from edge_offload.ir.trace.keys import first_integers
from edge_offload.ir.trace.symbols import (
    MAX_PARTS,
    REACH,
    Formula,
    OutcomeHistory,
    Symbol,
    derive_formula,
    evaluate_formula,
    explain_columns,
    fit_sum,
    likely_size,
    multiply_formula,
    split_sum,
)
from edge_offload.replay.signatures import Integers, TableCall

MAX_SAMPLES = 8
#: What explains so many of the latest is a formula, whatever there was before.
RECENT = 3
#: What has no formula in spite of many attempts is looked at again after ever more samples, up to two to the power of
#: this less :data:`RECENT`.
MAX_FAILURES = 9
#: What was known of an inference before a step, and the integers of that step.
Sample = Tuple[Tuple[Tuple[int, ...], ...], Integers]
#: Number of a call, and which of its integers.
Place = Tuple[int, int]


class IntegerFormulas:
    """Formulas for the integers of one signature, at one site or wherever it stands.

    Args:
        references: see :meth:`~edge_offload.replay.signatures.SignatureTable.calls`.

    Attributes:
        version: counts how often other formulas were found than before.
    """

    def __init__(self, references: Tuple[Tuple[int, ...], ...]) -> None:
        self._references = references
        self._samples: Deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.version = 0
        self._repeats = self._failures = self._wait = 0
        self._stale = False
        self._job: Optional[Work[None]] = None
        self._made_in: Sequence[int] = ()
        # what was found, and the samples that it was found in
        self._places: Dict[Place, Formula] = {}
        self._unexplained: Set[Place] = set()
        self._explained: Tuple[Sample, ...] = ()

    def add_sample(self, sample: Sample, made_in: Sequence[int], expected: Optional[Integers]) -> bool:
        """Add the sample of a step that came as ``expected`` or otherwise; return whether it says anything new.

        ``made_in``: for each storage that existed before, the step of the inference that has made it, or -1.
        """
        self._made_in = made_in
        if sample in self._samples:
            self._repeats = self._repeats + 1 if sample == self._samples[-1] else 0
            if self._repeats >= 2 and self._unexplained:  # whatever it was before, it has been this ever since
                self._samples, self._stale, self._repeats = deque([sample], maxlen=MAX_SAMPLES), True, 0
                return True
            return False
        self._repeats = 0
        as_expected = len(self._samples) > 2 and expected == sample[1]
        self._samples.append(sample)
        if not as_expected:
            self._wait -= 1
            self._stale = self._stale or self._wait <= 0
        elif not self._stale and self._job is None:
            self._explained = tuple(self._samples)
        return True

    def find_formulas(self) -> Work[None]:
        """Find a formula for every integer that has not always been the same; goes on where it was left."""
        if self._job is None and self._stale:
            self._job, self._stale = self._explain_samples(tuple(self._samples)), False
        job = self._job
        if job is not None:
            yield from job
            self._job = None if self._job is job else self._job

    def formulas_at(
        self, general: Optional[IntegerFormulas], calls: Sequence[TableCall]
    ) -> Work[Optional[Dict[Place, Formula]]]:
        """A formula for every integer that differs, at this site or at others; None if one has none.

        Work for a :class:`~edge_offload.ir.trace.budget.LearningBudget`.

        Args:
            general: those of the signature wherever it stands, if these are of one site alone.
            calls: of a step that has the signature.
        """
        yield from self.find_formulas()
        if general is not None:
            yield from general.find_formulas()
        formulas, lacking, samples = dict(self._places), set(self._unexplained), self._explained
        columns = yield from _varying_columns(samples)
        sums: List[Tuple[Tuple[int, ...], Tuple[Formula, ...]]] = []
        for index, made in enumerate(calls if columns else ()):
            operands = first_integers(made.operator)
            yield 1 + len(operands)
            for place in [(index, item) for item in range(len(made.integers)) if (index, item) in columns]:
                reference = next((view.reference for at, view in reversed(operands) if at <= place[1]), None)
                near = self._near_symbols(samples, index, reference) if reference is not None else {}
                better = derive_formula(columns[place], near)
                yield 1 + 2 * len(near)
                if better is None and sums:
                    better = next(filter(None, (fit_sum(columns[place], total, parts) for total, parts in sums)), None)
                    yield 4 * len(sums)
                if better is not None:
                    formulas[place] = better
                    lacking.discard(place)
            if made.name.startswith("aten::cat") and len(operands) > 1:
                sums += yield from self._fit_concatenation(samples, index, made, operands, formulas, lacking)
        for place, formula in general._places.items() if general is not None else ():
            index, item = place
            yield len(samples) * (1 + len(formula.parts))
            if all(_try_evaluate(formula, history) == integers[index][item] for history, integers in samples):
                formulas[place] = formula
                lacking.discard(place)
        return None if lacking else formulas

    def _near_symbols(
        self, samples: Sequence[Sample], index: int, reference: int
    ) -> Dict[Tuple[int, ...], Tuple[Symbol, ...]]:
        """Integers, by their values, of the steps that a storage was made after: operand of call ``index``."""
        storage = self._references[index][reference]
        step = self._made_in[-1 - storage] if storage < 0 else -1
        near: Dict[Tuple[int, ...], Tuple[Symbol, ...]] = {}
        for position in (step, step + 1, step - 1) if step >= 0 else ():  # of the uploads' bytes, then of outcomes
            if 0 <= position < REACH and all(position < len(history) for history, _ in samples):
                for item, values in enumerate(zip(*(history[position] for history, _ in samples))):
                    near.setdefault(values, ((0, position, item),))
        return near

    def _fit_concatenation(
        self, samples: Sequence[Sample], index: int, made: TableCall, operands: Sequence[Tuple[int, View]],
        formulas: Dict[Place, Formula], lacking: Set[Place],
    ) -> Work[List[Tuple[Tuple[int, ...], Tuple[Formula, ...]]]]:  # fmt: skip
        """Sums the sizes of the operands of a concatenation, as numbers and as formulas.

        An operand whose size has been the same so far has it from the data too, if others have; a bound that one has
        (``topk`` of at most 300) is that of all.
        """
        dims = len(operands[0][1].layout.sizes)
        dimension = made.integers[-1] % dims if dims else 0
        places = [(index, at + dimension) for at, view in operands if len(view.layout.sizes) == dims]
        if not dims or len(places) != len(operands):
            return []
        bounds = {formulas[place].bounds for place in places if place in formulas and formulas[place].bounds}
        for place, (at, view) in zip(places, operands):
            column = tuple(integers[index][place[1]] for _, integers in samples)
            near = self._near_symbols(samples, index, view.reference)
            likely = likely_size(column, near, bounds)
            yield 4 + 2 * len(near) * (1 + len(bounds))
            if likely is not None:
                formulas[place] = likely
                lacking.discard(place)
            size, extent_at = place[1], at + 2 * dims + 1  # what its storage holds is as much
            most = max(samples, key=lambda sample: sample[1][index][size])[1][index]
            times = most[extent_at] // most[size] if most[size] > 0 else 0
            if place in formulas and all(
                integers[index][extent_at] == times * integers[index][size] for _, integers in samples
            ):
                formulas[index, extent_at] = multiply_formula(times, formulas[place])
                lacking.discard((index, extent_at))
        if any(place in lacking for place in places):
            return []
        total = tuple(sum(integers[i][item] for i, item in places) for _, integers in samples)
        parts: List[Formula] = []
        for place in places:
            # what is put together may have been put together itself
            flat = split_sum(formulas.get(place) or Formula(0, made.integers[place[1]]))
            if flat is None:
                return []
            parts += flat
        return [(total, tuple(parts))] if len(set(total)) > 1 and len(parts) <= MAX_PARTS else []

    def _explain_samples(self, samples: Tuple[Sample, ...]) -> Work[None]:
        columns = yield from _varying_columns(samples)
        formulas = yield from explain_columns(columns.values(), [history for history, _ in samples])
        places = {place: formulas[column] for place, column in columns.items() if column in formulas}
        unexplained = set(columns) - set(places)
        # sizes of 0 and 1 may lead to other strides: perhaps there is one for those that are like the last
        kinds = [tuple(max(-1, min(2, integers[i][item])) for i, item in columns) for _, integers in samples]
        like = tuple([sample for sample, kind in zip(samples, kinds) if kind == kinds[-1]])
        recent = samples[-RECENT:]  # or what came before was while something else was taken for an inference
        for fewer in (like, recent):
            if not unexplained or len(fewer) == len(samples):
                continue
            fewer_columns = yield from _varying_columns(fewer)
            lacking = [fewer_columns[place] for place in columns if place in unexplained and place in fewer_columns]
            formulas = yield from explain_columns(lacking, [history for history, _ in fewer])
            for place in list(unexplained):
                if place not in fewer_columns or fewer_columns[place] in formulas:
                    unexplained.discard(place)
                    if place in fewer_columns:
                        places[place] = formulas[fewer_columns[place]]
            if fewer is recent and not unexplained:
                samples = recent
                while recent[0] in self._samples and self._samples[0] != recent[0]:
                    self._samples.popleft()
        if places != self._places:
            self.version += 1
        self._places, self._unexplained, self._explained = places, unexplained, samples
        self._failures = self._failures + 1 if unexplained else 0
        self._wait = 1 << max(0, min(self._failures, MAX_FAILURES) - RECENT)


def _varying_columns(samples: Sequence[Sample]) -> Work[Dict[Place, Tuple[int, ...]]]:
    """The values, one per sample, of every integer that is not the same in all."""
    columns: Dict[Place, Tuple[int, ...]] = {}
    if not samples:
        return columns
    _, latest = samples[-1]
    for index, call in enumerate(latest):
        others = [integers[index] for _, integers in samples]
        if others.count(call) == len(others):
            yield 1
            continue
        for item, column in enumerate(zip(*others)):
            if column.count(column[0]) < len(column):
                columns[index, item] = column
        yield 1 + len(call)
    return columns


def _try_evaluate(formula: Formula, history: OutcomeHistory) -> Optional[int]:
    try:
        return evaluate_formula(formula, history)
    except ProtocolError:
        return None
