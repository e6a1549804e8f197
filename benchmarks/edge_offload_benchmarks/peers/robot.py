"""The loop of a measured client: its first inference at once, then what each line of standard input requests.

Standard library only, so that it runs in the environment of any peer. ``{"frames": n}`` runs inferences back to back,
and ``{"seconds": s}`` as many as begin within so long. Each answer has the stages of the start, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable, Dict, List, TextIO

#: Inference of the input with this number; the digest of its result.
Infer = Callable[[int], str]
#: Different inputs.
INPUTS = 8


class Stages:
    """Monotonic seconds at which the stages of a start had ended."""

    def __init__(self) -> None:
        self.seconds: Dict[str, float] = {}
        self.note("python")

    def note(self, stage: str) -> None:
        """A stage has ended."""
        self.seconds[stage] = time.monotonic()


def take_output() -> TextIO:
    """Standard output for answers alone; what else is printed goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def answer_requests(infer: Infer, stages: Stages, out: TextIO) -> None:
    """Answer until standard input ends.

    Args:
        infer: ready for its first call.
        stages: of the start, the connection included.
        out: of the answers.
    """
    stages.note("ready")
    digests = {"0": infer(0)}
    stages.note("result")
    number = 0
    for line in sys.stdin:
        request = json.loads(line)
        seconds: List[float] = []
        ends = time.monotonic() + request.get("seconds", float("inf"))
        while len(seconds) < request.get("frames", sys.maxsize) and time.monotonic() < ends:
            number = (number + 1) % INPUTS
            started_at = time.perf_counter()
            digests[str(number)] = infer(number)
            seconds.append(time.perf_counter() - started_at)
        answer: Dict[str, Any] = {"seconds": seconds, "digests": digests, "stages": stages.seconds}
        print(json.dumps(answer), file=out, flush=True)
