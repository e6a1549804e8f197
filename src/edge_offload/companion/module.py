"""A network that the process beside this one computes: what :class:`ModuleExecutor` is for one of its own."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, Mapping, Sequence, Tuple

import torch
from torch import nn

from edge_offload.companion.process import ExecutorProcess
from edge_offload.errors import EdgeOffloadError, LinkLost
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.module import MOST_PAUSE_S, PAUSE_S, Execution, ModuleExecutor, canonical_input
from edge_offload.models import registry
from edge_offload.models.entry import Scalar


class ModuleBeside(ModuleExecutor):
    """Runs a module in the process beside this one; what it fails to, this process computes on its CPU, and says so.

    Args:
        module: this process's own copy; put in eval mode.
        process: who computes. It builds the model by name, and must come to the same weights.
        name, options: of the model in the registry, or ``package.module:factory``.
        engine: what computes there.
    """

    def __init__(
        self, module: nn.Module, process: ExecutorProcess, name: str, options: Mapping[str, Scalar], engine: str = EAGER
    ) -> None:
        super().__init__(module)
        self.process = process
        self.device = process.device
        self.where = f"{self.device}, in a process beside this one"
        state = registry.state_hash(self.module)
        self._model: Dict[str, Any] = {"name": name, "options": dict(options), "state_hash": state}
        self._engine_asked = engine
        self._failed = ""
        self._pause_s = PAUSE_S
        self._closed = threading.Event()
        self._facts: Dict[str, Any] = {}
        try:
            self._open()
        except EdgeOffloadError as error:
            self._say(error)

    def _open(self) -> None:
        self._facts, _ = self.process.ask("module", "open", engine=self._engine_asked, **self._model)
        self._failed = ""

    def run(self, inputs: Sequence[torch.Tensor]) -> Execution:
        """See :class:`ModuleExecutor`: one inference, here if it cannot be there."""
        why = self._failed
        if not why:
            began = time.monotonic()
            try:
                facts, outputs = self.process.ask("module", "run", [canonical_input(tensor) for tensor in inputs])
                return Execution(tuple(outputs), time.monotonic() - began, facts["engine"], facts["note"])
            except LinkLost as error:
                why = self._say(error)
                threading.Thread(target=self._start_again, name="edge-offload-executor", daemon=True).start()
            except EdgeOffloadError as error:
                why = self._words(error)
        execution = self._run_on(inputs, self.module, torch.device("cpu"))
        return Execution(execution.outputs, execution.compute_s, execution.engine, why)

    def _start_again(self) -> None:
        """The process has ended: start another, after a pause that grows."""
        while not self._closed.wait(self._pause_s):
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
            self.process.close()
            try:
                self.process.start()
                self._open()
            except EdgeOffloadError as error:
                self._say(error)
            else:
                break
        if self._closed.is_set():
            self.process.close()

    def _say(self, error: EdgeOffloadError) -> str:
        self._failed = self._words(error)
        return self._failed

    def _words(self, error: EdgeOffloadError) -> str:
        return f"computed on the CPU in place of {self.device}: {error}"

    def fingerprint(self) -> Dict[str, Any]:
        """See :class:`ModuleExecutor`."""
        return {**self.process.fingerprint, **self.engine_facts()}

    @property
    def engine(self) -> str:
        """See :class:`ModuleExecutor`."""
        return str(self._facts.get("engine", EAGER))

    def engine_facts(self) -> Dict[str, str]:
        """See :class:`ModuleExecutor`."""
        return dict(self._facts.get("engine_facts", {}))

    def engine_state(self) -> Tuple[str, bool]:
        """See :class:`ModuleExecutor`."""
        if self._failed:
            return self._failed, True
        try:
            facts, _ = self.process.ask("module", "state")
        except EdgeOffloadError as error:
            return str(error), True
        return str(facts["words"]), bool(facts["wrong"])

    def engine_ready(self, timeout_s: float) -> bool:
        """See :class:`ModuleExecutor`."""
        if self._failed:
            return True
        facts, _ = self.process.ask("module", "ready", timeout_s=timeout_s)
        return bool(facts["ready"])

    def close(self) -> None:
        """End the process."""
        self._closed.set()
        self.process.close()
