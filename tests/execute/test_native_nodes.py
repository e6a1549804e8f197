"""The C++ runner of nodes does what the one in Python does, to the bit: results, storages, errors, undoing."""

from __future__ import annotations

import mmap
import pathlib
import struct
from typing import Any, Dict, List, Tuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput, OutOfMemory, ProtocolError, Unsupported
from edge_offload.execute.session.limits import SessionLimits
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.segments import CallFailed, SegmentStep
from edge_offload.ir.trace.trace_graph import Patch, TraceStep
from edge_offload.native.libraries import NODES
from edge_offload.native.loader import Library
from edge_offload_benchmarks.fuzzing.trace_graphs import LONG, MATCHES, Calls, times_matches
from tests.execute.native_runner import native_runner
from tests.execute.test_compiled_segments import FLOAT, WRAPPED, floats, integer


def complete(value: int) -> bytes:
    return b"I" + struct.pack("<q", value)


class Maker(Calls):
    """Writes the calls of a node on vectors, the first of which existed before."""

    def __init__(self) -> None:
        super().__init__([(0, (1, 0), FLOAT)])
        self.numbers = b""

    @property
    def count(self) -> int:
        """New storages."""
        return len(self.values) - 1

    def made(self, dead: Tuple[int, ...], describe: bool = False, requested: Tuple[int, ...] = ()) -> TraceStep:
        return TraceStep(
            None, tuple(self.codes), tuple(self.patches), ((0, 0, 1),), dead, self.numbers, (), describe, requested
        )


def random_node(data: st.DataObject) -> Tuple[Maker, TraceStep]:
    maker = Maker()
    for _ in range(data.draw(st.integers(2, 9))):
        plain = [i for i, (_, _, dtype) in enumerate(maker.values) if dtype == FLOAT]
        first = data.draw(st.sampled_from(plain))
        size = maker.values[first][1]
        what = data.draw(
            st.sampled_from(["mul", "add", "relu_", "add_", "cat", "sort", "alloc", "index", "put", "out"])
        )
        alike = [i for i in plain if maker.values[i][1] == size]
        second = data.draw(st.sampled_from(alike))
        if what == "mul":
            maker.call("aten::mul.Tensor", first, WRAPPED)
            maker.numbers += integer(data.draw(st.integers(-3, 3)))
            maker.add_value(size)
        elif what == "add":
            shorter = (size[0], size[1] - 1)
            maker.call("aten::add.Tensor", (first, shorter), (second, shorter), complete(data.draw(st.integers(-2, 2))))
            maker.add_value(shorter)
        elif what == "relu_":
            maker.call("aten::relu_", first)
        elif what == "out":  # what may resize an operand is left to the session
            maker.call("aten::add.out", first, second, complete(1), data.draw(st.sampled_from(alike)))
        elif what == "add_":
            maker.call("aten::add_.Tensor", first, second, complete(1))
        elif what == "cat":
            other = data.draw(st.sampled_from(plain))
            more = maker.values[other][1]
            maker.call("aten::cat", [first, other], complete(0))
            maker.add_value((size[0] + more[0], size[1] + more[1]))
        elif what == "sort":
            maker.call("aten::sort", first, complete(-1), b"B\0")
            maker.add_value(size)
            maker.add_value(size, LONG)
        elif what == "alloc":
            call = len(maker.entries)
            maker.call("edge::alloc", complete(4 * (size[0] * MATCHES + size[1])))
            maker.patches.append(Patch(call, 1, times_matches(4 * size[0], 4 * size[1])))
            maker.add_value(size)
            maker.call("aten::zero_", len(maker.values) - 1)
        else:
            indices = [i for i, (_, s, dtype) in enumerate(maker.values) if dtype == LONG and s == size]
            if not indices:
                continue
            index = data.draw(st.sampled_from(indices))
            if what == "index" or first == second:  # torch does not write a tensor to itself
                maker.call("aten::index.Tensor", first, [index])
                maker.add_value(size)
            else:
                maker.call("aten::index_put_", first, [index], second, b"B\0")
    if data.draw(st.booleans()):
        maker.call("edge::download", data.draw(st.integers(0, maker.count)))
    elif data.draw(st.booleans()):  # a result that is no tensor: the session runs the call
        maker.call("aten::equal", 0, 0)
    if not maker.entries:
        maker.call("aten::relu_", 0)
    dead = tuple(sorted(data.draw(st.sets(st.integers(1, maker.count))))) if maker.count else ()
    made = [
        i for i, (name, *_) in enumerate(maker.entries) if name in ("aten::mul.Tensor", "aten::sort", "aten::relu_")
    ]
    requested = tuple(sorted(data.draw(st.sets(st.sampled_from(made))))) if made else ()
    final = maker.entries[-1][0]
    describe = not final.startswith("edge::") and data.draw(st.booleans())
    return maker, maker.made(dead, describe, tuple(item for item in requested if item != len(maker.entries) - 1))


