"""Modes ``per_op``, ``cached``, ``lazy`` and ``replay``: a copy of the module on the virtual CUDA device.

The program was started by ``edge-offload exec``, so ``.to("cuda")`` reaches the server. What is here is what a robot
needs beyond a plain program: it starts without a server, loses it, and gets it back, and no frame waits for any of it.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, LinkLost, RemoteError
from edge_offload.execute.engines.base import EAGER, ENGINE
from edge_offload.execute.fingerprint import exactness_refusal
from edge_offload.execute.tensors import Specs, specs_of
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import Budget
from edge_offload.mode import Mode
from edge_offload.modes.remote import Handles, Progress
from edge_offload.modes.runner import Attempt, FailedAttempt, Runner
from edge_offload.protocol.messages import tensor_bytes
from edge_offload.protocol.remote import END

if TYPE_CHECKING:
    from edge_offload.device.installation import Installed

_log = logging.getLogger(__name__)
#: Longest wait for one answer while the device is made ready (seconds).
READY_S = 60.0
#: Most inferences by which ``replay`` learns a model, on what frames bring meanwhile: what is seen decides which calls
#: a read-out makes. It has learnt it when so many of them in a row took one round trip each.
LESSONS, IN_A_ROW = 16, 3


def installed_device() -> Optional[Installed]:
    """The virtual device of this process, or None in a program that was not started by ``edge-offload exec``."""
    module = sys.modules.get("edge_offload.device.installation")
    device: Optional[Installed] = module.current_installation() if module is not None else None
    return device


class DeviceModule:
    """The module's copy on the virtual device, and the session that it lives in. Thread-safe.

    Args:
        device: of this process.
        module: the robot's own; it stays where it is.
        client: the link, owned by someone else.
        codec: payload codec, both ways.
        exact_for: the robot's fingerprint, if no server may be used whose results have other bits; None: any may be.
    """

    def __init__(
        self, device: Installed, module: nn.Module, client: Client, codec: str = "auto",
        exact_for: Optional[Mapping[str, Any]] = None,
    ) -> None:  # fmt: skip
        self._device = device
        self._module = module
        self._client = client
        self._codec = codec
        self._exact_for = exact_for
        self._handles: Dict[Mode, Handles[Specs, bool]] = {}
        self._copy: Optional[nn.Module] = None
        self._connection = -1
        self._session = b""
        self._latest: Tuple[Specs, Sequence[torch.Tensor]] = ((), ())
        self._making = threading.Lock()
        self._lock = threading.Lock()

    def unavailable_reason(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        specs = specs_of(inputs)
        self._latest = specs, inputs
        reason = self._handles_of(mode).unavailable_reason(
            specs, lambda: functools.partial(self._make_ready, mode, specs)
        )
        if reason is None and self._making.locked():
            return "the virtual device is being made ready for another mode"
        if reason is None and self._exact_for is not None:
            # sessions compute by torch, whatever engine the server's models have
            theirs = self._client.welcome.get("fingerprint")
            stated = {**theirs, ENGINE: EAGER} if isinstance(theirs, Mapping) else theirs
            reason = exactness_refusal({ENGINE: EAGER, **self._exact_for}, stated) or None
        return reason

    def run(self, mode: Mode, inputs: Sequence[torch.Tensor], budget: Budget) -> Attempt:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        with self._lock:
            if self._copy is None or self._making.locked():
                raise LinkLost("the virtual device is not ready")
            started_s = time.monotonic()
            self._device.recorder.limit_waits(budget.give_up_s)
            sent = self._device.remote.bytes_up
            try:
                return self._infer(self._copy, mode, inputs)
            except EdgeOffloadError as error:
                self._drop(str(error))
                lost = self._device.remote.bytes_up - sent
                raise FailedAttempt(error, time.monotonic() - started_s, lost) from error
            except Exception as error:
                # the model's own error is raised again by the local computation; anything else is the device's
                cause = RemoteError(f"on the device: {type(error).__name__}: {error}")
                raise FailedAttempt(cause, time.monotonic() - started_s, self._device.remote.bytes_up - sent) from error

    def send_ahead(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> None:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        if self._copy is not None and not self._making.locked() and self._device.recorder.mode is mode:
            self._device.remote.send_ahead([tensor_bytes(tensor) for tensor in inputs])

    def state(self, mode: Mode) -> str:
        """Describe the state of a mode."""
        why, is_open = self._handles_of(mode).state()
        return why if why or not is_open else f"{self._client.cause}; ready on the virtual device"

    def _handles_of(self, mode: Mode) -> Handles[Specs, bool]:
        handles = self._handles.get(mode)
        if handles is None:
            subject = f"the model in mode {mode} on the virtual device"
            handles = self._handles.setdefault(mode, Handles(self._client, subject, retry_s=lambda _refusals: 2.0))
        return handles

    # -- making ready

    def _make_ready(self, mode: Mode, specs: Specs, progress: Progress) -> bool:
        """Weights over, then inferences until the mode has learnt the model."""
        with self._making:
            try:
                connection = self._client.counters["connections"]
                self._device.recorder.limit_waits(READY_S)
                if self._copy is None or self._device.recorder.failed or connection != self._connection:
                    progress("its weights are put there")
                    self._connect()
                    self._connection = connection
                    with background.sliced():
                        self._copy = copy.deepcopy(self._module).to("cuda")
                progress(f"mode {mode} learns it")
                streak = 0
                for _ in range(LESSONS if mode is Mode.REPLAY else 2):
                    latest, inputs = self._latest
                    example = [tensor.clone() for tensor in inputs] if latest == specs else [s.zeros() for s in specs]
                    with self._lock:
                        attempt = self._infer(self._copy, mode, example)
                    streak = streak + 1 if attempt.round_trips <= 1 else 0
                    if streak == IN_A_ROW:
                        break
            except Exception as error:
                self._drop(f"the virtual device cannot run this model: {error}")
                raise
        return True

    def _connect(self) -> None:
        from edge_offload.device.connect import other_operators
        from edge_offload.device.remotes.link import LinkRemote

        # a session that breaks is given up: this frame is computed on the robot, and the next session starts in the
        # background with weights that the server has already
        remote = LinkRemote(
            self._client, READY_S, resume_s=0.0, codec=self._codec, owns_client=False,
            refused=other_operators(self._client),
        )  # fmt: skip
        self._device.reconnect(remote)
        if self._session:  # the server would keep it for a return, with a process of its own
            self._client.request(END, {"session": self._session}, timeout_s=10.0)  # nobody waits for that
        self._session = remote.session

    def _drop(self, problem: str) -> None:
        """The session is over; a frame that asks after a while starts another."""
        self._copy = None
        self._device.remote.close()
        _log.warning("the virtual device is lost: %s", problem)
        for handles in list(self._handles.values()):
            handles.lose(f"the virtual device is lost: {problem}")

    def _infer(self, module: nn.Module, mode: Mode, inputs: Sequence[torch.Tensor]) -> Attempt:
        device = self._device
        if device.recorder.mode is not mode:
            device.switch_mode(mode)
        remote: Any = device.remote
        before = (device.recorder.counters.round_trips, remote.bytes_up, remote.bytes_down)
        started_s, spent = time.monotonic(), remote.spent
        spent.reset()
        with torch.no_grad():
            outputs = module(*[tensor.to("cuda") for tensor in inputs])
            results = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
            outputs = tuple(tensor.cpu() for tensor in results)
        round_trips = device.recorder.counters.round_trips - before[0]
        # of several messages, only the first has the inputs
        lead_s = spent.encode_s + spent.uplink_s if round_trips == 1 else 0.0
        return Attempt(
            outputs,
            {
                "uplink": spent.uplink_s,
                "compute_server": spent.server_s,
                "downlink": spent.downlink_s,
                "encode": spent.encode_s,
                "decode": spent.decode_s,
            },
            remote.bytes_up - before[1],
            remote.bytes_down - before[2],
            round_trips,
            spent.clock_error_s,
            part_s=max(time.monotonic() - started_s + spent.ahead_s - lead_s, lead_s),
            lead_s=lead_s,
            ahead_s=spent.ahead_s,
        )


class DeviceRunner(Runner):
    """One of the modes of a :class:`DeviceModule`."""

    def __init__(self, mode: Mode, module: DeviceModule) -> None:
        self.mode = mode
        self._module = module

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        return self._module.unavailable_reason(self.mode, inputs)

    def attempt_inference(self, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any], budget: Budget) -> Attempt:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        return self._module.run(self.mode, inputs, budget)

    def send_ahead(self, inputs: Sequence[torch.Tensor]) -> None:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        self._module.send_ahead(self.mode, inputs)

    def state(self) -> str:
        """Describe the mode's state."""
        return self._module.state(self.mode)
