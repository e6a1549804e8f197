"""Tables of results pages, and how numbers are written in them."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

#: What is shown of one row: heading, path into the row (dots), how it is written.
Column = Tuple[str, str, Callable[[Any], str]]


def cell(text: str) -> str:
    """Text as it stands in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def at(row: Any, path: str) -> Any:
    """What is at ``path`` (dots) in a row; None where there is nothing."""
    for part in path.split(".") if path else ():
        if row is None:
            return None
        row = row[int(part)] if isinstance(row, list) else row.get(part)
    return row


def table(rows: Sequence[Any], columns: Sequence[Column]) -> List[str]:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head for head, _, _ in columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        values = [(at(row, path), write) for _, path, write in columns]
        lines.append("| " + " | ".join("–" if value is None else cell(write(value)) for value, write in values) + " |")
    return lines


def ms(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{1e3 * seconds:.1f}"


def us(seconds: float) -> str:
    """Seconds as microseconds."""
    return f"{1e6 * seconds:.2f}"


def s(seconds: float) -> str:
    """Two digits."""
    return f"{seconds:.2f}"


def kb(size: float) -> str:
    """Bytes as kB."""
    return f"{size / 1e3:.1f}"


def mb(size: float) -> str:
    """Bytes as MB."""
    return f"{size / 1e6:.1f}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"


def tenths(value: float) -> str:
    """One digit."""
    return f"{value:.1f}"


def ratio(value: float) -> str:
    """Three digits."""
    return f"{value:.3f}"


def yes(value: bool) -> str:
    """A truth value in words."""
    return "yes" if value else "no"


def exponent(value: float) -> str:
    """A small number."""
    return f"{value:.1e}"
