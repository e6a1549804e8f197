"""Steps as CUDA graphs: the kernels of a step are launched at once, instead of one by one.

They are the same kernels in the same order, on the same addresses of what existed before, so results have the same
bits. A step is captured when it has run :data:`EAGER_RUNS` times on the same addresses, after an answer has left. Its
graph is compared with its calls on :data:`TRIALS` runs before it takes their place. What a graph cannot hold, such as
the size of a result that depends on data, is run call by call behind it.
"""

from __future__ import annotations

import functools
import struct
import time
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.errors import EdgeOffloadError, Unsupported
from edge_offload.execute.session.cuda_driver import CaptureDriver, Captures, NoGraph
from edge_offload.execute.session.instructions import BY_STORAGES, KERNEL, Instruction, StepCode
from edge_offload.execute.session.interpreter import StepInterpreter
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.results import failed_call
from edge_offload.execute.session.undo import bytes_of
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.storage import StorageBuffer

#: Runs on the same addresses before a step is captured: more than a segment has until replay runs it as a trace step.
EAGER_RUNS = 4
#: Runs on which a graph is compared with its calls.
TRIALS = 2
#: Kernels that a graph has at least: fewer are launched as fast one by one.
LEAST_KERNELS = 4
#: Graphs that one step has at once, and captures of it in all: one whose addresses keep changing runs call by call.
MAX_GRAPHS, MAX_CAPTURES = 2, 4

RunEagerly = Callable[[StepInterpreter, Sequence[int]], StepOutcome]


def capturable_prefix(code: StepCode) -> int:
    """Counts the instructions of a step, from the first on, that one graph may hold; 0: too few kernels."""
    if code.random:
        return 0
    count = 0
    for op in code.instructions:
        last_is_dynamic = op.final and op.how == KERNEL and op.descriptions is not None and _depends_on_data(op)
        if op.how == BY_STORAGES or last_is_dynamic:
            break
        count += 1
    kernels = sum(op.how == KERNEL for op in code.instructions[:count])
    return count if kernels >= LEAST_KERNELS else 0


def _depends_on_data(op: Instruction) -> bool:
    """True if sizes of results are known only when the kernel has run, for which it waits."""
    tags = op.entry.overload.tags  # type: ignore[union-attr]
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


class StepGraphs:
    """Decides when a step runs as a graph.

    Args:
        code: the step.
        captures: of the session.
    """

    def __init__(self, code: StepCode, captures: Captures) -> None:
        self._code = code
        self._captures = captures
        self._prefix = capturable_prefix(code)
        self._graphs: OrderedDict[bytes, StepGraph] = OrderedDict()
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._captured = 0

    def run(self, run: StepInterpreter, live: Sequence[int], run_eagerly: RunEagerly) -> StepOutcome:
        """The outcome of a run of the step.

        Args:
            run: of which nothing has been executed yet.
            live: numbers of the storages that existed before.
            run_eagerly: runs it call by call.
        """
        if not self._prefix:
            return run_eagerly(run, live)
        binding = _binding_of(run, live)
        graph = self._graphs.get(binding)
        if graph is None:
            outcome = run_eagerly(run, live)
            self._count_run(binding, run, live)
            return outcome
        if graph.trials:
            return self._compare_runs(binding, graph, run, live, run_eagerly)
        self._captures.replayed += 1
        with torch.inference_mode():
            graph.run(run, live)
        return run.outcome

    def _count_run(self, binding: bytes, run: StepInterpreter, live: Sequence[int]) -> None:
        """Request a capture if the step has run on these addresses often enough."""
        if self._captured >= MAX_CAPTURES:
            return
        count = self._counts.pop(binding, 0) + 1
        self._counts[binding] = count
        if len(self._counts) > 8:  # address sets of one step
            self._counts.popitem(last=False)
        if count == EAGER_RUNS:
            capture = functools.partial(self._capture_graph, binding, run, list(live))
            run.release_tensors()
            self._captures.request_capture(capture)

    def _capture_graph(self, binding: bytes, run: StepInterpreter, live: Sequence[int]) -> None:
        self._counts.pop(binding, None)
        if binding != _binding_of(run, live):
            return  # a storage was freed, or has moved
        if self._captures.is_full:
            self._captures.report_refusal(
                len(self._code.instructions), "the graphs of the session have their share of memory"
            )
            return
        while self._prefix and self._captured < MAX_CAPTURES:
            self._captured += 1
            try:
                self._graphs[binding] = StepGraph(self._code, self._prefix, run, live, self._captures.driver)
                self._captures.captured += 1
                break
            except NotCapturable as error:
                self._prefix = error.position if error.kernels >= LEAST_KERNELS else 0
                if not self._prefix or self._captured >= MAX_CAPTURES:
                    self._prefix = 0
                    self._captures.report_refusal(len(self._code.instructions), str(error))
        while len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)

    def _compare_runs(
        self, binding: bytes, graph: StepGraph, run: StepInterpreter, live: Sequence[int], run_eagerly: RunEagerly
    ) -> StepOutcome:
        """Run the step call by call and as a graph; the outcome of the calls."""
        numbers = dict(zip((canonical for canonical, _, _ in self._code.live), live))
        buffers = run.storages.buffers
        with torch.inference_mode():
            written = [bytes_of(buffers[numbers[canonical]]) for canonical in self._code.written]
            before = [one.clone() for one in written]
        outcome = run_eagerly(run, live)
        with torch.inference_mode():
            after = [one.clone() for one in written]
            for one, saved in zip(written, before):
                one.copy_(saved)
            trial = ComparisonRun(self._code, run.storages, run.base, run.payloads, run.values, run.uploads, None)
            try:
                graph.run(trial, live)
                wrong = trial.find_difference(outcome) or (
                    "" if _equal_bytes(written, after) else "what it writes differs"
                )
            except EdgeOffloadError as error:
                wrong = str(error)
            for one, saved in zip(written, after):
                one.copy_(saved)
        graph.trials -= 1
        if not wrong and not graph.trials:
            self._captures.report_graph(graph.calls, graph.capture_s)
        if wrong:
            del self._graphs[binding]
            self._prefix = 0
            self._captures.report_refusal(len(self._code.instructions), f"compared with its calls, {wrong}")
        return outcome


