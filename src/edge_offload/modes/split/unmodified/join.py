"""Segments between the reads of one inference as one segment: it has the inference's uploads and all of its reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from edge_offload.replay.signatures import Definition, SegmentInvocation


@dataclass(frozen=True)
class Joined:
    """Several segments in a row as one.

    Attributes:
        definition: what it consists of.
        live: (number in it, storage) of what lived before its first call.
        numbers: host numbers of all calls.
        names: for each segment, what its numbers are in the whole.
        calls: how many calls each segment has.
    """

    definition: Definition
    live: Tuple[Tuple[int, int], ...]
    numbers: bytes
    names: Tuple[Dict[int, int], ...]
    calls: Tuple[int, ...]

    def made(self, of_calls: Sequence[Sequence[int]]) -> List[Tuple[int, ...]]:
        """Return for each segment the numbers, in it, of the storages that it makes.

        Args:
            of_calls: for each call of the whole the numbers, in that, of the storages that it makes.
        """
        found: List[Tuple[int, ...]] = []
        start = 0
        for names, count in zip(self.names, self.calls):
            inside = {whole: mine for mine, whole in names.items()}
            following = max(names, default=-1) + 1  # results that nothing used have the last numbers
            mine: List[int] = []
            for number in (number for call in of_calls[start : start + count] for number in call):
                mine.append(inside.get(number, following))
                following += number not in inside
            found.append(tuple(mine))
            start += count
        return found


def join(pieces: Sequence[SegmentInvocation], definitions: Sequence[Definition]) -> Joined:
    """One segment of several that the program issued in a row.

    Storages have their numbers in the order in which calls first name or make them, as the device would have given
    them. How many a segment made, used or not, is seen from where the next one begins to count.
    """
    places: Dict[int, int] = {}
    live: List[Tuple[int, int]] = []
    words: List[int] = []
    names: List[Dict[int, int]] = []
    values = 0
    for index, (piece, definition) in enumerate(zip(pieces, definitions)):
        older = dict(piece.live)
        mine: Dict[int, int] = {}
        storage = piece.base
        named = [number for _, numbers in definition.calls_with_storages() for number in numbers]
        for number in range(max([*older, *named], default=-1) + 1):
            at = older.get(number)
            if at is None:
                at, storage = storage, storage + 1
            if at not in places:
                places[at] = values
                if number in older:
                    live.append((values, at))
                values += 1
            mine[number] = places[at]
        last = index + 1 == len(pieces)
        for unused in range(storage, storage if last else pieces[index + 1].base):
            places[unused] = values
            values += 1
        names.append(mine)
        for call, references in definition.calls_with_storages():
            words += [call.entry, *(mine[number] for number in references)]
    calls = tuple(call for definition in definitions for call in definition.calls)
    return Joined(
        Definition(tuple(words), calls),
        tuple(live),
        b"".join(piece.numbers for piece in pieces),
        tuple(names),
        tuple(len(definition.calls) for definition in definitions),
    )
