"""What is put back after a restart of the server is what the program uploaded, and nothing that was changed since."""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Sequence, Tuple

import pytest
import torch

from edge_offload.execute.session.serve import serve
from edge_offload.execute.session.session import DeviceSession
from edge_offload.protocol.blobs import MAX_BLOB_BYTES, Named, digest
from edge_offload.protocol.messages import parse_answer
from edge_offload.replay.flushed import READ
from edge_offload.replay.signatures import SegmentInvocation, SignatureTable
from edge_offload.replay.uploads import ReplayableUploads

SIZE = 12


def integer(value: int) -> bytes:
    return b"I" + struct.pack("<q", value)


def tensor(storage: int) -> bytes:
    return b"T" + struct.pack("<BBBqqqqB", 6, 0, 1, 3, 1, 0, SIZE, storage)


IMAGE = b"T" + struct.pack("<BBB8qqqB", 6, 0, 4, 1, 3, 1, 1, 3, 1, 1, 1, 0, SIZE, 0)
ENTRIES: List[Tuple[str, bytes, Any]] = [
    ("edge::alloc", integer(SIZE), None),
    ("edge::upload", tensor(0) + b"P" + struct.pack("<BBq", 6, 1, 3), None),
    ("aten::add_.Tensor", tensor(0) + tensor(1) + integer(1), [["t", [2]]]),
    ("aten::mul.Tensor", tensor(0) + tensor(1), [["t", [0, 0, 6, 0, [3], [1], 0, SIZE]]]),
    ("aten::mul.Tensor", tensor(0) + tensor(1), None),
    ("aten::native_batch_norm", b"".join((IMAGE, b"U", b"U", tensor(1), tensor(2), b"B\1", b"F", struct.pack("<d", 0.1),
     b"F", struct.pack("<d", 1e-5))), None),
    ("aten::native_batch_norm", b"".join((IMAGE, b"U", b"U", tensor(1), tensor(2), b"B\0", b"F", struct.pack("<d", 0.1),
     b"F", struct.pack("<d", 1e-5))), None),
    ("aten::bernoulli_.float", tensor(0) + b"F" + struct.pack("<d", 0.5) + b"U", None),
    ("edge::seed", integer(0), None),
]  # fmt: skip
ALLOC, UPLOAD, ADD_, MUL, UNKNOWN, MOVES, STAYS, DRAW, SEED = range(len(ENTRIES))


class Program:
    """A program that has done a few segments."""

    def __init__(self) -> None:
        self.uploads = ReplayableUploads()
        self.signatures = SignatureTable(self)
        self._words: List[Tuple[int, ...]] = []

    def entry(self, number: int) -> Tuple[str, bytes, Any]:
        return ENTRIES[number]

    def words(self, segment: int) -> bytes:
        return struct.pack(f"<{len(self._words[segment])}I", *self._words[segment])

    def do(
        self, words: Sequence[int], base: int, live: Dict[int, int], payloads: Sequence[Any] = (), **how: Any
    ) -> None:
        self._words.append(tuple(words))
        uploads = [torch.tensor(payload, dtype=torch.float32) for payload in payloads]
        invocation = SegmentInvocation(
            len(self._words) - 1, base, tuple(live.items()), frozenset(how.pop("dead", ())), b"", uploads, READ
        )
        self.uploads.note(invocation, self.uploads.use(invocation, self.signatures), True, **how)

    def put_back(self, before: int = 1000) -> Dict[int, List[float]]:
        """What a session that knows nothing has afterwards."""
        session = DeviceSession()
        for message in self.uploads.messages(before):
            assert parse_answer(serve(session, message.to_wire())).error is None
        return {
            number: torch.empty(0).set_(slot.storage).tolist()  # type: ignore[call-overload]
            for number, slot in session.slots.items()
        }


PUT_TWO = (ALLOC, UPLOAD, 0, ALLOC, UPLOAD, 1)


@pytest.fixture
def program() -> Program:
    """It has put 1 2 3 into storage 10, and 4 5 6 into 11."""
    made = Program()
    made.do(PUT_TWO, 10, {}, ([1, 2, 3], [4, 5, 6]))
    return made


