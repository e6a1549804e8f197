"""A segment that comes again is compiled: what it returns, keeps and frees stays what it was call by call."""

from __future__ import annotations

import gc
import struct
import weakref
from typing import Any, List, Sequence, Tuple

import pytest
import torch

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.session.instructions import KERNEL
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.session import DeviceSession, SegmentStep
from edge_offload.ir.trace.segments import CallFailed
from tests.execute.native_runner import native_runner


@pytest.fixture(autouse=True, params=["python", "native"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All of it in pure Python, and in C++ where that takes the segment."""
    monkeypatch.setattr(library, "module", None if request.param == "python" else native_runner())
    chosen: str = request.param
    return chosen


FLOAT, INT = 6, 4
WIDTH = 4


def tensor(storage: int, sizes: Sequence[int] = (WIDTH,), dtype: int = FLOAT, size: int = 4 * WIDTH) -> bytes:
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    form = f"<BBB{len(sizes)}q{len(sizes)}qqqB"
    return b"T" + struct.pack(form, dtype, 0, len(sizes), *sizes, *strides, 0, size, storage)


WRAPPED = b"Wi" + struct.pack("<BB", INT, 1)
ONE = b"Wi" + struct.pack("<BB", INT, 1)
ENTRIES: List[Tuple[str, bytes]] = [
    ("edge::alloc", b"I" + struct.pack("<q", 4 * WIDTH)),
    ("edge::upload", tensor(0) + b"P" + struct.pack("<BBq", FLOAT, 1, WIDTH)),
    ("edge::download", tensor(0)),
    ("aten::mul.Tensor", tensor(0) + tensor(1)),
    ("aten::add_.Tensor", tensor(0) + tensor(1) + b"I" + struct.pack("<q", 1)),
    ("aten::relu_", tensor(0)),
    ("aten::mul.Tensor", tensor(0) + WRAPPED),
    ("aten::max.dim", tensor(0, (2, 2)) + b"I" + struct.pack("<q", 1) + b"B\0"),
    ("aten::cat", b"L" + struct.pack("<I", 2) + tensor(0, (2,), size=8) + tensor(1) + b"I" + struct.pack("<q", 0)),
    ("edge::download", tensor(0, (6,), size=24)),
    ("aten::bernoulli_.float", tensor(0) + b"F" + struct.pack("<d", 0.5) + b"N"),
    ("aten::div_.Tensor_mode", tensor(0, dtype=INT, size=32) + WRAPPED + b"X" + struct.pack("<I", 5) + b"floor"),
]
(ALLOC, UPLOAD, DOWNLOAD, MUL, ADD_, RELU_, SCALE, MAX, CAT, DOWNLOAD6, RANDOM_, DIV_) = range(len(ENTRIES))


def integer(value: int) -> bytes:
    return struct.pack("<q8x", value)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


class Device:
    """A session with ENTRIES, and a count of the segments that were compiled."""

    def __init__(self) -> None:
        self.session = DeviceSession()
        for name, key in ENTRIES:
            self.session.define_operator(name, key)

    def define(self, number: int, *words: int) -> None:
        self.session.define_segment(number, struct.pack(f"<{len(words)}I", *words))

    def run(self, number: int, base: int, live: Any = (), dead: Any = (), numbers: bytes = b"",
            payloads: Any = (), speculative: bool = False) -> Any:  # fmt: skip
        step = SegmentStep(number, base, list(live), list(dead), numbers, list(payloads))
        return self.session.run(step, speculative).tensor

    def compiled(self, number: int) -> bool:
        return self.program(number) is not None

    def program(self, number: int) -> Any:
        compiled_segment = self.session._compiled.get(self.session.segments[number])
        return compiled_segment.program if compiled_segment is not None else None

    def weight(self, number: int, *values: float) -> None:
        """A storage that exists before; segment 100 uploads it."""
        self.define(100, ALLOC, UPLOAD, 0)
        self.run(100, number, payloads=[floats(*values)])


@pytest.fixture
def device() -> Device:
    return Device()


#: x = upload; y = relu_(x * w + w in place); z = y * number; max of z by rows; cat(max, z); read.
NETWORK = (ALLOC, UPLOAD, 0, MUL, 0, 1, ADD_, 2, 1, RELU_, 2, SCALE, 2, MAX, 3, CAT, 4, 3, DOWNLOAD6, 6)
LIVE = [(1, 1)]


def expected(x: Sequence[float], w: Sequence[float], number: int) -> torch.Tensor:
    y = torch.relu_((torch.tensor(x) * torch.tensor(w)).add_(torch.tensor(w)))
    z = y * number
    return torch.cat([z.view(2, 2).max(1).values, z])


def test_a_segment_returns_the_same_when_it_is_compiled(device: Device, runner: str) -> None:
    device.weight(1, 1.5, -2, 3, 0.25)
    device.define(0, *NETWORK)
    for turn in range(5):
        x = [turn - 2.0, turn * 0.3, -turn, 7]
        output = device.run(0, 10 + 10 * turn, LIVE, [0, 2, 3, 4, 5, 6], integer(3), [floats(*x)])
        assert torch.equal(output, expected(x, [1.5, -2, 3, 0.25], 3))
        assert device.compiled(0) == (turn > 0)
        assert sorted(device.session.buffers) == [1]
    program = device.program(0)
    assert (program._native is not None) == (runner == "native")


def test_another_number_and_another_weight_are_seen(device: Device) -> None:
    device.define(0, *NETWORK)
    for turn in range(6):
        w = [turn, 1.0, -1.0, 2.0]
        device.weight(1, *w)
        number = 2 if turn < 3 else turn
        output = device.run(0, 10 + 10 * turn, LIVE, [0, 2, 3, 4, 5, 6], integer(number), [floats(1, 2, 3, 4)])
        assert torch.equal(output, expected([1, 2, 3, 4], w, number))
        device.session.free([1])
    with pytest.raises(BadInput, match="storage 1 does not exist"):
        device.run(0, 900, LIVE, [0, 2, 3, 4, 5, 6], integer(5), [floats(1, 2, 3, 4)])
    device.weight(1, 9, 9, 9, 9)  # what failed has left nothing behind
    output = device.run(0, 910, LIVE, [0, 2, 3, 4, 5, 6], integer(5), [floats(1, 2, 3, 4)])
    assert torch.equal(output, expected([1, 2, 3, 4], [9, 9, 9, 9], 5))


def test_what_the_program_still_holds_outlives_the_segment(device: Device) -> None:
    device.weight(1, 1, 1, 1, 1)
    device.define(0, *NETWORK)
    device.define(1, DOWNLOAD, 0)
    for turn in range(4):
        base = 10 + 10 * turn
        device.run(0, base, LIVE, [0, 3, 4, 5], integer(turn < 9), [floats(turn, 1, 2, 3)])
        assert sorted(device.session.buffers) == [1, base + 1, base + 5]  # canonical 2 and 6
        assert device.run(1, base + 9, [(0, base + 1)]).tolist() == [turn + 1, 2, 3, 4]
        device.session.free([base + 1, base + 5])
    assert device.compiled(0)
    assert device.session.allocated == 4 * WIDTH


def test_a_freed_storage_is_not_retained_by_compiled_code(device: Device) -> None:
    device.weight(1, 1, 1, 1, 1)
    device.define(0, *NETWORK)
    for turn in range(4):
        device.run(0, 10 + 10 * turn, LIVE, [0, 2, 3, 4, 5, 6], integer(2), [floats(1, 2, 3, 4)])
    reference = weakref.ref(device.session.buffers[1].view(next(iter(device.session.buffers[1].views))))
    assert reference() is not None
    device.session.free([1])
    gc.collect()
    assert reference() is None


def test_tensors_in_between_live_until_their_last_use(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "module", None)
    alive: List[int] = []
    made: List[Any] = []

    def note(entry: Any) -> None:
        alive.append(sum(reference() is not None for reference in made))

    device.weight(1, 1, 1, 1, 1)
    device.define(
        0, ALLOC, UPLOAD, 0, *[word for i in range(8) for word in (MUL, 0 if i == 0 else i + 1, 1)], DOWNLOAD, 9
    )
    device.run(0, 10, LIVE, range(2, 10), b"", [floats(1, 2, 3, 4)])
    device.run(0, 30, LIVE, range(2, 10), b"", [floats(1, 2, 3, 4)])
    program = device.program(0)
    for place, instruction in enumerate(program.code.instructions):
        if instruction.how == KERNEL:
            kernel = instruction.kernel

            def watched(*arguments: Any, kernel: Any = kernel, **named: Any) -> Any:
                result = kernel(*arguments, **named)
                made.append(weakref.ref(result))
                return result

            program.code.instructions[place] = instruction._replace(kernel=watched)
    device.session.note_call = note  # type: ignore[method-assign]
    device.run(0, 50, LIVE, range(2, 10), b"", [floats(1, 2, 3, 4)])
    assert len(made) == 8
    assert max(alive) <= 2


def test_state_in_place_is_undone(device: Device) -> None:
    device.weight(1, 1, 2, 3, 4)
    device.define(0, ADD_, 0, 0, RANDOM_, 1, DOWNLOAD, 0)
    device.define(1, DOWNLOAD, 0)
    device.weight(2, 0, 0, 0, 0)
    live = [(0, 1), (1, 2)]
    for _ in range(3):
        before = torch.random.get_rng_state()
        first = device.run(0, 10, live, speculative=True)
        assert first.tolist() == [2, 4, 6, 8]
        device.session.settle_speculation(0)
        assert device.run(1, 10, [(0, 1)]).tolist() == [1, 2, 3, 4]
        assert device.run(1, 10, [(0, 2)]).tolist() == [0, 0, 0, 0]
        assert torch.equal(torch.random.get_rng_state(), before)
    assert device.compiled(0)


def test_an_operator_that_fails_is_named_and_what_ran_before_it_has_happened(device: Device) -> None:
    device.define(0, ALLOC, UPLOAD, 0, RELU_, 0, DIV_, 1, DOWNLOAD, 0)
    device.define(1, DOWNLOAD, 0)
    device.session.define_operator("aten::zeros", b"V" + struct.pack("<Iq", 1, WIDTH) + b"I" + struct.pack("<q", INT)
                                + b"NYN")  # fmt: skip
    device.define(2, len(ENTRIES))
    device.run(2, 1)
    for turn in range(3):
        assert device.run(0, 10 + turn, [(1, 1)], [], integer(2), [floats(-1, turn, 2, 3)]).tolist() == [0, turn, 2, 3]
        device.session.free([10 + turn])
    assert device.compiled(0)
    for turn in range(3):
        with pytest.raises(CallFailed, match="div_"):
            device.run(0, 20 + turn, [(1, 1)], [], integer(0), [floats(-1, turn, 2, 3)])
        assert device.run(1, 50, [(0, 20 + turn)]).tolist() == [0, turn, 2, 3]


def test_an_unsupported_dtype_is_refused_by_name_every_time(device: Device) -> None:
    device.weight(1, 1.5, -2, 3, 0.25)
    device.session.define_operator("edge::download", tensor(0, dtype=70))
    device.define(0, len(ENTRIES), 0)
    for turn in range(3):
        with pytest.raises(Unsupported, match="'edge::download': dtype number 70 is not supported"):
            device.run(0, 10 + turn, [(0, 1)])


def test_a_conjugate_of_real_numbers_is_refused(device: Device) -> None:
    device.weight(1, 1.5, -2, 3, 0.25)
    item = bytearray(tensor(0))
    item[2] = 1  # flags: a conjugate
    device.session.define_operator("edge::download", bytes(item))
    device.define(0, len(ENTRIES), 0)
    with pytest.raises(BadInput, match="does not fit its storage"):
        device.run(0, 10, [(0, 1)])


@pytest.mark.parametrize("number", [-2, 12, 1 << 40])
def test_a_number_that_is_no_dtype_does_not_reach_the_operator(device: Device, number: int) -> None:
    device.weight(1, 1.5, -2, 3, 0.25)
    device.session.define_operator("aten::sum", tensor(0) + b"I" + struct.pack("<q", number))
    device.define(0, len(ENTRIES), 0)
    for turn in range(3):
        with pytest.raises(Unsupported, match=f"'aten::sum': dtype number {number} is not supported"):
            device.run(0, 10 + turn, [(0, 1)])


def test_messages_of_operators_are_shortened() -> None:
    assert len(str(CallFailed("aten::sum", RuntimeError("x" * (1 << 20))))) < 11_000
