"""Runs the blocks of a page, in its order, in the terminals of one user. Standard library only.

python3 -m tests.docs.pages README.md docs/explanation/link.md       what would be run, and how
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import sys
import time
from typing import Callable, List, Sequence, Set

from tests.docs import rules
from tests.docs.blocks import Block, Command, blocks_of
from tests.docs.terminals import Failed, Terminals

SERVER = "edge-offload serve --bind tcp://127.0.0.1:5700"


class Page:
    """Runs blocks; ``brought`` is what the user has brought along so far.

    Args:
        terminals: where the commands run.
        folder: the checkout that the user is in, as it is seen from here.
        video, checkout: the sample video and the folder, as they are seen from the terminals.
        literally: as they stand there, without any shortening (for a clean room).
    """

    def __init__(
        self,
        terminals: Terminals,
        folder: pathlib.Path,
        video: str,
        checkout: str,
        report: Callable[[str], None] = print,
        literally: bool = False,
    ) -> None:
        self._terminals = terminals
        self._folder = folder
        self._video = video
        self._checkout = checkout
        self._report = report
        self._literally = literally
        self._brought: Set[str] = set()

    def run(self, blocks: Sequence[Block]) -> List[str]:
        """Run them; what failed, with the place."""
        failures = []
        for block in blocks:
            if block.not_run:
                self._report(f"{block.page}:{block.line}: not run: {block.not_run}")
                continue
            try:
                for command in block.commands:
                    started_at = time.monotonic()
                    try:
                        self._command(command, block)
                    except Failed as error:
                        failures.append(f"{block.page}:{command.line}: {command.text}\n{error}")
                        self._report(failures[-1])
                        break
                    self._report(
                        f"{block.page}:{command.line}: ok, {time.monotonic() - started_at:.1f} s: {command.text}"
                    )
            finally:
                self._terminals.end()
        return failures

    def _command(self, command: Command, block: Block) -> None:
        text = command.text if self._literally else rules.shortened(command.text, self._checkout)
        self._bring(text)
        # who calls a server gets one: the page starts it elsewhere, or the reader has one
        served = any("edge-offload serve" in other.text for other in block.commands)
        if re.search(r"exec .*--server", text) and not served:
            self._terminals.stay(SERVER, rules.stays(SERVER) or "", rules.LIMIT_S)
        shows = rules.stays(text)
        if shows is not None:
            self._terminals.end(lambda other: rules.place(other) == rules.place(text))
            self._terminals.stay(text, shows, rules.LIMIT_S)
        elif text.strip():
            output = self._terminals.run(text, rules.LIMIT_S)
            if re.search(rules.PRINTS_COMMANDS, text):
                for printed in rules.printed_commands(output, "gpu-machine" if self._literally else "127.0.0.1"):
                    self._terminals.run(printed, rules.LIMIT_S)

    def _bring(self, text: str) -> None:
        for word, how in rules.BRINGS.items():
            if word not in text or word in self._brought:
                continue
            self._brought.add(word)
            if "\n" in how:
                (self._folder / word).write_text(how, encoding="utf-8")
            elif f"sample-bag {word}" not in text:
                self._terminals.run(how.format(video=self._video), rules.LIMIT_S)


def main(names: Sequence[str]) -> int:
    """Say what would be run."""
    for name in names:
        for block in blocks_of(pathlib.Path(name)):
            for command in block.commands:
                text = rules.shortened(command.text)
                how = block.not_run and f"not run: {block.not_run}"
                print(f"{name}:{command.line}: {how or text}{'   [stays]' if rules.stays(text) else ''}")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
