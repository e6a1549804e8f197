"""TorchInductor: kernels that a C++ compiler of this machine builds for one recorded inference on a CPU."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, List, Sequence, Tuple

import torch

from edge_offload import background
from edge_offload.execute.engines.base import CLOSE, CPU, Direct
from edge_offload.execute.engines.recorded.recording import Recording, record_calls
from edge_offload.native.recipe import compiler

#: What a machine lacks that has none.
NO_COMPILER = "a C++ compiler"


class InductorBackend(Direct):
    """Backend that fuses the calls of a recorded inference."""

    name: str = "inductor"
    accuracy: str = CLOSE
    distributions: Tuple[str, ...] = ("torch",)
    device: str = CPU
    own_thread: bool = False

    def missing_parts(self) -> str:
        return "" if compiler() is not None else NO_COMPILER

    def capture(
        self, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
    ) -> InductorEngine:
        return InductorEngine(record_calls(run, inputs))


class InductorEngine:
    """One recorded inference, compiled; a minute or more on a small processor.

    Raises:
        Exception: whatever the compiler raises.
    """

    def __init__(self, recording: Recording) -> None:
        import torch._inductor.config as config
        from torch._inductor.compile_fx import compile_fx

        self._constants = [one.detach() for one in recording.constants]
        self._lock = threading.Lock()
        graph = torch.fx.GraphModule({}, recording.graph)
        with contextlib.ExitStack() as stack:
            stack.enter_context(background.yielding())
            stack.enter_context(background.sliced())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            # by this thread, whose priority the compiler inherits: torch's pool of processes has the server's
            stack.enter_context(config.patch(compile_threads=1))
            self._compiled: Any = compile_fx(graph, [*self._constants, *recording.inputs])

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Outputs for ``inputs``, on the caller's thread."""
        with self._lock, torch.inference_mode():
            return list(self._compiled(*self._constants, *inputs))

    def close(self) -> None:
        """Drop the kernels' constants."""
        self._constants = []
