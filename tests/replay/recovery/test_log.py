"""What is put into a session that knows nothing is what the program held, to the bit, or it counts as lost."""

from __future__ import annotations

import random
import struct
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import pytest
import torch

from edge_offload.execute.session.serve import serve_message
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.calls import BoundOperator
from edge_offload.ir.trace.keys import calls_in
from edge_offload.ir.trace.segments import Segment, SegmentStep, StepOutcome
from edge_offload.protocol.blobs import MAX_BLOB_BYTES, NamedBlobs, digest
from edge_offload.protocol.messages import parse_answer, tensor_bytes
from edge_offload.replay.flushed import READ
from edge_offload.replay.recovery import log as recovery_log
from edge_offload.replay.recovery.log import RecoveryLog
from edge_offload.replay.signatures import SegmentInvocation, SignatureTable

SIZE = 12


def integer(value: int) -> bytes:
    return b"I" + struct.pack("<q", value)


def tensor(storage: int) -> bytes:
    return b"T" + struct.pack("<BBBqqqqB", 6, 0, 1, 3, 1, 0, SIZE, storage)


IMAGE = b"T" + struct.pack("<BBB8qqqB", 6, 0, 4, 1, 3, 1, 1, 3, 1, 1, 1, 0, SIZE, 0)
ENTRIES: List[Tuple[str, bytes, Any]] = [
    ("edge::alloc", integer(SIZE), None),
    ("edge::upload", tensor(0) + b"P" + struct.pack("<BBq", 6, 1, 3), None),
    ("aten::add_.Tensor", tensor(0) + tensor(1) + integer(1), [["t", [2, 0, 6, 0, [3], [1], 0, SIZE]]]),
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
LARGE_ALLOC = len(ENTRIES)
CPU = torch.device("cpu")


def draw() -> BoundOperator:
    return BoundOperator(*ENTRIES[DRAW][:2], CPU)


class Program:
    """A program that has done a few segments; ``session`` is the device on which it did them."""

    def __init__(self, first: int = 0) -> None:
        self.log = RecoveryLog()
        self.signatures = SignatureTable(self)
        self.session = Device()
        self.next = first
        self._codes: List[Tuple[int, ...]] = []

    def entry(self, number: int) -> Tuple[str, bytes, Any]:
        return ENTRIES[number]

    def segment_code(self, segment: int) -> bytes:
        return struct.pack(f"<{len(self._codes[segment])}I", *self._codes[segment])

    def do(
        self, code: Sequence[int], live: Sequence[int] = (), payloads: Sequence[Any] = (), stores: bool = True,
        failed: bool = False, dead: Sequence[int] = (), seed: int = 0,
    ) -> List[int]:  # fmt: skip
        """Run a segment; the storages that it made and that are not dropped."""
        self._codes.append(tuple(code))
        uploads = [torch.as_tensor(payload, dtype=torch.float32) for payload in payloads]
        numbers = struct.pack("<qq", 0, seed) if SEED in code else b""
        inputs = tuple(enumerate(live))
        made = SegmentInvocation(len(self._codes) - 1, self.next, inputs, frozenset(dead), numbers, uploads, READ)
        calls = calls_in(self._codes[-1], lambda number: BoundOperator(*ENTRIES[number][:2], CPU))
        step = SegmentStep(0, made.base, inputs, sorted(dead), numbers, [tensor_bytes(payload) for payload in uploads])
        self.next += self.session.run(step, segment=Segment.from_calls(calls)).grown
        self.log.note_segment(made, self.signatures, (lambda _named, _data: True) if stores else None, failed)
        return [number for number in range(made.base, self.next) if number - made.base + len(live) not in dead]

    def free(self, *storages: int) -> None:
        self.log.free_storages(storages)
        self.session.free(list(storages))

    def replay_log(self, before: Optional[int] = None) -> Tuple[DeviceSession, Set[int]]:
        """A session that knew nothing, and what is there now."""
        session, restored = Device(), set()
        for message in self.log.restore_messages(self.next if before is None else before, None, restored):
            assert parse_answer(serve_message(session, message.to_wire())).error is None
        session.free(self.log.dropped_storages(restored))
        return session, restored - set(self.log.dropped_storages(restored))

    def put_back(self, before: Optional[int] = None) -> Dict[int, List[float]]:
        """What a session that knew nothing has afterwards."""
        session, restored = self.replay_log(before)
        return {number: read_storage(session, number) for number in sorted(restored) if number >= 0}


class Device(DeviceSession):
    """As in an executor process of its own: torch's generator is in the state in which torch starts."""

    def __init__(self) -> None:
        super().__init__()
        self._state = torch.Generator().get_state()

    def run(self, *step: Any, **how: Any) -> StepOutcome:
        others = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            return super().run(*step, **how)
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(others)


def read_storage(session: DeviceSession, number: int) -> List[float]:
    return torch.empty(0).set_(session.buffers[number].storage).tolist()  # type: ignore[call-overload, no-any-return]


PUT_TWO = (ALLOC, UPLOAD, 0, ALLOC, UPLOAD, 1)


@pytest.fixture
def program() -> Program:
    """It has put 1 2 3 into storage 10, and 4 5 6 into 11."""
    made = Program(10)
    assert made.do(PUT_TWO, (), ([1, 2, 3], [4, 5, 6])) == [10, 11]
    return made


def test_uploads_are_put_back_under_their_numbers(program: Program) -> None:
    assert program.put_back() == {10: [1, 2, 3], 11: [4, 5, 6]}
    program.free(10)
    assert program.put_back() == {11: [4, 5, 6]}
    program.do((ALLOC, UPLOAD, 0), (), ([7, 8, 9],))
    assert program.put_back(before=12) == {11: [4, 5, 6]}


def test_the_last_upload_counts(program: Program) -> None:
    program.do((UPLOAD, 0), (10,), ([7, 8, 9],))
    assert program.put_back() == {10: [7, 8, 9], 11: [4, 5, 6]}


def test_computed_values_are_recomputed(program: Program) -> None:
    assert program.do((MUL, 0, 1), (10, 11)) == [12]
    program.do((ADD_, 0, 1), (11, 10))
    expected = {10: [1, 2, 3], 11: [5, 7, 9], 12: [4, 10, 18]}
    assert program.put_back() == expected
    program.do((MUL, 0, 1), (12, 11), dead=[2])
    assert program.put_back() == expected
    program.free(12, 11)
    assert program.put_back() == {10: [1, 2, 3]}


def test_dropped_values_are_recomputed_for_their_results_and_dropped_later(program: Program) -> None:
    program.do((MUL, 0, 1), (10, 11))
    program.do((MUL, 0, 0), (12,))
    program.free(12, 10)
    assert program.put_back() == {11: [4, 5, 6], 13: [16, 100, 324]}


def test_uploads_into_computed_storages_preserve_their_order(program: Program) -> None:
    program.do((ADD_, 0, 1), (11, 10))
    program.do((UPLOAD, 0), (11,), ([7, 8, 9],))
    program.do((ADD_, 0, 1), (11, 10))
    assert program.put_back() == {10: [1, 2, 3], 11: [8, 10, 12]}


def test_a_result_of_what_was_uploaded_over_since_is_lost_and_the_upload_is_not(program: Program) -> None:
    program.do((MUL, 0, 1), (10, 11))
    program.do((UPLOAD, 0), (10,), ([7, 8, 9],))
    assert program.put_back() == {10: [7, 8, 9], 11: [4, 5, 6]}
    assert program.log.lost_storages == 1
    assert not program.log.is_complete
    program.free(12)
    assert program.log.is_complete


def test_storages_filled_and_read_in_one_segment_are_reread(program: Program) -> None:
    program.do((UPLOAD, 0, MUL, 0, 1), (10, 11), ([7, 8, 9],))
    assert program.put_back() == {10: [7, 8, 9], 11: [4, 5, 6], 12: [28, 40, 54]}
    program.do((MUL, 0, 1, UPLOAD, 0), (10, 11), ([1, 1, 1],))
    assert program.put_back() == {10: [1, 1, 1], 11: [4, 5, 6]}


def test_averages_that_an_inference_moves_go_on_moving(program: Program) -> None:
    program.do((ALLOC, UPLOAD, 0), (), ([1, 1, 1],))
    for _ in range(3):
        program.free(*program.do((MOVES, 0, 1, 2), (12, 10, 11)))
    assert str(program.put_back()) == str({number: read_storage(program.session, number) for number in (10, 11, 12)})
    assert program.put_back()[10] != [1, 2, 3]


def test_unpredicted_results_are_recomputed(program: Program) -> None:
    assert program.do((MUL, 0, 1, ALLOC, UPLOAD, 3), (10, 11), ([7, 8, 9],)) == [12, 13]
    assert program.do((UNKNOWN, 0, 1, ALLOC, UPLOAD, 3), (10, 11), ([7, 8, 9],)) == [14, 15]
    program.free(14)
    assert program.put_back() == {10: [1, 2, 3], 11: [4, 5, 6], 12: [4, 10, 18], 13: [7, 8, 9], 15: [7, 8, 9]}


def test_what_failed_is_not_put_back(program: Program) -> None:
    assert program.do(PUT_TWO, (), ([1, 2, 3], [4, 5, 6]), dead=[0]) == [13]
    assert set(program.put_back()) == {10, 11, 13}
    assert program.do(PUT_TWO, (), ([1, 2, 3], [4, 5, 6]), failed=True) == [14, 15]
    program.do((UPLOAD, 0), (10,), ([7, 8, 9],), failed=True)
    assert set(program.put_back()) == {11, 13}
    program.do((MUL, 0, 1), (10, 11))
    assert set(program.put_back()) == {11, 13}
    assert program.log.lost_storages == 4


@pytest.mark.parametrize("seeded", [True, False])
def test_random_generators_go_on_where_they_were(program: Program, seeded: bool) -> None:
    program.do((SEED, DRAW, 0) if seeded else (DRAW, 0), (10,), seed=3)
    program.do((DRAW, 0), (10,))
    session, restored = program.replay_log()
    assert restored == {10, 11, -1}
    assert read_storage(session, 10) == read_storage(program.session, 10)
    for each in (session, program.session):
        each.run(SegmentStep(0, 20, [(0, 11)], [], b"", []), segment=Segment.from_calls([(draw(), (0,))]))
    assert read_storage(session, 11) == read_storage(program.session, 11)


def test_steps_beyond_the_log_are_lost_and_a_seed_is_a_new_beginning(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_log, "MAX_SEGMENTS", 100)
    for _ in range(150):
        program.do((ADD_, 0, 1), (10, 11))
        program.do((DRAW, 0), (11,))
    assert program.put_back() == {}
    assert program.log.lost_generators == {-1}
    program.do((SEED,))
    assert program.replay_log()[1] == {-1}
    assert program.log.lost_generators == set()
    assert program.log.lost_storages == 2


KINDS = (ALLOC, UPLOAD, MUL, MUL, UNKNOWN, ADD_, ADD_, DRAW, SEED, "free", "both", "refill", "swap", "first")


@pytest.mark.parametrize("seed", range(40))
def test_a_random_program_continues_with_its_bits_or_reports_the_loss(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_log, "PRUNE_SEGMENTS", 4)
    monkeypatch.setattr(recovery_log, "MAX_SEGMENTS", 30)
    rng, program = random.Random(seed), Program()
    alive: List[int] = []
    restored_in_all = 0
    for turn in range(60):
        what = rng.choice(KINDS)
        two = rng.sample(alive, 2) if len(alive) > 1 else []
        data = [rng.random() for _ in range(3)]
        if what == ALLOC or len(alive) < 3:
            alive += program.do((ALLOC, UPLOAD, 0), (), (data,))
        elif what == UPLOAD:
            program.do((UPLOAD, 0), two[:1], (data,))
        elif what in (MUL, UNKNOWN):
            alive += program.do((what, 0, 1), two, dead=[2] if rng.random() < 0.3 else [])
        elif what == ADD_:
            program.do((ADD_, 0, 1), two)
        elif what == "both":  # reads it, and then fills it
            alive += program.do((MUL, 0, 1, UPLOAD, 0), two, (data,))
        elif what == "refill":  # fills it, and then reads it
            alive += program.do((UPLOAD, 0, MUL, 0, 1), two, (data,))
        elif what == "swap":  # the same with what has just been put there
            (fresh,) = program.do((MUL, 0, 1, ALLOC, UPLOAD, 3), two, (data,), dead=[2])
            results = program.do(
                (UPLOAD, 0, MUL, 0, 1) if turn % 2 else (MUL, 0, 1, UPLOAD, 0), (fresh, two[0]), (data,)
            )
            alive += [fresh, *results]
        elif what == "first":  # puts something there, and computes with it
            alive += program.do((MUL, 0, 1, ALLOC, UPLOAD, 3, MUL, 2, 3), two, (data,), dead=[2])
        elif what == DRAW:
            program.do((DRAW, 0), two[:1])
        elif what == SEED:
            program.do((SEED,), seed=turn)
        elif what == "free":
            alive.remove(two[0])
            program.free(two[0])
        if turn % 7 == 6:
            session, restored = program.replay_log()
            results = {number for number in restored if number >= 0}
            assert results <= set(alive)
            assert len(set(alive) - results) <= program.log.lost_storages
            for number in results:
                assert read_storage(session, number) == read_storage(program.session, number), (
                    f"storage {number} at turn {turn}"
                )
            restored_in_all += len(results)
            if rng.random() < 0.5 and program.log.is_complete:  # and goes on there
                program.session = session
    assert restored_in_all > 2


@pytest.mark.parametrize("stored", [True, False])
def test_a_large_upload_is_remembered_by_its_checksums_where_the_server_keeps_it(
    program: Program, stored: bool
) -> None:
    size = MAX_BLOB_BYTES + 4
    weights = torch.arange(size // 4, dtype=torch.float32)
    alloc = ("edge::alloc", integer(size), None)
    key = b"T" + struct.pack("<BBBqqqqB", 6, 0, 1, size // 4, 1, 0, size, 0)
    key += b"P" + struct.pack("<BBq", 6, 1, size // 4)
    ENTRIES[LARGE_ALLOC:] = [alloc, ("edge::upload", key, None)]
    program.do((LARGE_ALLOC, LARGE_ALLOC + 1, 0), (), (weights,), stores=stored)
    steps = [step for message in program.log.restore_messages(13) for step in message.steps]
    payloads = [payload for step in steps for payload in step.payloads]
    named = [payload for payload in payloads if isinstance(payload, NamedBlobs)]
    data = bytes(memoryview(weights.numpy()).cast("B"))
    expected = [NamedBlobs(size, (digest(data[:MAX_BLOB_BYTES]), digest(data[MAX_BLOB_BYTES:])))]
    assert named == (expected if stored else [])
    assert data in [bytes(payload) for payload in payloads if not isinstance(payload, NamedBlobs)] or stored