def test_uploads_are_put_back_under_their_numbers(program: Program) -> None:
    assert program.put_back() == {10: [1, 2, 3], 11: [4, 5, 6]}
    assert program.put_back(before=11) == {10: [1, 2, 3]}
    program.uploads.free([10])
    assert program.put_back() == {11: [4, 5, 6]}


def test_the_last_upload_counts(program: Program) -> None:
    program.do((UPLOAD, 0), 20, {0: 10}, ([7, 8, 9],))
    assert program.put_back() == {10: [7, 8, 9], 11: [4, 5, 6]}


def test_what_is_only_read_stays_and_what_is_written_is_gone(program: Program) -> None:
    program.do((MUL, 0, 1), 20, {0: 10, 1: 11})
    assert set(program.put_back()) == {10, 11}
    program.do((ADD_, 0, 1), 21, {0: 11, 1: 10})
    assert program.put_back() == {10: [1, 2, 3]}
    program.do((UPLOAD, 0), 30, {0: 11}, ([7, 8, 9],))
    assert program.put_back() == {10: [1, 2, 3]}, "only a part may have been written over"


def test_averages_that_an_inference_moves_are_gone(program: Program) -> None:
    program.do((ALLOC, UPLOAD, 0), 12, {}, ([1, 1, 1],))
    program.do((STAYS, 0, 1, 2), 20, {0: 12, 1: 10, 2: 11})
    assert set(program.put_back()) == {10, 11, 12}
    program.do((MOVES, 0, 1, 2), 30, {0: 12, 1: 10, 2: 11})
    assert set(program.put_back()) == {12}


def test_what_lies_behind_results_that_are_not_known_is_not_guessed(program: Program) -> None:
    program.do((MUL, 0, 1, ALLOC, UPLOAD, 3), 20, {0: 10, 1: 11}, ([7, 8, 9],))
    assert program.put_back()[21] == [7, 8, 9]
    program.do((UNKNOWN, 0, 1, ALLOC, UPLOAD, 3), 30, {0: 10, 1: 11}, ([7, 8, 9],))
    assert set(program.put_back()) == {10, 11, 21}


def test_what_was_dropped_or_failed_is_not_put_back(program: Program) -> None:
    program.do(PUT_TWO, 20, {}, ([1, 2, 3], [4, 5, 6]), dead=[0])
    assert set(program.put_back()) == {10, 11, 21}
    program.do(PUT_TWO, 30, {}, ([1, 2, 3], [4, 5, 6]), failed=True)
    program.do((UPLOAD, 0), 40, {0: 10}, ([7, 8, 9],), failed=True)
    assert set(program.put_back()) == {11, 21}


def test_random_generators_that_were_used_are_known(program: Program) -> None:
    assert program.uploads.used == set()
    program.do((DRAW, 0), 20, {0: 10})
    assert program.uploads.used == {0}
    draws = SegmentInvocation(1, 20, ((0, 10),), frozenset(), b"", [], READ)
    assert program.uploads.use(draws, program.signatures).generators == {0: False}
    program.do((SEED, DRAW, 0), 30, {0: 11})
    seeded = SegmentInvocation(2, 30, ((0, 11),), frozenset(), b"", [], READ)
    assert program.uploads.use(seeded, program.signatures).generators == {0: True}


@pytest.mark.parametrize("kept", [True, False])
def test_a_large_upload_is_remembered_by_its_checksums_where_the_server_keeps_it(program: Program, kept: bool) -> None:
    size = MAX_BLOB_BYTES + 4
    weights = torch.arange(size // 4, dtype=torch.float32)
    program.do((ALLOC, UPLOAD, 0), 20, {}, ([1],))
    invocation = SegmentInvocation(2, 30, ((0, 20),), frozenset(), b"", [weights], READ)
    program._words.append((UPLOAD, 0))
    program.uploads.note(invocation, program.uploads.use(invocation, program.signatures), kept)
    assert (20 in program.uploads) == kept
    steps = [step for message in program.uploads.messages(1000) for step in message.steps]
    payloads = [payload for step in steps for payload in step.payloads]
    found = [payload for payload in payloads if isinstance(payload, Named)]
    data = bytes(memoryview(weights.numpy()).cast("B"))
    wanted = [Named(size, (digest(data[:MAX_BLOB_BYTES]), digest(data[MAX_BLOB_BYTES:])))]
    assert found == (wanted if kept else [])
