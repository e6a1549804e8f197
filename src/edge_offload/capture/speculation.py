"""What the server has been asked to run ahead, and how far the program has come in it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import List, Optional, Tuple

from edge_offload.capture.forms import Done
from edge_offload.capture.messages import Answer
from edge_offload.capture.plans import Plan
from edge_offload.capture.symbols import Since


@dataclass
class Speculation:
    """A course on its way.

    Attributes:
        plans: of its nodes.
        first: which of them may come first.
        since: integers of the inference's steps before it.
        future: the answer to come; ``waited`` for it already, the ``answer`` once it is there.
        last: integers of the last call before the course.
        assumed: the last uploads of its first step, if it is only thought that the program will make them so.
        taken: how many of the steps that ran the program has done so far.
    """

    plans: List[Plan]
    first: List[int]
    since: List[Tuple[int, ...]]
    future: Future
    taken: int = 0
    waited: bool = False
    answer: Optional[Answer] = None
    last: Tuple[int, ...] = ()
    assumed: Tuple[Optional[bytes], ...] = ()

    def may_begin_with(self, done: Done, start: int, since: Since) -> bool:
        """Whether ``done``, if it is the first step of the course, is what the server was asked for, as far as that is
        known without its answer."""
        if self.taken:
            return True
        if self.assumed and done.payloads[-len(self.assumed) :] != self.assumed:
            return False
        return self.waited or any(self.plans[node].same_as(done, start, since) for node in self.first)