class Device:
    """A session with a node, and a vector in storage 1; nodes run in C++ if it is ``native``."""

    def __init__(self, maker: Maker, node: TraceStep, native: bool, **limits: int) -> None:
        self.native = native
        self.memory = mmap.mmap(-1, 32)
        self.session = DeviceSession("cpu", SessionLimits(**limits), self.memory)
        for item in maker.entries:
            self.session.define_operator(*item)
        self.session.ahead.define_step(7, node)
        self.base = 100

    def put(self, values: List[float]) -> None:
        self.session.free([1])
        first = len(self.session.operators)
        size = len(values)
        self.session.define_operator("edge::alloc", complete(4 * size))
        key = b"T" + struct.pack("<BBBqqqqB", FLOAT, 0, 1, size, 1, 0, 4 * size, 0)
        self.session.define_operator("edge::upload", key + b"P" + struct.pack("<BBq", FLOAT, 1, size))
        self.session.define_segment(first, struct.pack("<3I", first, first + 1, 0))
        self.session.run(SegmentStep(first, 1, [], [], b"", [floats(*values)]))

    def run(self, size: int) -> Any:
        """The outcome as plain values, or the error; and the state of the session."""
        self.base += 100
        library.module = native_runner() if self.native else None
        try:
            outcome, last = self.session.ahead._run_step(7, self.base, 1, [(size,)], None)
        except (CallFailed, BadInput, OutOfMemory, ProtocolError, Unsupported) as error:
            if isinstance(error, CallFailed):
                return (error.operator, error.kind), error.text, self.state()
            return "refused", str(error), self.state()
        read = outcome.tensor.tolist() if outcome.tensor is not None else None
        return read, outcome.results, outcome.described, outcome.grown, last, self.state()

    def state(self) -> Tuple[Dict[int, bytes], int]:
        """All bytes that it holds, by storage counted from the step's first, and how many."""
        contents = {}
        for number in self.session.buffers:
            storage = self.session.buffer_of(number).storage
            contents[number if number == 1 else number - self.base] = bytes(storage.tolist())
        return contents, self.session.allocated

    @property
    def runs_native(self) -> bool:
        program = self.session.ahead._programs[7]
        return program is not None and program._native is not None


def pair(maker: Maker, node: TraceStep, **limits: int) -> Tuple[Device, Device]:
    return Device(maker, node, False, **limits), Device(maker, node, True, **limits)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "module", None)
    native_runner()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_node_gives_what_the_one_in_python_gives(data: st.DataObject) -> None:
    maker, node = random_node(data)
    python, native = pair(maker, node)
    sizes = data.draw(st.lists(st.integers(3, 9), min_size=2, max_size=4))
    for turn, size in enumerate([5, *sizes]):
        x = torch.randn(max(size, 1), generator=torch.Generator().manual_seed(turn)).tolist()
        python.put(x)
        native.put(x)
        assert python.run(size) == native.run(size)
        assert not python.runs_native
        assert native.runs_native or not turn
        accepted = data.draw(st.integers(0, 1))
        for device in (python, native):
            device.session.settle_speculation(accepted)
        assert python.state() == native.state()
        for device in (python, native):
            device.session.free([number for number in device.session.buffers if number != 1])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_does_not_fit_ends_both_in_the_same_state(data: st.DataObject) -> None:
    """The vector is shorter than the node takes it for, sizes are nothing, or below nothing, or beyond all bounds."""
    maker, node = random_node(data)
    python, native = pair(maker, node)
    for device in (python, native):
        device.put([1.0, -2.0, 3.0, -4.0, 5.0])
        device.run(5)
        device.session.settle_speculation(0)
    for size in data.draw(st.lists(st.sampled_from([6, 40, 1, 0, -3, 1 << 40, 1 << 61]), min_size=1, max_size=3)):
        first, second = python.run(size), native.run(size)
        assert first[0][:1] == second[0][:1] if isinstance(first[0], tuple) else first == second
        assert first[-1] == second[-1]
        for device in (python, native):
            device.session.settle_speculation(0)
        assert python.state() == native.state()
    assert python.run(5) == native.run(5)