class StepGraph:
    """The first ``prefix`` instructions of a step as one graph, on the addresses of what ``live`` names now.

    Attributes:
        trials: runs on which it is still to be compared with its calls.
        calls: how many it holds; ``capture_s``: seconds that their capture took.

    Raises:
        NotCapturable: an instruction cannot be captured.
    """

    def __init__(
        self, code: StepCode, prefix: int, like: StepInterpreter, live: Sequence[int], driver: CaptureDriver
    ) -> None:
        self.trials = TRIALS
        self.calls = prefix
        started_s = time.monotonic()
        self._code = code
        self._driver = driver
        self._tail = code.instructions[prefix:]
        self._name = code.instructions[prefix - 1].entry.name
        capture = StepCapture(code, like.storages, like.base, (), like.values, like.uploads, None, driver)
        capture.bind_storages(live)

        def launch() -> None:
            with torch.inference_mode():
                capture.execute_calls(code.instructions[:prefix])

        try:
            self._graph = driver.capture(launch)
        except NoGraph as error:
            raise NotCapturable(0, 0, error) from None
        except RuntimeError as error:  # as EdgeOffloadError is; what torch raised is its context
            kernels = sum(op.how == KERNEL for op in code.instructions[: capture.position])
            name = code.instructions[max(0, capture.position)].entry.name
            raise NotCapturable(capture.position, kernels, error.__context__ or error, name) from None
        self.capture_s = time.monotonic() - started_s
        self._pinned = {number: capture.pinned[number] for number in capture.uploaded}
        self._outliving = capture.outliving
        self._read = capture.dense
        self._host = None if capture.dense is None else driver.pinned_like(capture.dense)
        self._outcome = capture.outcome
        # what the tail uses: registers that the prefix filled, tensors and storages that it made
        needed, uses = _registers_used(self._tail)
        filled = {item[0]: item for op in code.instructions[:prefix] for item in op.fetched}
        self._registers = [filled[register] for register in needed if register in filled]
        uses |= {canonical for _, canonical, _, _ in self._registers}
        outliving = {canonical for _, canonical, _ in self._outliving}
        existing = {canonical for canonical, _, _ in code.live}
        made = uses - outliving - existing
        self._tail_tensors = {canonical: capture.made[canonical] for canonical in made if canonical in capture.made}
        self._buffers = {c: capture.buffers[c] for c in made if c not in self._tail_tensors and c in capture.buffers}
        self._positions = [
            (position, canonical) for position, (canonical, _, _) in enumerate(code.live)
            if canonical in uses or canonical in code.written
        ]  # fmt: skip

    def run(self, run: StepInterpreter, live: Sequence[int]) -> None:
        """Launch the graph, and what follows it call by call.

        Raises:
            CallFailed, DeviceLost, ProtocolError, BadInput: as :meth:`.Interpreter.execute_calls`.
        """
        run.make_room()
        buffers = run.storages.buffers
        for position, canonical in self._positions:
            run.buffers[canonical] = buffers[live[position]]
        run.save_written()
        run.storages.note_name(self._name)
        outcome = run.outcome
        outcome.results, outcome.described = self._outcome.results, dict(self._outcome.described)
        try:
            if self._pinned:
                self._driver.synchronize()  # the run before has read what lies there
            for number, pinned in self._pinned.items():
                pinned.copy_(run.uploads[number])
            self._graph.replay()
            for ordinal, canonical, buffer in self._outliving:
                copied = run.buffers[canonical] = StorageBuffer(tensor=bytes_of(buffer).clone())
                run.store(ordinal, canonical, copied)
            if self._read is not None and self._host is not None:
                run.bring_back(self._read.nbytes)
                self._host.copy_(self._read, non_blocking=True)
                self._driver.synchronize()
                outcome.tensor = self._host.clone()
        except EdgeOffloadError:
            raise
        except RuntimeError as error:
            raise failed_call(self._name, error) from None
        if self._tail:
            run.made.update(self._tail_tensors)
            run.buffers.update(self._buffers)
            for register, canonical, layout, may_reuse in self._registers:
                run.registers[register] = run.view_of(canonical, layout, may_reuse)
            run.execute_calls(self._tail)


