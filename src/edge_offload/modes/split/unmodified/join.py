"""Segments between the reads of one inference as one segment: it has the inference's uploads and all of its reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from edge_offload.replay.signatures import Definition, SegmentInvocation


@dataclass(frozen=True)
class JoinedSegments:
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

    def made_by_segment(self, of_calls: Sequence[Sequence[int]]) -> List[Tuple[int, ...]]:
        """Return for each segment the numbers, in it, of the storages that it makes.

        Args:
            of_calls: for each call of the whole the numbers, in that, of the storages that it makes.
        """
        result: List[Tuple[int, ...]] = []
        start = 0
        for names, count in zip(self.names, self.calls):
            inside = {joined_number: numbers for numbers, joined_number in names.items()}
            following = max(names, default=-1) + 1  # results that nothing used have the last numbers
            numbers: List[int] = []
            for number in (number for call in of_calls[start : start + count] for number in call):
                numbers.append(inside.get(number, following))
                following += number not in inside
            result.append(tuple(numbers))
            start += count
        return result


def join_segments(pieces: Sequence[SegmentInvocation], definitions: Sequence[Definition]) -> JoinedSegments:
    """One segment of several that the program issued in a row.

    Storages have their numbers in the order in which calls first name or make them, as the device would have given
    them. How many a segment made, used or not, is seen from where the next one begins to count.
    """
    places: Dict[int, int] = {}
    live: List[Tuple[int, int]] = []
    encoded: List[int] = []
    names: List[Dict[int, int]] = []
    values = 0
    for index, (piece, definition) in enumerate(zip(pieces, definitions)):
        older = dict(piece.live)
        numbers: Dict[int, int] = {}
        storage = piece.base
        references_of = [number for _, numbers in definition.calls_with_storages() for number in numbers]
        for number in range(max([*older, *references_of], default=-1) + 1):
            storage_of = older.get(number)
            if storage_of is None:
                storage_of, storage = storage, storage + 1
            if storage_of not in places:
                places[storage_of] = values
                if number in older:
                    live.append((values, storage_of))
                values += 1
            numbers[number] = places[storage_of]
        last = index + 1 == len(pieces)
        for unused in range(storage, storage if last else pieces[index + 1].base):
            places[unused] = values
            values += 1
        names.append(numbers)
        for call, references in definition.calls_with_storages():
            encoded += [call.entry, *(numbers[number] for number in references)]
    calls = tuple(call for definition in definitions for call in definition.calls)
    return JoinedSegments(
        Definition(tuple(encoded), calls),
        tuple(live),
        b"".join(piece.numbers for piece in pieces),
        tuple(names),
        tuple(len(definition.calls) for definition in definitions),
    )
