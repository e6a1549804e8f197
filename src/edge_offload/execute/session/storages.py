"""Storages of a program on the device, by number; random generators, undo logs; and the execution of one call."""

from __future__ import annotations

import mmap
import struct
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError
from edge_offload.execute.session.cuda_driver import Captures, captures_of
from edge_offload.execute.session.generators import Generators
from edge_offload.execute.session.limits import SessionLimits
from edge_offload.execute.session.results import assumed_layouts, disagreement_error, failed_call, result_of
from edge_offload.execute.session.undo import Undo
from edge_offload.ir.operators import HostNumber, HostTensor, Symbol, View
from edge_offload.ir.trace.calls import (
    ALLOC,
    DOWNLOAD,
    NEW,
    RESIZE,
    RESTORE,
    STATE,
    UPLOAD,
    BoundOperator,
    Buffer,
    host_copy,
    host_number,
    host_tensor,
)
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.storage import AssumedLayout, StorageBuffer, layout_of


class Storages:
    """The storages of one client on ``device``, and the reference executor of a single call.

    Args:
        running: memory in which it leaves the name of the operator that is running, which is read after a crash.

    Attributes:
        buffers: storages by number; ``allocated``: their bytes.
        leaving: numbers of storages to be freed when there is time.
        unused: numbers of storages that may be freed at once where there is no room.
        returned: bytes that the answer under way brings back so far.
        disagreed: operators whose results lie otherwise than the robot has worked out, which has to hear of it.
        graphs: captures of steps, where the device is a GPU.
    """

    def __init__(
        self, device: Union[str, torch.device] = "cpu", limits: Optional[SessionLimits] = None,
        running: Optional[mmap.mmap] = None,
    ) -> None:  # fmt: skip
        self.device = torch.device(device)
        self.limits = limits or SessionLimits()
        self.running = running
        self.buffers: Dict[int, StorageBuffer] = {}
        self.allocated = 0
        self.leaving: Sequence[int] = []
        self.unused: Callable[[], Sequence[int]] = tuple
        self.returned = 0
        self.disagreed: List[str] = []
        self.graphs: Optional[Captures] = captures_of(self.device, self.limits.storage_bytes)
        self._padded: Dict[str, bytes] = {}
        self._generators = Generators(self.device)
        self._journal: List[Undo] = []

    # -- storages

    def buffer_of(self, number: int) -> StorageBuffer:
        """The buffer of a storage by number."""
        buffer = self.buffers.get(number)
        if buffer is None:
            raise BadInput(
                f"storage {number} does not exist: the call that should have made it failed, or it was freed"
            )
        return buffer

    def store_buffer(self, number: int, buffer: StorageBuffer, undo: Optional[Undo]) -> None:
        """Put a buffer under a number."""
        if number in self.buffers or len(self.buffers) >= self.limits.storages:
            raise ProtocolError(f"storage {number} exists already, or the session holds too many")
        self.buffers[number] = buffer
        self.allocated += buffer.nbytes
        if undo is not None:
            undo.created.append(number)

    def check_room(self, size: int) -> None:
        """Raise OutOfMemory if ``size`` bytes more are too many, though all is freed that may be by now."""
        self.make_room(size)
        self.limits.check_room(self.allocated, size)

    def make_room(self, size: int) -> None:
        """Free what may be freed by now, if ``size`` bytes more do not fit."""
        if self.allocated + size > self.limits.storage_bytes:
            self.free(self.unused())

    def read_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copies ``tensor`` to the host, within the limit of the answer."""
        self.bring_back(tensor.numel() * tensor.element_size())
        return host_copy(tensor)

    def bring_back(self, size: int) -> None:
        """The answer under way gets ``size`` bytes more, or BadInput is raised."""
        self.limits.check_answer(self.returned + size)
        self.returned += size

    def free_leaving(self) -> None:
        """Frees what is ``leaving``: nobody waits for that, so it is done when the answer has gone."""
        leaving, self.leaving = self.leaving, []
        self.free(leaving)

    def do_idle_work(self) -> None:
        """Do what nobody waits for: free what is ``leaving``, capture graphs."""
        self.free_leaving()
        if self.graphs is not None:
            self.graphs.run_pending()

    def free(self, storages: Sequence[int]) -> None:
        """Forget storages; unknown numbers are ignored (they may have been undone)."""
        for number in storages:
            buffer = self.buffers.pop(number, None)
            if buffer is not None:
                self.allocated -= buffer.nbytes

    # -- speculation

    def journal_step(self, written: Sequence[StorageBuffer], random: bool) -> Undo:
        """Remember how to undo the step that comes next, which writes to these storages, and perhaps draws numbers."""
        undo = Undo()
        self._journal.append(undo)
        for buffer in written:
            undo.save_bytes(buffer)
        if random:
            undo.generators = self._generators.read_states()
        return undo

    def settle_speculation(self, accepted: int) -> None:
        """The client did the first ``accepted`` of the outstanding speculative steps: undo the others."""
        if not 0 <= accepted <= len(self._journal):
            raise ProtocolError(f"{accepted} of {len(self._journal)} speculative steps cannot be accepted")
        for undo in reversed(self._journal[accepted:]):
            undo.restore_bytes()
            self.free(undo.created)
            self._generators.restore_states(undo.generators)
        self._journal.clear()

    # -- one call

    def note_call(self, operator: BoundOperator) -> None:
        """Leave the name of the call that is about to run where it is read after a crash."""
        if self.running is not None:
            self.note_name(operator.name)

    def note_name(self, name: str) -> None:
        """Leave ``name`` where it is read after a crash."""
        memory = self.running
        if memory is None:
            return
        padded = self._padded.get(name)
        if padded is None:
            size = len(memory)
            padded = self._padded[name] = name.encode()[:size].ljust(size, b"\0")
        memory[:] = padded

    def run_call(
        self,
        operator: BoundOperator,
        buffers: List[StorageBuffer],
        numbers: bytes,
        hosts: List[Buffer],
        outcome: StepOutcome,
        describe: bool,
    ) -> Tuple[List[StorageBuffer], StepOutcome]:
        """Runs one call; returns its new storages and its outcome."""
        self.note_call(operator)
        if operator.refused is not None:
            raise operator.refused
        if operator.overload is None:
            try:
                return self._run_special(operator, buffers, numbers, hosts, outcome)
            except EdgeOffloadError:
                raise
            except (RuntimeError, MemoryError) as error:
                raise failed_call(operator.name, error) from None
        tensors = [buffers[view.reference].view(view.layout) for view in operator.views]
        assumed = any(buffer.assumed is not None for buffer in buffers)
        if assumed:  # of those that lie otherwise a view may have had one laid out
            tensors = [buffers[view.reference].view(view.layout) for view in operator.views]
        lay = [layout_of(tensor) if assumed else view.layout for tensor, view in zip(tensors, operator.views)]
        arguments = list(operator.arguments)
        for position, hole in operator.direct:
            arguments[position] = self._operand_of(hole, tensors, numbers, hosts)
        for position, items in operator.nested:
            arguments[position] = self._operand_of(items, tensors, numbers, hosts)
        try:
            if operator.keywords:
                named = dict(zip(operator.keywords, arguments[operator.positional :]))
                returned = operator.kernel(*arguments[: operator.positional], **named)
            else:
                returned = operator.kernel(*arguments)
        except Exception as error:
            raise failed_call(operator.name, error) from None
        returns = returned if isinstance(returned, tuple) else (returned,) if returned is not None else ()
        new: List[StorageBuffer] = []
        if operator.results is not None and not describe and operator.fixed and not assumed:
            for (_, previous), value in zip(operator.results, returns):
                for result, tensor in zip(previous, value if isinstance(value, (list, tuple)) else (value,)):
                    if result.kind == NEW:
                        new.append(StorageBuffer(tensor=tensor))
            return new, outcome
        described: List[Any] = []
        operator.results = []
        operator.fixed = True
        reports = describe or operator.claimed is not None
        for value in returns:
            if isinstance(value, torch.Tensor) or value is None:
                result = result_of(operator, value, tensors, buffers, new, lay)
                operator.results.append(("t", [result]))
                if reports:
                    described.append(["t", result.to_wire()])
            elif isinstance(value, (list, tuple)):
                results = [result_of(operator, item, tensors, buffers, new, lay) for item in value]
                operator.results.append(("l", results))
                if reports:
                    described.append(["l", [result.to_wire() for result in results]])
            else:
                operator.results.append(("v", []))
                described.append(["v", value])
        if assumed:
            operator.results = None  # it is compared again where its operands lie as the robot supposes
        if operator.claimed is not None and operator.claimed != described:
            self._assume_layouts(operator, described, new, assumed)
            described = operator.claimed
        return new, StepOutcome(outcome.tensor, described) if describe else outcome

    def _assume_layouts(
        self, operator: BoundOperator, described: List[Any], new: List[StorageBuffer], derived: bool
    ) -> None:
        """Go on with results that lie otherwise than the robot has worked out, which hears of it with the answer.

        It does not where they may lie so because operands do (``derived``).

        Raises:
            Disagreement: they differ in more than that.
        """
        operator.results = None  # the next time it is compared again
        layouts = assumed_layouts(operator.claimed or [], described)
        if layouts is None:
            raise disagreement_error(operator, described)
        for number, layout, nbytes in layouts:
            self.limits.check_room(self.allocated, nbytes)
            new[number].assume_layout(AssumedLayout(layout, nbytes, new[number].tensor))
        if not derived:
            self.disagreed.append(operator.name)

    def _run_special(
        self,
        operator: BoundOperator,
        buffers: List[StorageBuffer],
        numbers: bytes,
        hosts: List[Buffer],
        outcome: StepOutcome,
    ) -> Tuple[List[StorageBuffer], StepOutcome]:
        arguments = operator.operator.args
        size = arguments[-1] if isinstance(arguments[-1], int) else 0
        if operator.name == ALLOC:
            self.check_room(size)
            return [StorageBuffer(torch.UntypedStorage(size, device=self.device))], outcome
        if operator.name == RESIZE:
            self.check_room(size)
            self.allocated += size - buffers[0].nbytes
            buffers[0].resize(size)
        elif operator.name == UPLOAD:
            buffers[0].view(operator.views[0].layout).copy_(host_tensor(hosts, operator.hosts[0]))
        elif operator.name == DOWNLOAD:
            outcome = StepOutcome(self.read_tensor(buffers[0].view(operator.views[0].layout)), outcome.results)
        else:
            generator = self._generators.get_generator(int(arguments[0]))  # type: ignore[arg-type]
            if operator.name == STATE:
                outcome = StepOutcome(generator.get_state(), outcome.results)
            elif operator.name == RESTORE:
                generator.set_state(host_tensor(hosts, operator.hosts[0]).clone())
            else:
                generator.manual_seed(struct.unpack_from("<Q", numbers)[0])
        return [], outcome

    def _operand_of(self, leaf: Any, tensors: List[torch.Tensor], numbers: bytes, hosts: List[Buffer]) -> Any:
        """Value that a kernel gets in place of a leaf of its arguments."""
        if isinstance(leaf, View):
            return tensors[leaf.number]
        if isinstance(leaf, HostNumber):
            return host_number(numbers[16 * leaf.number : 16 * leaf.number + 8], leaf)
        if isinstance(leaf, HostTensor):
            return host_tensor(hosts[leaf.number :], leaf).clone()
        if isinstance(leaf, Symbol):
            return self._generators.get_generator(int(leaf.name))
        if isinstance(leaf, list):
            return [self._operand_of(inner, tensors, numbers, hosts) for inner in leaf]
        return leaf
