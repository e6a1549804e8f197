"""Runs a network in the executor process; the fallback is this process's CPU."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, Mapping, Sequence, Tuple

import torch
from torch import nn

from edge_offload.companion.process import ExecutorProcess
from edge_offload.errors import EdgeOffloadError, LinkLost, Refused
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.fallback import MOST_PAUSE_S, PAUSE_S
from edge_offload.execute.module import Execution, ModuleExecutor, canonical_input
from edge_offload.models import registry
from edge_offload.models.entry import Scalar


class CompanionModule(ModuleExecutor):
    """Runs a module in the executor process. If that fails, this process's CPU computes, with the reason as a note.

    Args:
        module: this process's copy, for the fallback; put in eval mode.
        process: the executor process. It builds the model by name; its weights must equal those of ``module``.
        name, options: name of the model in the registry or ``package.module:factory``, and the options of its factory.
        engine: the engine that the executor process uses.
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
        self._requested_engine = engine
        #: Reason why the CPU computes; empty: the executor process computes.
        self._fallback_reason = ""
        self._closed = threading.Event()
        self._failing = threading.Lock()
        self._facts: Dict[str, Any] = {}
        try:
            self._open_model()
        except EdgeOffloadError as error:
            self._replace_process(error)

    def _open_model(self) -> None:
        try:
            self._facts, _ = self.process.run_operation("module", "open", engine=self._requested_engine, **self._model)
            self._fallback_reason = ""
        except Refused as error:  # its weights differ, and would after a restart
            self._fallback_reason = self._describe_failure(error)

    def run_module(self, inputs: Sequence[torch.Tensor]) -> Execution:
        fallback_reason = self._fallback_reason
        if not fallback_reason:
            started_at = time.monotonic()
            try:
                facts, outputs = self.process.run_operation(
                    "module", "run", [canonical_input(tensor) for tensor in inputs]
                )
                return Execution(tuple(outputs), time.monotonic() - started_at, facts["engine"], facts["note"])
            except LinkLost as error:
                fallback_reason = self._replace_process(error)
            except EdgeOffloadError as error:
                fallback_reason = self._describe_failure(error)
        execution = self._run_on(inputs, self.module, torch.device("cpu"))
        return Execution(execution.outputs, execution.compute_s, execution.engine, fallback_reason)

    def _replace_process(self, error: EdgeOffloadError) -> str:
        """Compute on the CPU until a thread has replaced the process; return the reason."""
        with self._failing:
            if not self._fallback_reason:
                self._fallback_reason = self._describe_restart(error)
                threading.Thread(target=self._restart_process, name="edge-offload-executor", daemon=True).start()
            return self._fallback_reason

    def _restart_process(self) -> None:
        """Restart the process, with exponential back-off, until it has answered about the model."""
        pause_s = PAUSE_S
        while not self._closed.wait(pause_s):
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
            self.process.close()
            try:
                self.process.start()
                self._open_model()
            except (EdgeOffloadError, OSError) as error:
                self._fallback_reason = self._describe_restart(error)
            else:
                break
        if self._closed.is_set():
            self.process.close()

    def _describe_restart(self, error: Exception) -> str:
        return f"{self._describe_failure(error)}; the executor process is restarted after a pause"

    def _describe_failure(self, error: Exception) -> str:
        return f"computed on the CPU in place of {self.device}: {error}"

    def fingerprint(self) -> Dict[str, Any]:
        return {**self.process.fingerprint, **self.engine_facts()}

    @property
    def engine(self) -> str:
        return str(self._facts.get("engine", EAGER))

    def engine_facts(self) -> Dict[str, str]:
        return dict(self._facts.get("engine_facts", {}))

    def engine_state(self) -> Tuple[str, bool]:
        if self._fallback_reason:
            return self._fallback_reason, True
        try:
            facts, _ = self.process.run_operation("module", "state")
        except EdgeOffloadError as error:
            return str(error), True
        return str(facts["words"]), bool(facts["wrong"])

    def engine_ready(self, timeout_s: float) -> bool:
        if self._fallback_reason:
            return True
        facts, _ = self.process.run_operation("module", "ready", timeout_s=timeout_s)
        return bool(facts["ready"])

    def close(self) -> None:
        """End the executor process."""
        self._closed.set()
        self.process.close()
