"""Answers of a device's executor until the robot has acknowledged them: after a break they are sent again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Sequence, Tuple

from edge_offload.ir.trace.calls import Buffer

#: Bytes of the answers kept for a robot that does not acknowledge them; the latest is, however large.
MAX_ANSWER_BYTES = 256 << 20

#: A body and its buffers: an answer, or a part of one that came ahead.
Answer = Tuple[Dict[str, Any], List[Buffer]]


class AnswerStore:
    """Answers, and their parts sent ahead, by the number of their message. The caller holds a lock."""

    def __init__(self) -> None:
        self._answers: OrderedDict[int, Answer] = OrderedDict()
        self._parts: Dict[int, List[Answer]] = {}

    def answer_to(self, number: int) -> Optional[Answer]:
        """Return the answer to a message; None if it is not stored."""
        return self._answers.get(number)

    def parts_of(self, number: int) -> Sequence[Answer]:
        """Return the parts of an answer that were sent ahead so far."""
        return self._parts.get(number, ())

    def add_answer(self, number: int, answer: Answer) -> None:
        """Store an answer; the oldest ones are removed beyond the limits."""
        self._answers[number] = answer
        while len(self._answers) > 64 or (len(self._answers) > 1 and self._count_bytes() > MAX_ANSWER_BYTES):
            oldest, _ = self._answers.popitem(last=False)
            self._parts.pop(oldest, None)

    def add_part(self, number: int, part: Answer) -> None:
        """Store a part of the next answer."""
        self._parts.setdefault(number, []).append(part)

    def remove_acknowledged(self, answered: int) -> None:
        """Remove the answers up to this one: the robot has them."""
        for old in [item for item in self._answers if item <= answered]:
            del self._answers[old]
            self._parts.pop(old, None)

    def clear(self) -> None:
        """Remove all answers."""
        self._answers.clear()
        self._parts.clear()

    def _count_bytes(self) -> int:
        answers = [*self._answers.values(), *(part for number in self._answers for part in self.parts_of(number))]
        return sum(memoryview(buffer).nbytes for _, buffers in answers for buffer in buffers)
