"""Sizes that depend on data: what a step's outcome says of them, and formulas for what follows from them.

After a step whose result has a size that only the server knows (``nonzero``, suppression), the calls that follow differ
from one inference to the next in nothing but integers: sizes, strides, offsets, bytes. Each of those is a constant or
``factor · s`` or ``factor · s · t``, plus a constant, where s and t are integers of earlier outcomes. Such formulas are
guessed from a few inferences. A wrong guess costs time and nothing else: what the server ran by it is compared with
what the program did.

As torch's own compiler does, 0 and 1 are taken for special: a size of 0 or 1 leads to other strides and other branches.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from edge_offload.capture.segments import Outcome
from edge_offload.errors import ProtocolError

#: Integers of the outcomes since the inference began, one tuple per step.
Since = Sequence[Tuple[int, ...]]
#: (counted from the end, position among the outcomes, position within the outcome)
Symbol = Tuple[int, int, int]
#: (factor, constant, symbols that are multiplied)
Formula = Tuple[int, int, Tuple[Symbol, ...]]
#: What a step's outcome is taken for when the next step is guessed.
Kind = Tuple[int, ...]

REACH = 12
MAX_SYMBOLS = 48
MAX_VALUE = 1 << 62


def facts_of(outcome: Outcome) -> Tuple[Tuple[int, ...], Kind]:
    """The integers that an outcome brings (sizes of its results, a whole number that is read), and its kind.

    Two outcomes are of one kind if they agree in which of their sizes are 0, 1 or more, in truth values, and in signs.
    """
    if outcome.results is not None:
        found: List[int] = []
        for what, value in outcome.results:
            if what == "v":
                found += [int(value)] if isinstance(value, int) else []
            else:
                for item in [value] if what == "t" else value:
                    found += item[4] if len(item) > 4 else []
        return tuple(found), tuple(max(-1, min(2, size)) for size in found)
    tensor = outcome.tensor
    if tensor is None or tensor.numel() != 1 or tensor.is_complex():
        return (), ()
    value = tensor.item()
    if isinstance(value, float):
        return (), (int(value > 0) - int(value < 0) if value == value else 2,)
    whole = int(value)
    return ((whole,) if abs(whole) < MAX_VALUE else ()), (max(-1, min(2, whole)),)


def value_of(symbol: Symbol, since: Since) -> Optional[int]:
    """The integer that ``symbol`` stands for; None if there is none."""
    backward, position, item = symbol
    if position >= len(since):
        return None
    found = since[-1 - position if backward else position]
    return found[item] if item < len(found) else None


def evaluate(formula: Formula, since: Since) -> int:
    """The value of ``formula``.

    Raises:
        ProtocolError: it uses what is not there, or its value is no size.
    """
    result, constant, symbols = formula
    for symbol in symbols:
        value = value_of(symbol, since)
        if value is None or abs(value) >= MAX_VALUE:
            raise ProtocolError("a formula uses an outcome that does not exist")
        result *= value
    result += constant
    if not -MAX_VALUE < result < MAX_VALUE:
        raise ProtocolError("a formula's value is too large")
    return result


def explain(columns: Sequence[Tuple[int, ...]], samples: Sequence[Since]) -> Optional[Dict[Tuple[int, ...], Formula]]:
    """A formula for each of the different ``columns`` (the values of one integer, one per sample), or None."""
    singles = _symbols(samples)
    doubles: Optional[Dict[Tuple[int, ...], Tuple[Symbol, ...]]] = None
    found: Dict[Tuple[int, ...], Formula] = {}
    for column in set(columns):
        formula = _fit(column, singles)
        if formula is None:
            doubles = _products(singles) if doubles is None else doubles
            formula = _fit(column, doubles)
        if formula is None:
            return None
        found[column] = formula
    return found


def _symbols(samples: Sequence[Since]) -> Dict[Tuple[int, ...], Tuple[Symbol, ...]]:
    """Every symbol that differs between the samples, by its values."""
    singles: Dict[Tuple[int, ...], Tuple[Symbol, ...]] = {}
    reach = min(REACH, *(len(since) for since in samples))
    for position in range(reach):
        for backward in (1, 0):
            widest = min(len(since[-1 - position if backward else position]) for since in samples)
            for item in range(widest):
                symbol = (backward, position, item)
                values = tuple(value_of(symbol, since) or 0 for since in samples)
                if len(set(values)) > 1 and len(singles) < MAX_SYMBOLS:
                    singles.setdefault(values, (symbol,))
    return singles


def _products(singles: Dict[Tuple[int, ...], Tuple[Symbol, ...]]) -> Dict[Tuple[int, ...], Tuple[Symbol, ...]]:
    """Every product of two symbols that differs between the samples, by its values."""
    doubles: Dict[Tuple[int, ...], Tuple[Symbol, ...]] = {}
    items = list(singles.items())
    for index, (values, symbols) in enumerate(items):
        for others, more in items[index:]:
            product = tuple(a * b for a, b in zip(values, others))
            if len(set(product)) > 1:
                doubles.setdefault(product, symbols + more)
    return doubles


def _fit(column: Tuple[int, ...], candidates: Dict[Tuple[int, ...], Tuple[Symbol, ...]]) -> Optional[Formula]:
    """The first candidate of which ``column`` is a multiple, or else a multiple plus a constant."""
    best: Optional[Formula] = None
    place = next(i for i, value in enumerate(column) if value != column[0])
    for values, symbols in candidates.items():
        if values[place] == values[0]:
            continue
        factor, rest = divmod(column[place] - column[0], values[place] - values[0])
        if rest:
            continue
        constant = column[0] - factor * values[0]
        if all(factor * v + constant == c for v, c in zip(values, column)):
            if constant == 0:
                return factor, constant, symbols
            best = best or (factor, constant, symbols)
    return best


def parse_formula(data: Any) -> Formula:
    """Read a formula off the wire.

    Raises:
        ValueError, TypeError: it is malformed.
    """
    factor, constant, symbols = data
    if len(symbols) > 4 or not all(type(value) is int for value in (factor, constant)):
        raise ValueError("a formula is malformed")
    read = []
    for backward, position, item in symbols:
        if not all(type(value) is int and 0 <= value < 1 << 16 for value in (backward, position, item)):
            raise ValueError("a formula is malformed")
        read.append((backward, position, item))
    return factor, constant, tuple(read)
