"""Torch's kernels on a CPU as one compiled step, as a session runs a recorded program: the same kernels and bits.

What is spared is the walk through the network in Python, and the lock that every other thread of it would wait for.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from edge_offload.errors import EdgeOffloadError, Unsupported
from edge_offload.execute.engines.base import CPU, EXACT, Direct
from edge_offload.execute.engines.recorded.recording import Recording, address_of, record_calls
from edge_offload.execute.session.compiler import compile_segment
from edge_offload.execute.session.limits import SessionLimits
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.calls import BoundOperator
from edge_offload.ir.trace.keys import pack_codes
from edge_offload.ir.trace.segments import SegmentStep
from edge_offload.ir.trace.storage import StorageBuffer, layout_of

#: A network of this process is bounded by its memory alone.
_LIMITS = SessionLimits(storage_bytes=1 << 62)


class CompiledStepsBackend(Direct):
    """Backend that runs torch's kernels as a compiled step."""

    name: str = "eager+steps"
    accuracy: str = EXACT
    distributions: Tuple[str, ...] = ("torch",)
    device: str = CPU
    own_thread: bool = False

    def capture(
        self, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
    ) -> CompiledSteps:
        return CompiledSteps(record_calls(run, inputs))


class CompiledSteps:
    """One recorded inference as a program of a session of its own, whose storages are the network's.

    Raises:
        Unsupported: a call is none that a session runs, or draws random numbers.
    """

    def __init__(self, recording: Recording) -> None:
        # fewer are launched as fast one by one
        if len(recording.calls) < 4:
            raise Unsupported(f"it makes {len(recording.calls)} calls, which are launched as fast one by one")
        self._session = DeviceSession(CPU, _LIMITS)
        self._lock = threading.Lock()
        numbered = _Numbering(recording)
        self._inputs = [(numbered.store(address_of(one)), layout_of(one)) for one in recording.inputs]
        operators: Dict[Tuple[str, bytes], int] = {}
        codes: List[int] = []
        for call in recording.calls:
            number = operators.setdefault((call.name, call.key), len(operators))
            if number == len(self._session.operators):
                self._session.define_operator(call.name, call.key)
            _check_operator(self._session.operators[number])
            codes += [number, *(numbered.refer_to(one) for one in call.operands)]
            numbered.add_made(call.made)
        self._outputs = [(*numbered.place_of(one), layout_of(one)) for one in recording.outputs]
        base = len(numbered.existing)
        segment_number = 0
        step = SegmentStep(
            segment_number, base, list(numbered.live.items()), numbered.unread(recording.outputs),
            b"".join(call.numbers for call in recording.calls), [],
        )  # fmt: skip
        self._base, self._live = base, [number for _, number in step.live]
        for number, tensor in enumerate(numbered.existing):
            self._session.store_buffer(number, StorageBuffer(tensor=tensor), None)
        self._session.define_segment(segment_number, pack_codes(codes))
        self._session.run(step)  # what its calls return is known from here on
        segment = self._session.segments[segment_number]
        program = None if isinstance(segment, EdgeOffloadError) else compile_segment(segment, step)
        if program is None:
            raise Unsupported("a call of it has to be looked at each time")
        self._program = program
        self._passing = [number for number, _ in self._inputs]
        self._passing += [base + number for made, number, _ in self._outputs if made]
        self._session.free(self._passing)

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Outputs for ``inputs``, on the caller's thread."""
        if library.module is None:
            library.look()
        session = self._session
        with self._lock, torch.inference_mode():
            try:
                for (number, layout), tensor in zip(self._inputs, inputs):
                    fits = layout_of(tensor) == layout
                    session.store_buffer(number, StorageBuffer(tensor=tensor if fits else _lay_out(tensor)), None)
                self._program.run(session, self._base, 0, (), (), self._live, speculative=False)
                return [self._read(*output) for output in self._outputs]
            finally:
                session.free(self._passing)

    def close(self) -> None:
        """Drop the network's storages."""
        with self._lock:
            self._session.free(list(self._session.buffers))

    def _read(self, made: bool, number: int, layout: Layout) -> torch.Tensor:
        tensor = self._session.buffer_of(number + self._base if made else number).view(layout)
        return tensor if made else tensor.clone()


class _Numbering:
    """Numbers of storages: in the session those that exist before the step, and in the step by their first use.

    Attributes:
        existing: a tensor in each storage that exists before the step, by its number in the session.
        live: by the number in the step, that in the session, of those of them that a call uses.
    """

    def __init__(self, recording: Recording) -> None:
        self.existing: List[torch.Tensor] = []
        self.live: Dict[int, int] = {}
        self._tensors = recording.existing_storages()
        self._stored: Dict[int, int] = {}
        self._canonical: Dict[int, int] = {}
        self._made: Dict[int, int] = {}

    def store(self, address: int) -> int:
        """Number in the session of a storage that exists before the step."""
        number = self._stored.setdefault(address, len(self.existing))
        if number == len(self.existing):
            self.existing.append(self._tensors[address])
        return number

    def refer_to(self, address: int) -> int:
        """Number in the step of a storage."""
        canonical = self._canonical.setdefault(address, len(self._canonical))
        if address not in self._made:
            self.live[canonical] = self.store(address)
        return canonical

    def add_made(self, storages: Sequence[int]) -> None:
        """Number the new storages of a call."""
        for address in storages:
            self._canonical[address] = len(self._canonical)
            self._made[address] = len(self._made)

    def place_of(self, tensor: torch.Tensor) -> Tuple[bool, int]:
        """Whether the step makes the storage of ``tensor``, and its number among those, or in the session."""
        address = address_of(tensor)
        return (True, self._made[address]) if address in self._made else (False, self.store(address))

    def unread(self, outputs: Sequence[torch.Tensor]) -> List[int]:
        """Numbers in the step of new storages in which no output lies."""
        read = {address_of(one) for one in outputs}
        return [self._canonical[address] for address in self._made if address not in read]


def _check_operator(operator: Any) -> None:
    if isinstance(operator, EdgeOffloadError):
        raise operator
    assert isinstance(operator, BoundOperator)
    if operator.refused is not None:
        raise operator.refused
    if operator.random:
        raise Unsupported(f"it draws random numbers ({operator.name})")


def _lay_out(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
