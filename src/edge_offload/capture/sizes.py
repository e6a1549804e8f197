"""How the integers of a form's calls follow from what came before, as learnt from the steps that had the form.

Equal numbers are many, and samples are few. What is near in the data is therefore asked first: the size of a tensor is
most likely one that the step brought after which it was made, and what is behind a concatenation is as long as all that
was put into it. A formula that turns out wrong costs a round trip and is corrected.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Optional, Sequence, Set, Tuple

from edge_offload.capture.forms import Call, Integers
from edge_offload.capture.keys import tensor_operands
from edge_offload.capture.symbols import (
    MAX_PARTS,
    REACH,
    Formula,
    Since,
    Symbol,
    added,
    derive,
    evaluate,
    explain,
    likely_size,
    multiple,
)
from edge_offload.errors import ProtocolError

MAX_SAMPLES = 8
#: Integers of the steps of an inference before one, and those of that one.
Sample = Tuple[Tuple[Tuple[int, ...], ...], Integers]
#: Number of a call, and which of its integers.
Place = Tuple[int, int]


class Sizes:
    """Of one form.

    Args:
        references: see :meth:`~edge_offload.capture.forms.Forms.calls`.
    """

    def __init__(self, references: Tuple[Tuple[int, ...], ...]) -> None:
        self._references = references
        self._samples: Deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._places: Dict[Place, Formula] = {}
        self._unexplained: Set[Place] = set()
        self._made_in: Sequence[int] = ()

    def learn(self, sample: Sample, made_in: Sequence[int], expected: Optional[Integers]) -> None:
        """Take in a step that came as ``expected`` or otherwise; ``made_in``: for each storage that existed before, the
        step of the inference that has made it, or -1."""
        self._made_in = made_in
        if sample in self._samples:
            return
        held = len(self._samples) > 2 and expected == sample[1]
        self._samples.append(sample)
        if not held:
            self._explain()

    def formulas(self, general: Optional[Sizes], calls: Sequence[Call]) -> Optional[Dict[Place, Formula]]:
        """A formula for every integer that differs, here or in other places; None if one has none.

        ``general``: what is known of the form wherever it stands, if this is of one place alone.
        """
        found, lacking = dict(self._places), set(self._unexplained)
        columns = _columns(self._samples)
        sums: List[Tuple[Tuple[int, ...], Tuple[Formula, ...]]] = []
        for index, made in enumerate(calls if columns else ()):
            operands = tensor_operands(made.key)
            for place in [(index, item) for item in range(len(made.integers)) if (index, item) in columns]:
                near = next((self._near(index, ref) for at, dims, ref in reversed(operands) if at <= place[1]), {})
                better = derive(columns[place], near)
                for total, parts in sums if better is None else ():
                    better = better or added(columns[place], total, parts)
                if better is not None:
                    found[place] = better
                    lacking.discard(place)
            if made.name.startswith("aten::cat") and len(operands) > 1:
                sums += self._total(index, made, operands, found, lacking)
        for place, formula in general._places.items() if general is not None else ():
            index, item = place
            if all(_value(formula, since) == integers[index][item] for since, integers in self._samples):
                found[place] = formula
                lacking.discard(place)
        return None if lacking else found

    def _near(self, index: int, reference: int) -> Dict[Tuple[int, ...], Tuple[Symbol, ...]]:
        """Integers, by their values, of the steps that a storage was made after: operand of call ``index``."""
        storage = self._references[index][reference]
        step = self._made_in[-1 - storage] if storage < 0 else -1
        near: Dict[Tuple[int, ...], Tuple[Symbol, ...]] = {}
        for position in (step - 1, step, step - 2) if step >= 0 else ():
            if 0 <= position < REACH and all(position < len(since) for since, _ in self._samples):
                for item in range(min(len(since[position]) for since, _ in self._samples)):
                    values = tuple(since[position][item] for since, _ in self._samples)
                    near.setdefault(values, ((0, position, item),))
        return near

    def _total(
        self, index: int, made: Call, operands: Sequence[Tuple[int, int, int]],
        found: Dict[Place, Formula], lacking: Set[Place],
    ) -> List[Tuple[Tuple[int, ...], Tuple[Formula, ...]]]:  # fmt: skip
        """What the sizes of the operands of a concatenation add up to, and as a formula.

        An operand whose size has been the same so far has it from the data too, if others have; a bound that one has
        (``topk`` of at most 300) is that of all.
        """
        dims = operands[0][1]
        dimension = made.integers[-1] % dims if dims else 0
        places = [(index, at + dimension) for at, own, _ in operands if own == dims]
        if not dims or len(places) != len(operands):
            return []
        bounds = {found[place][3] for place in places if place in found and found[place][3]}
        for place, (at, _, reference) in zip(places, operands):
            column = tuple(integers[index][place[1]] for _, integers in self._samples)
            likely = likely_size(column, self._near(index, reference), bounds)
            if likely is not None:
                found[place] = likely
                lacking.discard(place)
            size, held = place[1], at + 2 * dims + 1  # what its storage holds is as much
            most = max(self._samples, key=lambda sample: sample[1][index][size])[1][index]
            times = most[held] // most[size] if most[size] > 0 else 0
            if place in found and all(
                integers[index][held] == times * integers[index][size] for _, integers in self._samples
            ):
                found[index, held] = multiple(times, found[place])
                lacking.discard((index, held))
        if any(place in lacking for place in places):
            return []
        total = tuple(sum(integers[i][item] for i, item in places) for _, integers in self._samples)
        parts = tuple(found.get(place) or (0, made.integers[place[1]], (), (), ()) for place in places)
        return [(total, parts)] if len(set(total)) > 1 and len(parts) <= MAX_PARTS else []

    def _explain(self) -> None:
        """Find a formula for every integer that has not always been the same."""
        self._places, self._unexplained = {}, set()
        columns = _columns(self._samples)
        found = explain(columns.values(), [since for since, _ in self._samples])
        for place, column in columns.items():
            if column in found:
                self._places[place] = found[column]
            else:
                self._unexplained.add(place)
        if not self._unexplained:
            return
        # sizes of 0 and 1 may lead to other strides: perhaps there is one for those that are like the last
        kinds = [tuple(max(-1, min(2, integers[i][item])) for i, item in columns) for _, integers in self._samples]
        like = [sample for sample, kind in zip(self._samples, kinds) if kind == kinds[-1]]
        if len(like) < len(self._samples):
            own = _columns(like)
            found = explain([own[place] for place in self._unexplained if place in own], [since for since, _ in like])
            for place in list(self._unexplained):
                if place not in own or own[place] in found:
                    self._unexplained.discard(place)
                    if place in own:
                        self._places[place] = found[own[place]]


def _columns(samples: Sequence[Sample]) -> Dict[Place, Tuple[int, ...]]:
    """The values, one per sample, of every integer that is not the same in all."""
    _, latest = samples[-1]
    columns: Dict[Place, Tuple[int, ...]] = {}
    for index, call in enumerate(latest):
        others = [integers[index] for _, integers in samples]
        if all(other == call for other in others):
            continue
        for item in range(len(call)):
            column = tuple(other[item] for other in others)
            if len(set(column)) > 1:
                columns[index, item] = column
    return columns


def _value(formula: Formula, since: Since) -> Optional[int]:
    try:
        return evaluate(formula, since)
    except ProtocolError:
        return None
