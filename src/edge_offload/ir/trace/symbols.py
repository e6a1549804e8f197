"""Sizes that depend on data: their values in a step's outcome, and formulas for what follows from them.

After a step whose result has a size that only the server knows (``nonzero``, suppression), the calls that follow differ
from one inference to the next in nothing but integers: sizes, strides, offsets, bytes. Each of those is a constant or
``factor · s`` or ``factor · s · t``, plus a constant, perhaps no less or no more than some bound (``topk`` of at most
300), or a sum of such, where s and t are integers of earlier steps. So it is with what follows from the length of an
input (a text, a recording, an image), which is known from its upload; there the factor may be a fraction. Such
formulas are guessed from a few inferences. A wrong guess costs time and nothing else: what the server ran by it is
compared with what the program did.

As torch's own compiler does, outcomes of 0 and 1 are taken for special: they lead to other branches.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.budget import Work
from edge_offload.ir.trace.calls import Described
from edge_offload.ir.trace.segments import StepOutcome

#: Bytes and sizes of the uploads that began the inference, then the integers of the outcomes since, one tuple per step.
OutcomeHistory = Sequence[Tuple[int, ...]]
#: (counted from the end, position among the outcomes, position within the outcome)
Symbol = Tuple[int, int, int]
#: What a step's outcome is taken for when the next step is guessed.
BranchKey = Tuple[int, ...]

#: Steps since the inference began, and before the one in question, whose integers are looked at.
REACH = 512
#: Sizes that are added up: tensors that are put behind each other.
MAX_PARTS = 1024
MAX_VALUE = 1 << 62
MAX_DIVISOR = 1 << 20


class Formula(NamedTuple):
    """An integer that follows from outcomes: ``factor · symbols · sum of parts / divisor + constant``, within bounds.

    Attributes:
        factor, constant: plain integers.
        symbols: whose values are multiplied.
        bounds: least and most, or nothing.
        parts: formulas that are added up, or none.
        divisor: at least 1; what is left over is dropped.
    """

    factor: int
    constant: int = 0
    symbols: Tuple[Symbol, ...] = ()
    bounds: Tuple[int, ...] = ()
    parts: Tuple[Any, ...] = ()
    divisor: int = 1


def facts_of(outcome: StepOutcome, last: Tuple[int, ...] = ()) -> Tuple[Tuple[int, ...], BranchKey]:
    """Reads the integers that a step brings, and its branch key.

    Sizes of its results, a whole number that is read, and the integers ``last`` of its last call: how much was searched
    is the size of what comes next as often as how much was found.

    Two outcomes are of one kind if they agree in which of their sizes are 0, 1 or more, in truth values, and in signs.
    """
    if outcome.results is not None:
        sizes: List[int] = []
        for what, value in outcome.results:
            if what == "v":
                sizes += [int(value)] if isinstance(value, int) else []
            else:
                for item in [value] if what == "t" else value:
                    sizes += Described(*item).sizes
        return (*sizes, *last), tuple([size if -1 <= size <= 1 else 2 if size > 1 else -1 for size in sizes])
    tensor = outcome.tensor
    if tensor is None or tensor.numel() != 1 or tensor.is_complex():
        return last, ()
    value = tensor.item()
    if isinstance(value, float):
        return last, (int(value > 0) - int(value < 0) if value == value else 2,)
    number = int(value)
    return ((number, *last) if abs(number) < MAX_VALUE else last), (max(-1, min(2, number)),)


def value_of(symbol: Symbol, since: OutcomeHistory) -> Optional[int]:
    """The integer that ``symbol`` stands for; None if there is none."""
    backward, position, item = symbol
    if position >= len(since):
        return None
    integers = since[-1 - position if backward else position]
    return integers[item] if item < len(integers) else None


def evaluate_formula(formula: Formula, since: OutcomeHistory) -> int:
    """Evaluates ``formula``.

    Raises:
        ProtocolError: it uses what is not there, or its value is no size.
    """
    result, bounds, parts = formula.factor, formula.bounds, formula.parts
    for symbol in formula.symbols:
        value = value_of(symbol, since)
        if value is None or abs(value) >= MAX_VALUE:
            raise ProtocolError("a formula uses an outcome that does not exist")
        result *= value
    if parts:
        result *= sum([evaluate_formula(part, since) for part in parts])
    result = result // formula.divisor + formula.constant
    if not -MAX_VALUE < result < MAX_VALUE:
        raise ProtocolError("a formula's value is too large")
    return max(bounds[0], min(bounds[1], result)) if bounds else result


def explain_columns(
    columns: Iterable[Tuple[int, ...]], samples: Sequence[OutcomeHistory]
) -> Work[Dict[Tuple[int, ...], Formula]]:
    """Finds a formula for each of the different ``columns`` (the values of one integer, one per sample) that has one.

    Work for a :class:`~edge_offload.ir.trace.budget.LearningBudget`.
    """
    singles = yield from _single_symbols(samples)
    slopes: Dict[Tuple[int, ...], List[Tuple[int, ...]]] = {}
    for values in singles:
        slopes.setdefault(_rise_of(values)[1], []).append(values)
        yield 4
    doubles: Optional[Dict[Tuple[int, ...], Tuple[Symbol, ...]]] = None
    formulas: Dict[Tuple[int, ...], Formula] = {}
    for column in dict.fromkeys(columns):
        yield 1
        if column in singles:
            formulas[column] = Formula(1, 0, singles[column])
            continue
        alike = {values: singles[values] for values in slopes.get(_rise_of(column)[1], ())}
        yield 4 + len(alike)
        formula = _fit_multiple(column, alike)
        if formula is None:
            if doubles is None:
                doubles = yield from _symbol_products(singles)
            formula = _fit_multiple(column, doubles)
            yield len(doubles) // 2
        if formula is None:
            formula = _fit_bounded(column, singles)
            yield len(singles)
        if formula is not None:
            formulas[column] = formula
    return formulas


def _rise_of(values: Tuple[int, ...]) -> Tuple[int, Tuple[int, ...]]:
    """Rise of ``values`` from the first one on: its step, and the rise divided by that.

    By how much, and the same without that, which is equal for all that are multiples of each other plus a constant.
    """
    rise = [value - values[0] for value in values]
    common = functools.reduce(math.gcd, rise, 0)
    first = next((step for step in rise if step), 0)
    common = -common if first < 0 else common
    return common, tuple(step // common for step in rise) if common else tuple(rise)


def _single_symbols(samples: Sequence[OutcomeHistory]) -> Work[Dict[Tuple[int, ...], Tuple[Symbol, ...]]]:
    """Every symbol that differs between the samples, by its values."""
    singles: Dict[Tuple[int, ...], Tuple[Symbol, ...]] = {}
    reach = min(REACH, *(len(since) for since in samples))
    for position in range(reach):
        for backward in (1, 0) if position else (0, 1):  # uploads are those with which the inference began
            outcomes = [since[-1 - position if backward else position] for since in samples]
            if outcomes.count(outcomes[0]) == len(outcomes):
                yield 1
                continue
            for item, values in enumerate(zip(*outcomes)):
                if values.count(values[0]) < len(values):
                    singles.setdefault(values, ((backward, position, item),))
            yield 1 + len(outcomes[0]) // 2
            if len(singles) >= 1024:
                return singles
    return singles


def _symbol_products(
    singles: Dict[Tuple[int, ...], Tuple[Symbol, ...]],
) -> Work[Dict[Tuple[int, ...], Tuple[Symbol, ...]]]:
    """Every product of two symbols that differs between the samples, by its values."""
    doubles: Dict[Tuple[int, ...], Tuple[Symbol, ...]] = {}
    items = list(singles.items())[:48]  # so many are multiplied with each other
    for index, (values, symbols) in enumerate(items):
        for others, more in items[index:]:
            product = tuple([a * b for a, b in zip(values, others)])
            if product.count(product[0]) < len(product):
                doubles.setdefault(product, symbols + more)
        yield 2 * (len(items) - index)
    return doubles


def _fit_multiple(column: Tuple[int, ...], candidates: Dict[Tuple[int, ...], Tuple[Symbol, ...]]) -> Optional[Formula]:
    """The first candidate of which ``column`` is a multiple, or else a multiple plus a constant."""
    best: Optional[Formula] = None
    place = next(i for i, value in enumerate(column) if value != column[0])
    for values, symbols in candidates.items():
        if values[place] == values[0]:
            continue
        factor, divisor = column[place] - column[0], values[place] - values[0]
        if factor % divisor:
            if not _of_uploads(symbols):
                continue
            common = math.gcd(factor, divisor) * (1 if divisor > 0 else -1)
            factor, divisor = factor // common, divisor // common
            if divisor > MAX_DIVISOR or factor * values[0] % divisor:
                continue
        else:
            factor, divisor = factor // divisor, 1
        constant = column[0] - factor * values[0] // divisor
        if all(factor * v == divisor * (c - constant) for v, c in zip(values, column)):
            formula = Formula(factor, constant, symbols, divisor=divisor)
            if constant == 0:
                return formula
            best = best or formula
    return best


def _of_uploads(symbols: Tuple[Symbol, ...]) -> bool:
    """True if all are sizes of the uploads with which the inference began: a size is a fraction of those."""
    return bool(symbols) and all(not backward and not position for backward, position, _ in symbols)


def _fit_bounded(column: Tuple[int, ...], candidates: Dict[Tuple[int, ...], Tuple[Symbol, ...]]) -> Optional[Formula]:
    """The first candidate of which ``column`` is a multiple, but never more, or never less, than some bound."""
    low, high = min(column), max(column)
    for bound, bounds in ((high, (-MAX_VALUE, high)), (low, (low, MAX_VALUE))):
        place = next((i for i, value in enumerate(column) if value not in (bound, 0)), None)
        if place is None:
            continue
        for values, symbols in candidates.items():
            if not values[place] or column[place] % values[place]:
                continue
            factor = column[place] // values[place]
            if factor > 0 and all(max(bounds[0], min(bounds[1], factor * v)) == c for v, c in zip(values, column)):
                return Formula(factor, 0, symbols, bounds)
    return None


def derive_formula(column: Tuple[int, ...], near: Dict[Tuple[int, ...], Tuple[Symbol, ...]]) -> Optional[Formula]:
    """Derives a formula for ``column`` from likely symbols: equal, a multiple, or bounded."""
    if column in near:
        return Formula(1, 0, near[column])
    formula = _fit_multiple(column, near)
    return formula if formula is not None and not formula.constant else _fit_bounded(column, near)


def likely_size(
    column: Tuple[int, ...], near: Dict[Tuple[int, ...], Tuple[Symbol, ...]], bounds: Iterable[Tuple[int, ...]]
) -> Optional[Formula]:
    """Finds a formula that makes ``column`` one of ``near``, within one of ``bounds`` if there are any."""
    for bound in (*sorted(bounds), ()):
        for values, symbols in near.items():
            if tuple([max(bound[0], min(bound[1], v)) for v in values] if bound else values) == column:
                return Formula(1, 0, symbols, bound)
    return None


def multiply_formula(times: int, formula: Formula) -> Formula:
    """Multiplies ``formula`` by ``times``, which is not negative; its divisor leaves no remainder."""
    bounds = tuple([_scale_bound(times, bound) for bound in formula.bounds])
    return formula._replace(factor=times * formula.factor, constant=times * formula.constant, bounds=bounds)


def _scale_bound(times: int, bound: int) -> int:
    return times * bound if abs(bound) < MAX_VALUE else bound


def fit_sum(column: Tuple[int, ...], total: Tuple[int, ...], parts: Tuple[Formula, ...]) -> Optional[Formula]:
    """Fits ``column`` as a multiple of ``total``, the sum of ``parts``."""
    formula = _fit_multiple(column, {total: ()})
    return Formula(formula.factor, parts=parts) if formula is not None and not formula.constant else None


def split_sum(formula: Formula) -> Optional[Tuple[Formula, ...]]:
    """Splits ``formula`` into formulas without parts that add up to it; None if there are none."""
    if not formula.parts:
        return (formula,)
    if formula.factor < 0 or formula.divisor != 1 or formula.constant or formula.symbols or formula.bounds:
        return None
    return tuple([multiply_formula(formula.factor, part) for part in formula.parts])


def parse_formula(data: Any, inner: bool = False) -> Formula:
    """Read a formula off the wire.

    Raises:
        ValueError, TypeError: it is malformed.
    """
    if len(data) != len(Formula._fields):
        raise ValueError("a formula is malformed")
    raw = Formula(*data)
    bounds, parts = raw.bounds, raw.parts
    if (
        len(parts) > (0 if inner else MAX_PARTS)
        or len(raw.symbols) > 4
        or len(bounds) not in (0, 2)
        or not all(type(v) is int for v in (raw.factor, raw.constant, raw.divisor, *bounds))
        or not 1 <= raw.divisor <= MAX_DIVISOR
    ):
        raise ValueError("a formula is malformed")
    if any(abs(bound) > MAX_VALUE for bound in bounds):
        raise ValueError("a formula has a bound beyond any size")
    read = []
    for backward, position, item in raw.symbols:
        if not all(type(value) is int and 0 <= value < 1 << 16 for value in (backward, position, item)):
            raise ValueError("a formula is malformed")
        read.append((backward, position, item))
    read_parts = tuple([parse_formula(part, inner=True) for part in parts])
    return Formula(raw.factor, raw.constant, tuple(read), tuple(bounds), read_parts, raw.divisor)