def test_an_operator_that_raises_is_named_and_earlier_calls_can_be_undone() -> None:
    maker = Maker()
    maker.call("aten::relu_", 0)
    maker.call("aten::mul.Tensor", 0, WRAPPED)
    maker.numbers = integer(3)
    maker.add_value((1, 0))
    maker.call("aten::add.Tensor", (0, (1, 0)), (1, (0, 5)), complete(1))  # of two sizes, unless n is 5
    maker.add_value((1, 0))
    python, native = pair(maker, maker.made(()))
    for device in (python, native):
        device.put([1.0, -2.0, 3.0, -4.0, 5.0, -6.0])
        device.run(5)
        device.session.settle_speculation(0)
    first, second = python.run(6), native.run(6)
    assert first == second
    assert first[0] == ("aten::add.Tensor", "RuntimeError")
    assert "must match the size" in first[1]
    assert set(native.session.buffers) == {1, native.base}
    for device in (python, native):
        assert bytes(device.memory).rstrip(b"\0") == b"aten::add.Tensor"
        device.session.settle_speculation(0)
        assert torch.empty(0).set_(device.session.buffer_of(1).storage).tolist() == [1, -2, 3, -4, 5, -6]
        assert set(device.session.buffers) == {1}


@pytest.mark.parametrize("limits", [{"storage_bytes": 100}, {"storages": 2}])
def test_a_session_over_its_limit_is_notified(limits: Dict[str, int]) -> None:
    maker = Maker()
    maker.call("edge::alloc", complete(4 * MATCHES))
    maker.patches.append(Patch(0, 1, times_matches(4, 0)))
    maker.add_value((1, 0))
    maker.call("edge::alloc", complete(4))
    maker.add_value((0, 1))
    dead = (2,) if "storages" in limits else ()
    python, native = pair(maker, maker.made(dead), **limits)
    for device in (python, native):
        device.put([1.0, 2.0, 3.0])
        device.run(4)
        device.session.settle_speculation(0)
    refused = []
    for device in (python, native):
        if "storages" in limits:
            device.session.limits = SessionLimits(storages=1)
        refused.append(device.run(40))
        device.session.settle_speculation(0)
        assert set(device.session.buffers) == {1}
    assert refused[0][0] == "refused"
    assert refused[0] == refused[1]


def test_a_number_that_is_no_dtype_does_not_reach_an_operator_of_a_node() -> None:
    maker = Maker()
    maker.call("aten::sum", (0, (0, 4)), complete(FLOAT))
    ((_, key, *_),) = maker.entries
    maker.patches.append(Patch(0, len(key) - 8, times_matches(1, 2)))
    maker.add_value((0, 1))
    python, native = pair(maker, maker.made(()))
    for device in (python, native):
        device.put([1.0, -2.0, 3.0, 4.0])
        for size in (4, 4, 5, 4):  # float32, and float64
            device.run(size)
            assert set(device.session.buffers) == {1, device.base}
            device.session.settle_speculation(0)
        for size in (-4, 10, 298, 1 << 40):
            assert device.run(size)[0] == "refused"
            device.session.settle_speculation(0)


def test_a_number_by_keyword_follows_its_formula() -> None:
    maker = Maker()
    maker.call("aten::add.Tensor", (0, (0, 4)), (0, (0, 4)), complete(MATCHES))
    ((_, key, *_),) = maker.entries
    maker.patches.append(Patch(0, len(key) - 8, times_matches(1, 0)))  # alpha
    maker.add_value((0, 4))
    maker.call("edge::download", 1)
    python, native = pair(maker, maker.made((1,)))
    for device in (python, native):
        device.put([1.0, -2.0, 3.0, 4.0])
        for size in (2, 5, 0, -3):
            assert device.run(size)[0] == [value * (1 + size) for value in (1.0, -2.0, 3.0, 4.0)]
            device.session.settle_speculation(0)


def test_one_answer_brings_back_no_more_than_a_session_may_hold() -> None:
    """A tensor may be larger than its storage: its elements lie in the same place."""
    maker = Maker()
    maker.entries.append(("edge::download", b"T" + struct.pack("<BBBqqqqB", FLOAT, 0, 1, 300, 0, 0, 4, 0)))
    maker.codes += [0, 0]
    python, native = pair(maker, maker.made(()), storage_bytes=2500)
    for device in (python, native):
        device.put([2.5])
        for _ in range(3):
            device.session.returned = 0
            assert device.run(1)[0] == [2.5] * 300
            assert device.run(1)[0] == [2.5] * 300
            assert device.run(1)[0] == "refused"
    assert native.runs_native
    assert not python.runs_native


def test_a_library_that_does_not_load_leaves_the_work_to_python(tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "edge_offload_nodes.so"
    broken_library = Library(NODES)
    broken_library._path = broken
    broken_library.look()  # not built yet
    broken.write_bytes(b"no library")
    for _ in range(2):
        broken_library.look()
        assert broken_library.module is None
