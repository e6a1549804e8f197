"""A step with other sizes is compiled when it has run once: what it returns, keeps and undoes stays what it was."""

from __future__ import annotations

import struct
from typing import Any, List, Sequence, Tuple

import pytest
import torch

from edge_offload.errors import BadInput
from edge_offload.execute.session.instructions import KERNEL
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.keys import DTYPE_NUMBERS
from edge_offload.ir.trace.segments import SegmentStep
from edge_offload.ir.trace.storage import StorageBuffer
from edge_offload.ir.trace.symbols import Formula
from edge_offload.ir.trace.trace_graph import Patch, TraceGraph, TraceStep
from tests.execute.native_runner import native_runner
from tests.execute.test_compiled_segments import FLOAT, WRAPPED, floats, integer


@pytest.fixture(autouse=True, params=["python", "native"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it in pure Python, and in C++ where that takes the node."""
    monkeypatch.setattr(library, "module", None if request.param == "python" else native_runner())


N = 5  # the size that the calls are defined with


def tensor(storage: int, size: int, offset: int = 0) -> bytes:
    return b"T" + struct.pack("<BBBqqqqB", FLOAT, 0, 1, size, 1, offset, 4 * (size + offset), storage)


def complete(value: int) -> bytes:
    return b"I" + struct.pack("<q", value)


ENTRIES: List[Tuple[str, bytes]] = [
    ("aten::mul.Tensor", tensor(0, N) + WRAPPED),
    ("aten::add.Tensor", tensor(0, N - 1, 1) + tensor(0, N - 1) + complete(1)),
    ("aten::relu_", tensor(0, N - 1)),
    ("aten::cat", b"L" + struct.pack("<I", 2) + tensor(0, N) + tensor(1, N - 1) + complete(0)),
    ("edge::alloc", complete(4 * N)),
    ("aten::mul.out", tensor(0, N) + tensor(0, N) + tensor(1, N)),
    ("aten::new_zeros", tensor(0, N) + b"V" + struct.pack("<Iq", 1, N) + b"NNYN"),
    ("aten::relu_", tensor(0, N)),
    ("edge::download", tensor(0, N)),
]
#: y = x * 3; z = relu_(y[1:] + y[:-1]); cat(y, z); squares = alloc, y * y into it; zeros; relu_(x); read squares.
CODE = (0, 0, 1, 1, 1, 2, 2, 3, 1, 2, 4, 5, 1, 1, 4, 6, 4, 7, 0, 8, 4)


def last(factor: int, constant: int = 0) -> Formula:
    return Formula(factor, constant, ((1, 0, 0),))


def patches() -> Tuple[Patch, ...]:
    """Every size of the node's calls, as a formula of the last outcome's integer."""
    t = len(tensor(0, N))
    n, shorter = last(1), last(1, -1)
    listed = [(0, 4, n), (1, 4, shorter), (1, t + 4, shorter), (2, 4, shorter), (3, 9, n), (3, 5 + t + 4, shorter)]
    listed += [
        (4, 1, last(4)),
        (5, 4, n),
        (5, t + 4, n),
        (5, 2 * t + 4, n),
        (6, 4, n),
        (6, t + 5, n),
        (7, 4, n),
        (8, 4, n),
    ]
    return tuple(Patch(call, offset, formula) for call, offset, formula in listed)


class Device:
    """A session that has the calls, the node as number 7, and a tensor in storage 1."""

    def __init__(self, *changed: Patch) -> None:
        self.session = DeviceSession()
        for name, key in ENTRIES:
            self.session.define_operator(name, key)
        node = TraceStep(
            None, CODE, patches() + changed, ((0, 0, 1),), (1, 3, 4, 5), integer(3), (), False, (1, 6),
        )  # fmt: skip
        self.session.ahead.define_step(7, node)
        self.base = 100

    def put(self, values: Sequence[float]) -> None:
        """Another tensor in storage 1."""
        self.session.free([1])
        first = len(self.session.operators)
        self.session.define_operator("edge::alloc", complete(4 * len(values)))
        upload = tensor(0, len(values)) + b"P" + struct.pack("<BBq", FLOAT, 1, len(values))
        self.session.define_operator("edge::upload", upload)
        self.session.define_segment(first, struct.pack("<3I", first, first + 1, 0))
        self.session.run(SegmentStep(first, 1, [], [], b"", [floats(*values)]))

    def run(self, size: int) -> Any:
        """Run the node for ``size``; its outcome, or None if it could not be run."""
        self.base += 100
        graph = TraceGraph([(7, [])], [((), 0)], self.base, 1, [(size,)])
        self.session.ahead.take_graph(graph)
        ran = list(self.session.ahead.run(graph, None))
        return ran[0][2] if ran else None

    @property
    def compiled(self) -> bool:
        return self.session.ahead._programs.get(7) is not None


def expected(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    y = x * 3
    return y * y, torch.relu(y[1:] + y[:-1])


def test_every_size_gives_what_eager_execution_gives() -> None:
    device = Device()
    for turn, size in enumerate((4, 7, 3, 12, 7, 2)):
        x = torch.randn(size, generator=torch.Generator().manual_seed(turn))
        device.put(x.tolist())
        outcome = device.run(size)
        squares, expected_squares = expected(x)
        assert torch.equal(outcome.tensor, squares)
        assert device.compiled
        assert outcome.grown == 5
        squares_number = device.base + 1
        assert set(device.session.buffers) == {1, squares_number}
        assert torch.equal(
            torch.empty(0).set_(device.session.buffers[squares_number].storage)[: size - 1], expected_squares
        )
        # what the client is told: a new storage each, of the size that it has this time
        ((what, described),) = outcome.described[1]
        assert (what, described[0], described[4], described[5]) == ("t", 0, [size - 1], [1])
        ((what, described),) = outcome.described[6]
        assert (what, described[0], described[4]) == ("t", 0, [size])
        device.session.settle_speculation(0)  # the client did something else
        assert set(device.session.buffers) == {1}


def test_what_it_does_in_place_is_undone_unless_the_client_did_it_too() -> None:
    device = Device()
    device.put([1.0, -2.0, 3.0])
    x = torch.empty(0).set_(device.session.buffers[1].storage)
    for accepted, expected_values in ((0, [1, -2, 3]), (0, [1, -2, 3]), (1, [1, 0, 3])):
        device.run(3)
        assert x.tolist() == [1, 0, 3]
        device.session.settle_speculation(accepted)
        assert x.tolist() == expected_values


@pytest.mark.parametrize("size", [9, 0, -3])
def test_a_size_that_does_not_fit_ends_the_run_and_leaves_nothing(size: int) -> None:
    device = Device()
    device.put([1.0, 2.0, 3.0, 4.0])
    assert device.run(4) is not None
    device.session.settle_speculation(1)
    device.session.free([device.base + 1])
    assert device.run(size) is None
    device.session.settle_speculation(0)
    assert set(device.session.buffers) == {1}
    assert device.run(4) is not None


def test_a_formula_may_not_reach_outside_the_integers_of_a_call() -> None:
    device = Device(Patch(2, 0, last(1)))
    device.put([1.0, 2.0, 3.0])
    assert device.run(3) is None
    assert not device.compiled


#: y = x * 3; relu_(x) in place; read y, all of the same size every time; or the last call's results are wanted.
SEGMENT = (0, 0, 7, 0, 8, 1)
SEGMENT_DESCRIBED = (7, 0, 0, 0)


class Static(Device):
    """The same session with a segment as node 3, in which no integer varies."""

    def __init__(self, code: Sequence[int], describe: bool, dead: Tuple[int, ...]) -> None:
        super().__init__()
        self.session.define_segment(5, struct.pack(f"<{len(code)}I", *code))
        self.session.ahead.define_step(3, TraceStep(5, (), (), ((0, 0, 1),), dead, integer(3), (), describe))

    def infer(self) -> Any:
        self.base += 100
        graph = TraceGraph([(3, [])], [((), 0)], self.base, 1)
        self.session.ahead.take_graph(graph)
        (item,) = self.session.ahead.run(graph, None)
        return item[2]

    @property
    def compiled(self) -> bool:
        return self.session.ahead._programs.get(3) is not None


def test_a_short_segment_is_compiled_too_and_undone() -> None:
    device = Static(SEGMENT, False, (1,))
    device.put([1.0, -2.0, 3.0, -4.0, 5.0])
    x = torch.empty(0).set_(device.session.buffers[1].storage)
    for turn in range(4):
        assert device.compiled == (turn > 0)
        outcome = device.infer()
        assert outcome.tensor.tolist() == [3, -6, 9, -12, 15]
        assert x.tolist() == [1, 0, 3, 0, 5]
        assert set(device.session.buffers) == {1}
        device.session.settle_speculation(0)
        assert x.tolist() == [1, -2, 3, -4, 5]


def test_a_short_segment_returns_results_of_its_last_call() -> None:
    device = Static(SEGMENT_DESCRIBED, True, ())
    results: List[Any] = []
    for _ in range(3):
        device.put([1.0, -2.0, 3.0, -4.0, 5.0])
        results.append(device.infer().results)
        expected_squares = torch.empty(0).set_(device.session.buffers[device.base].storage)
        assert expected_squares.tolist() == [3, 0, 9, 0, 15]
        device.session.settle_speculation(1)
    assert device.compiled
    assert results[0] == results[1] == results[2] == [["t", [0, 0, FLOAT, 0, [5], [1], 0, 20]]]


def test_a_storage_that_shrank_is_not_looked_at_beyond_its_end() -> None:
    session = DeviceSession()
    for name, key in (
        ("edge::alloc", complete(20)),
        ("edge::download", tensor(0, 5)),
        ("edge::resize", tensor(0, 5) + complete(8)),
    ):
        session.define_operator(name, key)
    for number, code in enumerate(((0,), (1, 0), (2, 0))):
        session.define_segment(number, struct.pack(f"<{len(code)}I", *code))
    session.run(SegmentStep(0, 1, [], [], b"", []))
    for _ in range(3):  # looked at, and compiled
        session.run(SegmentStep(1, 2, [(0, 1)], [], b"", []))
    session.run(SegmentStep(2, 2, [(0, 1)], [], b"", []))
    assert session.allocated == 8
    with pytest.raises(BadInput, match="beyond its storage"):
        session.run(SegmentStep(1, 2, [(0, 1)], [], b"", []))


def test_a_number_of_the_host_that_is_a_tensor_is_one_every_time() -> None:
    """``mask[index] = True`` gets a tensor of the host, of no dimension."""
    device = Device()
    numbers = [len(ENTRIES), len(ENTRIES) + 1]
    flag = b"Wb" + struct.pack("<BB", DTYPE_NUMBERS[torch.bool], 0)
    mask = b"T" + struct.pack("<BBBqqqqB", DTYPE_NUMBERS[torch.bool], 0, 1, N, 1, 0, N, 0)
    indices = b"T" + struct.pack("<BBBqqqqB", DTYPE_NUMBERS[torch.int64], 0, 1, 2, 1, 0, 16, 1)
    device.session.define_operator("aten::index_put_", mask + b"L" + struct.pack("<I", 1) + indices + flag + b"B\0")
    device.session.define_operator("edge::download", mask)
    device.session.buffers[1] = StorageBuffer(torch.zeros(N, dtype=torch.bool).untyped_storage())
    device.session.buffers[2] = StorageBuffer(torch.tensor([3, 1]).untyped_storage())
    offset = len(mask) + 5 + 4
    node = TraceStep(
        None, (numbers[0], 0, 1, numbers[1], 0), (Patch(0, offset, last(1)),), ((0, 0, 1), (1, 0, 2)), (),
        struct.pack("<?15x", True), (), False,
    )  # fmt: skip
    device.session.ahead.define_step(7, node)
    for size in (2, 1, 2, 1):
        outcome = device.run(size)
        assert device.compiled
        assert outcome.tensor.tolist() == [False, size == 2, False, True, False]
        device.session.settle_speculation(0)
    (put, _) = device.session.ahead._programs[7].code.instructions
    assert put.how == KERNEL
