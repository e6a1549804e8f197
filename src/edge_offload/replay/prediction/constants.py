"""Which uploads after a host read are constants of the program, and which begin an inference.

An inference begins with an upload after a host read. Some programs upload the same few bytes after every read, too: an
index, a flag, the end of a range. A generator of text that does so for each token would begin an inference with each,
and none could be run ahead. What is a constant, is learnt: a step's uploads are, if they have been the same every time
for a while, and if other steps, which vary or come more seldom, have begun inferences in between.

A wrong guess costs round trips and nothing else: what ran by it is compared, byte for byte, with what is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

#: Times in a row that uploads have to be the same.
SAME_TIMES = 4
#: Times that other steps have to have begun an inference in between.
INFERENCES = 2
#: So many are told apart.
MAX_STEPS = 128

Uploads = Tuple[Optional[bytes], ...]


@dataclass
class _Uploader:
    """Steps of one signature that upload something after a read.

    Attributes:
        latest: what they uploaded last; ``same``: how often in a row.
        count: how many there were.
        streak: since another step has last begun an inference; ``longest`` before that.
        begun: how often that has happened; ``by``: the step that did.
    """

    latest: Uploads = ()
    same: int = 0
    count: int = 0
    streak: int = 0
    longest: int = 0
    begun: int = 0
    by: Optional[int] = None


class ConstantUploads:
    """Learns from every step that uploads something after a read."""

    def __init__(self) -> None:
        self._steps: Dict[int, _Uploader] = {}

    def is_expected(self, signature: int) -> bool:
        """True if a step of ``signature``, after a read, will probably upload what it has always uploaded."""
        step = self._steps.get(signature)
        if step is None or step.same < SAME_TIMES or step.begun < INFERENCES or step.streak >= 2 * step.longest:
            return False
        other = self._steps.get(step.by) if step.by is not None else None
        return other is not None and (other.same < SAME_TIMES or 2 * other.count <= step.count)

    def note_step(self, signature: int, uploads: Uploads) -> bool:
        """Notes the uploads of a step after a read; returns True if they are constants."""
        constant = self.is_expected(signature) and self._steps[signature].latest == uploads
        if len(self._steps) > MAX_STEPS:
            self._steps.clear()
        current = self._steps.setdefault(signature, _Uploader())
        current.same = current.same + 1 if current.latest == uploads and None not in uploads else 1
        current.latest = uploads
        current.count += 1
        current.streak += 1
        if not constant:
            for other, step in self._steps.items():
                if other != signature and step.streak:
                    step.longest, step.streak, step.by = max(step.longest, step.streak), 0, signature
                    step.begun += 1
        return constant