class NotCapturable(Unsupported):
    """An instruction cannot be captured: its ``position``, and how many ``kernels`` stand before it."""

    def __init__(self, position: int, kernels: int, error: BaseException, operator: str = "") -> None:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        super().__init__(f"{operator}: {reason}" if operator else reason)
        self.position = position
        self.kernels = kernels


class StepCapture(StepInterpreter):
    """Issues the instructions of a step while they are captured: nothing is computed, nothing of the session changes.

    Attributes:
        position: of the instruction that is being issued.
        pinned: page-locked buffers for the uploads of the step; ``uploaded``: numbers of those that the graph copies.
        outliving: (ordinal, canonical number, storage in the graph's memory) of each storage that outlives the step.
        dense: what the host reads, in the graph's memory, or None.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments[:-1])
        driver: CaptureDriver = arguments[-1]
        self.position = -1
        self.pinned = [driver.pinned_like(given) for given in self.uploads]  # none may be allocated during a capture
        self.uploaded: Set[int] = set()
        self.outliving: List[Tuple[int, int, StorageBuffer]] = []
        self.dense: Optional[torch.Tensor] = None

    def begin_call(self, op: Instruction) -> None:
        self.position += 1

    def store(self, ordinal: int, canonical: int, buffer: StorageBuffer) -> None:
        self.outliving.append((ordinal, canonical, buffer))

    def read(self, tensor: torch.Tensor) -> None:
        if tensor.is_conj() or tensor.is_neg():
            raise Unsupported("a read of numbers that are conjugated or negated lazily")
        self.dense = tensor.clone(memory_format=torch.contiguous_format)

    def upload(self, tensor: torch.Tensor, number: int) -> None:
        given = self.uploads[number]
        if tensor.dtype != given.dtype or tensor.shape != given.shape:
            raise Unsupported("an upload that is converted")
        pinned = self.pinned[number]
        self.uploaded.add(number)
        if tensor.is_contiguous():
            tensor.copy_(pinned, non_blocking=True)
        else:
            dense = torch.empty(given.shape, dtype=given.dtype, device=tensor.device)
            tensor.copy_(dense.copy_(pinned, non_blocking=True))


class ComparisonRun(StepInterpreter):
    """A run whose storages do not become the session's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._created: Dict[int, StorageBuffer] = {}

    def store(self, ordinal: int, canonical: int, buffer: StorageBuffer) -> None:
        self._created[ordinal] = buffer

    def bring_back(self, size: int) -> None:
        """Counts nothing: the host does not get what is read."""

    def find_difference(self, outcome: StepOutcome) -> str:
        """Describes how it differs from the run that gave ``outcome``; empty: it does not."""
        mine = self.outcome
        reads = [one.tensor for one in (mine, outcome)]
        if (reads[0] is None) != (reads[1] is None) or not _equal_bytes(
            *[[] if one is None else [one] for one in reads]
        ):
            return "what is read differs"
        if mine.results != outcome.results or mine.described != outcome.described:
            return "its results lie otherwise"
        buffers = self.storages.buffers
        created = [buffers.get(self.base + ordinal) for ordinal in self._created]
        if None in created:
            return "it makes other storages"
        pair = [
            [bytes_of(buffer) for buffer in buffers if buffer is not None]
            for buffers in (created, list(self._created.values()))
        ]
        return "" if _equal_bytes(*pair) else "what it leaves differs"


def _equal_bytes(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Compares the bytes of tensors."""
    plain = [[each.contiguous().reshape(-1).view(torch.uint8) for each in several] for several in (one, other)]
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(*plain))


def _binding_of(run: StepInterpreter, live: Sequence[int]) -> bytes:
    """Packs what a graph is bound to: integers, and the addresses and sizes of storages that existed before."""
    values, buffers = run.values, run.storages.buffers
    integers = struct.pack(f"<{len(values)}q", *values)
    if library.module is not None:
        return integers + bytes(library.module.addresses(buffers, live))
    storages = [buffers[number].storage for number in live if number in buffers]
    places = [fact for one in storages for fact in (one.data_ptr(), one.nbytes())]
    return integers + struct.pack(f"<{len(places)}Q", *places) if len(storages) == len(live) else b""


def _registers_used(instructions: Sequence[Instruction]) -> Tuple[Set[int], Set[int]]:
    """Registers that instructions read before they fill them, and storages that they touch, by canonical number."""
    filled: Set[int] = set()
    needed: Set[int] = set()
    touched: Set[int] = set()
    for op in instructions:
        filled |= {register for register, _, _, _ in op.fetched}
        touched |= {canonical for _, canonical, _, _ in op.fetched} | set(op.references)
        read = {register for _, register in op.holes}
        read |= {register for _, several in op.lists for register in several if register >= 0}
        read |= {register for _, _, register in op.descriptions or () if register >= 0}
        needed |= read - filled
    return needed, touched
