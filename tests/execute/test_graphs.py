"""Steps as CUDA graphs, on emulated graphs: what they return, keep, write and undo stays what it was call by call."""

from __future__ import annotations

import contextlib
import gc
import json
import pathlib
import sys
from typing import Any, Dict, List, Sequence

import pytest
import torch

from edge_offload.execute.session import cuda_driver
from edge_offload.execute.session.cuda_driver import Captures, CudaDriver, NoGraph, captures_of
from edge_offload.execute.session.graphs import EAGER_RUNS, MAX_CAPTURES, TRIALS
from edge_offload.execute.session.native_runner import library
from edge_offload.native import libraries
from tests.execute.emulated_graphs import EmulatedDriver, EmulatedGraph
from tests.execute.native_runner import native_runner
from tests.execute.test_compiled_segments import (
    ADD_,
    ALLOC,
    DOWNLOAD,
    LIVE,
    MUL,
    NETWORK,
    RANDOM_,
    RELU_,
    SCALE,
    UPLOAD,
    Device,
    expected,
    floats,
    integer,
    tensor,
)
from tests.programs.test_programs import PROGRAMS, run

DEAD = [0, 2, 3, 4, 5, 6]
WEIGHT = [1.5, -2.0, 3.0, 0.25]
#: Runs until a graph has taken over: the step is compiled on the second, counted, captured behind it, and compared.
UNTIL_IN_FORCE = 1 + EAGER_RUNS + TRIALS
FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True, params=["python", "native"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager runs in pure Python, and in C++."""
    monkeypatch.setattr(library, "module", None if request.param == "python" else native_runner())


class Graphs:
    """A session whose steps become graphs."""

    def __init__(self, *refuse: str) -> None:
        self.device = Device()
        self.driver = EmulatedDriver(*refuse)
        self.captures = Captures(self.driver, 1 << 30)
        self.device.session.graphs = self.captures
        self.base = 0

    def run(self, number: int, x: Sequence[float], live: Any = LIVE, dead: Any = DEAD, numbers: bytes = integer(3),
            speculative: bool = False) -> Any:  # fmt: skip
        self.base += 10
        result = self.device.run(number, self.base, live, dead, numbers, [floats(*x)], speculative)
        self.device.session.do_idle_work()
        return result

    def run_network(self) -> None:
        """Run NETWORK often enough that a graph would take over; every result is right."""
        self.device.weight(1, *WEIGHT)
        self.device.define(0, *NETWORK)
        for turn in range(12):
            x = [turn - 2.0, turn * 0.3, -turn, 7]
            assert torch.equal(self.run(0, x), expected(x, WEIGHT, 3))


@pytest.fixture
def graphs() -> Graphs:
    made = Graphs()
    made.device.weight(1, *WEIGHT)
    made.device.define(0, *NETWORK)
    return made


def test_a_step_on_the_same_addresses_becomes_a_graph_that_returns_the_same(graphs: Graphs) -> None:
    for turn in range(12):
        x = [turn - 2.0, turn * 0.3, -turn, 7]
        assert torch.equal(graphs.run(0, x), expected(x, WEIGHT, 3))
        assert graphs.captures.replayed == max(0, turn + 1 - UNTIL_IN_FORCE)
        assert sorted(graphs.device.session.buffers) == [1]
    assert graphs.captures.captured == 1
    assert not graphs.captures.refused


def test_what_is_read_belongs_to_its_reader(graphs: Graphs) -> None:
    """The buffer that a graph reads to is written again by its next run."""
    results = [(x, graphs.run(0, x)) for x in ([turn, 1.0, -turn, 2.0] for turn in range(10))]
    assert all(torch.equal(result, expected(x, WEIGHT, 3)) for x, result in results)


def test_what_a_step_leaves_is_not_written_by_its_next_run(graphs: Graphs) -> None:
    dead = [0, 2, 4, 5, 6]  # z = y * number is kept
    for turn in range(9):
        graphs.run(0, [turn, 1.0, -turn, 2.0], dead=dead)
    buffers = graphs.device.session.buffers
    outputs = [buffers[10 * (turn + 1) + 2] for turn in range(9)]  # the third storage of its step
    assert graphs.captures.replayed > 0
    for turn, buffer in enumerate(outputs):
        x = [turn, 1.0, -turn, 2.0]
        assert torch.equal(buffer.view(layout()), expected(x, WEIGHT, 3)[2:])
    total = sum(buffer.storage.nbytes() for buffer in buffers.values())
    assert graphs.device.session.allocated == total


def layout() -> Any:
    from edge_offload.ir.operators import Layout

    return Layout(6, 0, (4,), (1,), 0)


def test_weights_in_another_place_are_used(graphs: Graphs) -> None:
    for turn in range(8):
        graphs.run(0, [turn, 1, 2, 3])
    replayed = graphs.captures.replayed
    assert replayed
    former = graphs.device.session.buffers[1]  # so that its memory is not given out again
    graphs.device.session.free([1])
    graphs.device.weight(1, 5.0, 6.0, 7.0, 8.0)
    assert torch.equal(graphs.run(0, [1, 2, 3, 4]), expected([1, 2, 3, 4], [5.0, 6.0, 7.0, 8.0], 3))
    assert graphs.captures.replayed == replayed
    assert former is not graphs.device.session.buffers[1]


def test_a_weight_that_is_written_over_in_place_is_seen(graphs: Graphs) -> None:
    for turn in range(8):
        graphs.run(0, [turn, 1, 2, 3])
    with torch.inference_mode():
        graphs.device.session.buffers[1].view(layout()).copy_(torch.tensor([1.0, 0.0, -1.0, 2.0]))
    replayed = graphs.captures.replayed
    assert torch.equal(graphs.run(0, [1, 2, 3, 4]), expected([1, 2, 3, 4], [1.0, 0.0, -1.0, 2.0], 3))
    assert graphs.captures.replayed == replayed + 1


def test_addresses_that_change_repeatedly_end_the_captures(graphs: Graphs) -> None:
    alive: List[Any] = []
    for turn in range(4 * UNTIL_IN_FORCE * MAX_CAPTURES):
        if turn % UNTIL_IN_FORCE == 0:
            alive.append(graphs.device.session.buffers[1])
            graphs.device.session.free([1])
            graphs.device.weight(1, *WEIGHT)
        x = [turn, 1.0, 2.0, 3.0]
        assert torch.equal(graphs.run(0, x), expected(x, WEIGHT, 3))
    assert graphs.captures.captured == MAX_CAPTURES


def test_a_step_that_writes_what_existed_before_is_undone(graphs: Graphs) -> None:
    """Accumulates into storage 1: w = relu_(w + x * w) in place, and is rolled back every other time."""
    device = graphs.device
    device.define(1, ALLOC, UPLOAD, 0, MUL, 0, 1, ADD_, 1, 2, RELU_, 1, SCALE, 1, DOWNLOAD, 3)
    w = torch.tensor(WEIGHT)
    for turn in range(16):
        x = [0.5, 1.0, 0.25, float(turn % 3)]
        after = torch.relu(w + torch.tensor(x) * w)
        assert torch.equal(graphs.run(1, x, dead=[0, 2, 3], speculative=True), after * 3), turn
        accepted = turn % 2 == 0
        device.session.settle_speculation(int(accepted))
        w = after if accepted else w
        assert torch.equal(device.session.buffers[1].view(layout()), w), turn
    assert graphs.captures.replayed > 0


def test_a_step_that_draws_numbers_stays_as_it_is(graphs: Graphs) -> None:
    device = graphs.device
    device.define(1, ALLOC, UPLOAD, 0, MUL, 0, 1, RANDOM_, 2, MUL, 2, 0, MUL, 2, 1, RELU_, 3, DOWNLOAD, 3)
    for turn in range(8):
        graphs.run(1, [turn, 1, 2, 3], dead=[0, 2, 3, 4], numbers=b"")
    assert not graphs.captures.captured


def test_what_cannot_be_captured_runs_behind_the_graph() -> None:
    graphs = Graphs("cat")
    graphs.run_network()
    assert graphs.captures.captured == 1
    assert graphs.captures.replayed > 0


def test_a_step_with_too_little_to_capture_reports_why_once(capfd: pytest.CaptureFixture[str]) -> None:
    graphs = Graphs("relu_")
    graphs.run_network()
    assert not graphs.captures.captured
    stderr = capfd.readouterr().err
    assert stderr.count("runs without a CUDA graph") == 1
    assert "operation not permitted when stream is capturing" in stderr


def test_a_graph_that_differs_is_not_used(capfd: pytest.CaptureFixture[str]) -> None:
    class Wrong(EmulatedGraph):
        def replay(self) -> None:
            super().replay()
            self._calls[-1][3][0].neg_()  # what is copied to the host

    graphs = Graphs()
    graphs.driver.graph = Wrong
    graphs.run_network()
    assert not graphs.captures.replayed
    assert "compared with its calls" in capfd.readouterr().err


def test_graphs_stay_within_their_share_of_the_memory() -> None:
    graphs = Graphs()
    graphs.captures._most_bytes = 1  # the first graph takes more
    graphs.device.weight(1, *WEIGHT)
    graphs.device.define(0, *NETWORK)
    graphs.device.define(1, *NETWORK)
    for turn in range(12):
        for number in (0, 1):
            x = [turn - 2.0, turn * 0.3, -turn, number]
            assert torch.equal(graphs.run(number, x), expected(x, WEIGHT, 3))
    assert graphs.captures.captured == 1
    assert graphs.captures.refused == [
        "a step of 9 operators runs without a CUDA graph: the graphs of the session have their share of memory"
    ]
    graphs.device.session._compiled.clear()  # a program that is over gives its share back
    gc.collect()
    assert not graphs.captures.is_full


def test_a_size_that_depends_on_data_is_computed_behind_the_graph() -> None:
    graphs = Graphs()
    device = graphs.device
    first = len(device.session.operators)
    device.session.define_operator("aten::nonzero", tensor(0))
    device.weight(1, *WEIGHT)
    device.define(2, ALLOC, UPLOAD, 0, MUL, 0, 1, ADD_, 2, 1, RELU_, 2, SCALE, 2, MUL, 3, 2, first, 4)
    from edge_offload.execute.session.session import SegmentStep

    for turn in range(14):
        x = [turn - 2.0, 1.0, -1.0, turn % 2]
        graphs.base += 10
        step = SegmentStep(2, graphs.base, LIVE, [0, 2, 3, 4], integer(3), [floats(*x)], describe=True)
        outcome = device.session.run(step)
        device.session.do_idle_work()
        y = torch.relu(torch.tensor(x) * torch.tensor(WEIGHT) + torch.tensor(WEIGHT))
        want = torch.nonzero(y * 3 * y)
        assert outcome.results is not None
        assert outcome.results[0][1][4] == list(want.shape)
        indices = device.session.buffers[graphs.base + 4].tensor  # the fifth storage of its step
        assert torch.equal(indices, want), turn
    assert graphs.captures.replayed > 0


@pytest.mark.process
@pytest.mark.slow
def test_programs_print_the_same_bits_with_graphs(tmp_path: pathlib.Path) -> None:
    if not libraries.device_is_possible():
        pytest.skip("no C++ compiler: the native device cannot be built")
    libraries.build_device()
    if library.module is None:
        pytest.skip("an executor runs steps in C++ where it can")
    programs = [name for name in PROGRAMS if not name.startswith("two_threads")]
    runner, counts = str(FOLDER.parent / "programs" / "run_programs.py"), tmp_path / "counts.json"
    local: Dict[str, Any] = run([sys.executable, runner, *programs])
    away = run([sys.executable, str(FOLDER / "emulated_graph_sessions.py"), str(counts), runner, *programs])
    for name in programs:
        assert not away[name]["error"], away[name]["error"]
        assert away[name]["output"] == local[name]["output"], name
    facts = json.loads(counts.read_text())
    assert facts["replayed"] > 50, facts
    assert not [text for text in facts["refused"] if "compared with its calls" in text]


def test_a_step_of_which_cuda_makes_no_graph_is_tried_once(capfd: pytest.CaptureFixture[str]) -> None:
    def make_none(calls: Any) -> Any:
        raise NoGraph("CUDA error: operation failed due to a previous error during capture")

    graphs = Graphs()
    graphs.driver.graph = make_none
    graphs.run_network()
    assert not graphs.captures.captured
    assert capfd.readouterr().err.count("previous error during capture") == 1


class Allocator:
    """In the place of ``torch.cuda``, as far as graphs and their pools go: torch's rules, seen on a GPU.

    A pool is gone with its last graph, and refused from then on. A capture that failed leaves its pool in use.
    """

    def __init__(self) -> None:
        self.used: Dict[int, int] = {}
        self.stuck: List[int] = []
        self.made = 0
        allocator = self

        class Graph:
            pool = -1

            def capture_begin(self, pool: int, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                if pool in allocator.stuck:
                    raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
                if allocator.used.get(pool, 1) == 0:
                    raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
                self.pool = pool

            def capture_end(self) -> None:
                allocator.used[self.pool] = allocator.used.get(self.pool, 0) + 1

            def __del__(self) -> None:
                if self.pool in allocator.used:
                    allocator.used[self.pool] -= 1

        self.CUDAGraph = Graph

    def graph_pool_handle(self) -> int:
        self.made += 1
        return self.made

    def Stream(self, device: Any) -> Any:  # noqa: N802 - as in torch.cuda
        return None

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext()

    def synchronize(self, device: Any) -> None:
        pass

    def memory_reserved(self, device: Any) -> int:
        return 0


def test_graphs_share_a_pool_unless_torch_refuses_it() -> None:
    def fail() -> None:
        allocator.stuck.append(allocator.made)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    allocator = Allocator()
    driver = CudaDriver(torch.device("cuda"), allocator)
    graphs = [driver.capture(lambda: None) for _ in range(3)]
    assert len({graph.pool for graph in graphs}) == 1
    with pytest.raises(RuntimeError, match="not permitted"):
        driver.capture(fail)
    graphs.append(driver.capture(lambda: None))
    assert graphs[3].pool != graphs[0].pool, "a capture failed in the first one"
    graphs.append(driver.capture(lambda: None))
    assert graphs[4].pool == graphs[3].pool
    last = graphs[4].pool
    graphs.clear()
    gc.collect()
    assert driver.capture(lambda: None).pool != last, "it went with its last graph"


def test_sessions_of_torch_2_0_use_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their capture fails beside what other threads do on the GPU."""
    monkeypatch.setattr(cuda_driver, "CAPTURES_BESIDE_THREADS", False)
    assert captures_of(torch.device("cuda"), 1) is None
