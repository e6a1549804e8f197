"""What the server has been asked to run ahead, and how far the program has come in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple

from edge_offload.capture.arriving import Arriving
from edge_offload.capture.course import Edge
from edge_offload.capture.forms import Done
from edge_offload.capture.plans import Plan
from edge_offload.capture.symbols import Since


@dataclass
class Speculation:
    """A course on its way.

    Attributes:
        plans: of its nodes; ``edges``: what may follow each, ``first``: what may come first.
        since: integers of the inference's steps before it.
        future: the answer to come; ``waited`` for it already.
        last: integers of the last call before the course; None once it is taken into account in ``since``.
        told: how many of the steps that ran have been told to the device; None when no more can be.
        assumed: the last uploads of its first step, if it is only thought that the program will make them so.
        taken: how many of the steps that ran the program has done so far.
    """

    plans: List[Plan]
    edges: List[List[Edge]]
    first: List[Edge]
    since: List[Tuple[int, ...]]
    future: Arriving
    taken: int = 0
    waited: bool = False
    last: Optional[Tuple[int, ...]] = ()
    told: Optional[int] = 0
    assumed: Tuple[Optional[bytes], ...] = ()

    def may_go_on_with(self, done: Done, start: int, since: Since) -> bool:
        """Whether ``done`` may be what the server runs next, as far as that is known without waiting for it."""
        ran = self.future.so_far.ran
        if not self.taken and self.assumed and done.payloads[-len(self.assumed) :] != self.assumed:
            return False
        if self.taken < len(ran):
            return True
        following = self.edges[ran[self.taken - 1][0]] if self.taken else self.first
        return any(self.plans[node].same_as(done, start, since) for node in {node for _, node in following})
