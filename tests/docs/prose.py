"""Sentences and lines of a page of Markdown, without code, tables and headings."""

from __future__ import annotations

import pathlib
import re
from typing import List

_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) +")


def is_generated(page: pathlib.Path) -> bool:
    """Return whether the head of ``page`` says that a command writes it."""
    return "ritten by" in page.read_text(encoding="utf-8")[:600]


def lines_of_prose(text: str) -> List[str]:
    """Return the lines of ``text`` that are neither code, comment, table, heading nor diagram."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lines: List[str] = []
    is_code = False
    for line in text.split("\n"):
        # code is indented by four behind an empty line or more code
        is_code = line.startswith("    ") and (is_code or not lines or not lines[-1].strip())
        lines.append("" if is_code or line.startswith(("|", "#")) else line)
    return lines


def sentences_of(text: str) -> List[str]:
    """Return the sentences of the prose in ``text``, each in one line, with code and targets of links left out."""
    sentences, paragraph = [], ""
    for line in (*lines_of_prose(text), ""):
        if line.strip() and not _ITEM.match(line):
            paragraph += f" {line.strip()}"
            continue
        prose = re.sub(r"`[^`]*`", "Code", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph))
        sentences += [part.strip() for part in re.split(r"(?<=[.!?])[)*]*\s+(?=[A-Z*`(])", prose) if part.strip()]
        paragraph = _ITEM.sub("", line)
    return sentences
