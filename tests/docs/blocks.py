"""Commands of the documentation: what stands in fenced blocks of sh, bash or console. Standard library only.

A block that is not run says why in a comment before it, which a reader of the rendered page does not see:

    <!-- not run: needs a camera -->
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass
from typing import List, Sequence, Tuple

LANGUAGES = ("sh", "bash", "console")
_FENCE = re.compile(r"^(\s*)```+\s*(\w*)\s*$")
_HEADING = re.compile(r"^#+\s+(.*?)\s*$")
_NOT_RUN = re.compile(r"^\s*<!--\s*not run:\s*(.*?)\s*-->\s*$")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


@dataclass(frozen=True)
class Command:
    """One command as it stands there, which may be several lines."""

    text: str
    line: int


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: the file, as it was named.
        section: the heading above it.
        not_run: why its commands are not run; empty if they are.
    """

    page: pathlib.Path
    section: str
    line: int
    commands: Tuple[Command, ...]
    not_run: str = ""


def blocks_of(page: pathlib.Path) -> List[Block]:
    """All blocks of commands of a page."""
    blocks: List[Block] = []
    section = reason = ""
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        fence, heading, not_run = _FENCE.match(line), _HEADING.match(line), _NOT_RUN.match(line)
        number += 1
        if fence:
            start, indent = number, fence.group(1)
            while number < len(lines) and not _FENCE.match(lines[number]):
                number += 1
            body = [text[len(indent) :] if text.startswith(indent) else text for text in lines[start:number]]
            number += 1
            if fence.group(2) in LANGUAGES:
                commands = commands_of(body, start + 1, prompts=fence.group(2) == "console")
                blocks.append(Block(page, section, start, tuple(commands), reason))
            reason = ""
        elif heading:
            section = heading.group(1)
        elif not_run:
            reason = not_run.group(1)
        elif line.strip():
            reason = ""
    return blocks


def commands_of(lines: Sequence[str], first: int, prompts: bool = False) -> List[Command]:
    """Commands in the lines of a block whose first has the number ``first``.

    With ``prompts`` only lines after ``$`` are commands, the others are what they print.
    """
    commands: List[Command] = []
    number = 0
    while number < len(lines):
        start, text = number, lines[number]
        number += 1
        if prompts:
            if not text.startswith("$ "):
                continue
            text = text[2:]
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        while text.endswith("\\") and number < len(lines):
            text += "\n" + lines[number]
            number += 1
        heredoc = _HEREDOC.search(text)
        while heredoc and number < len(lines):
            text += "\n" + lines[number]
            number += 1
            if lines[number - 1].strip() == heredoc.group(1):
                break
        commands.append(Command(text, first + start))
    return commands
