"""Modes ``per_op``, ``cached``, ``lazy`` and ``replay``: a copy of the module on the virtual CUDA device.

The program was started by ``edge-offload exec``, so ``.to("cuda")`` reaches the server. What is here is what a robot
needs beyond a plain program: it starts without a server, loses it, and gets it back, and no frame waits for any of it.
"""

from __future__ import annotations

import copy
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence

import torch
from torch import nn

from edge_offload.errors import EdgeOffloadError, LinkLost, RemoteError
from edge_offload.execute.tensors import TensorSpec
from edge_offload.link.replies import LinkState
from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt, FailedAttempt
from edge_offload.modes.timeouts import TimeoutLimits, TimeoutPolicy

if TYPE_CHECKING:
    from edge_offload.device.installation import Installed

_log = logging.getLogger(__name__)
#: Longest wait for one answer while the device is made ready (seconds).
READY_S = 60.0
#: Seconds between attempts to make the device ready.
AGAIN_S = 2.0
#: Inferences by which ``replay`` has learnt a model: once with each call's metadata unknown, then its repeats.
LESSONS = 8


def installed_device() -> Optional[Installed]:
    """The virtual device of this process, or None in a program that was not started by ``edge-offload exec``."""
    module = sys.modules.get("edge_offload.device.installation")
    found: Optional[Installed] = module.installed() if module is not None else None
    return found


class DeviceModule:
    """The module's copy on the virtual device, and the session that it lives in. Thread-safe.

    Args:
        device: of this process.
        module: the robot's own; it stays where it is.
        client: the link, owned by someone else.
        codec: payload codec, both ways.
        limits: bounds on the wait for a reply.
    """

    def __init__(
        self,
        device: Installed,
        module: nn.Module,
        client: Client,
        codec: str = "auto",
        limits: Optional[TimeoutLimits] = None,
    ) -> None:
        self._device = device
        self._module = module
        self._client = client
        self._codec = codec
        self._patience_limits = limits
        self._patience: Dict[Mode, TimeoutPolicy] = {}
        self._copy: Optional[nn.Module] = None
        self._learnt: Dict[Mode, List[Sequence[TensorSpec]]] = {}
        self._problem = ""
        self._again_s = 0.0
        self._making = False
        self._lock = threading.Lock()

    def unavailable_reason(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        if self._client.state is not LinkState.READY:
            return f"no server: {self._client.cause}"
        specs = [TensorSpec.of(tensor) for tensor in inputs]
        with self._lock:
            if self._copy is not None and specs in self._learnt.get(mode, []):
                return None
            if self._making:
                return "the virtual device is being made ready"
            if time.monotonic() < self._again_s:
                return self._problem
            self._making = True
        threading.Thread(
            target=self._make_ready, args=(mode, specs), name="edge_offload-device-ready", daemon=True
        ).start()
        return "the virtual device is being made ready"

    def run(self, mode: Mode, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], local_s: float) -> Attempt:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        patience = self._patience.setdefault(mode, TimeoutPolicy(self._patience_limits))
        with self._lock:
            if self._copy is None or self._making:
                raise LinkLost("the virtual device is not ready")
            began = time.monotonic()
            self._device.recorder.limit_waits(patience.wait_s(deadline_s, local_s))
            sent = self._device.remote.bytes_up
            try:
                attempt = self._infer(self._copy, mode, inputs)
            except EdgeOffloadError as error:
                self._drop(str(error))
                lost = self._device.remote.bytes_up - sent
                raise FailedAttempt(error, time.monotonic() - began, lost) from error
            except Exception as error:
                # the model's own error is raised again by the local computation; anything else is the device's
                cause = RemoteError(f"on the device: {type(error).__name__}: {error}")
                raise FailedAttempt(cause, time.monotonic() - began, self._device.remote.bytes_up - sent) from error
            patience.note(time.monotonic() - began)
            return attempt

    def state(self, mode: Mode) -> str:
        """How a mode stands, in words."""
        if self._client.state is not LinkState.READY:
            return f"no server: {self._client.cause}"
        if self._copy is not None and self._learnt.get(mode):
            return f"{self._client.cause}; ready on the virtual device"
        return self._problem or f"{self._client.cause}; not tried yet"

    # -- making ready

    def _make_ready(self, mode: Mode, specs: Sequence[TensorSpec]) -> None:
        """In a thread of its own: weights over, then inferences until the mode has learnt the model."""
        try:
            device = self._device
            device.recorder.limit_waits(READY_S)
            if self._copy is None or device.recorder.failed:
                self._connect()
                self._copy = copy.deepcopy(self._module).to("cuda")
            assert self._copy is not None
            probe = [spec.zeros() for spec in specs]
            for lesson in range(LESSONS if mode is Mode.REPLAY else 2):
                if self._infer(self._copy, mode, probe).round_trips <= 1 and lesson > 2:
                    break
            with self._lock:
                self._learnt.setdefault(mode, []).append(specs)
                self._problem = ""
        except EdgeOffloadError as error:
            self._drop(str(error))
        except Exception as error:
            _log.exception("the virtual device cannot run this model")
            self._drop(f"the virtual device cannot run this model: {type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._making = False

    def _connect(self) -> None:
        from edge_offload.device.connect import other_operators
        from edge_offload.device.link_remote import LinkRemote

        # a session that breaks is given up: this frame is computed on the robot, and the next session starts in the
        # background with weights that the server has already
        remote = LinkRemote(
            self._client, READY_S, resume_s=0.0, codec=self._codec, owns_client=False,
            refused=other_operators(self._client),
        )  # fmt: skip
        self._device.reconnect(remote)

    def _drop(self, problem: str) -> None:
        """The session is over; the next frame that asks starts another."""
        self._copy = None
        self._learnt.clear()
        self._problem, self._again_s = problem, time.monotonic() + AGAIN_S
        self._device.remote.close()
        _log.warning("the virtual device is lost: %s", problem)

    def _infer(self, module: nn.Module, mode: Mode, inputs: Sequence[torch.Tensor]) -> Attempt:
        device = self._device
        if device.recorder.mode is not mode:
            device.switch(mode)
        remote: Any = device.remote
        before = (device.recorder.counters.round_trips, remote.bytes_up, remote.bytes_down)
        remote.spent.reset()
        with torch.no_grad():
            found = module(*[tensor.to("cuda") for tensor in inputs])
            results = found if isinstance(found, (tuple, list)) else (found,)
            outputs = tuple(tensor.cpu() for tensor in results)
        return Attempt(
            outputs,
            {
                "uplink": remote.spent.uplink_s,
                "compute_server": remote.spent.server_s,
                "downlink": remote.spent.downlink_s,
                "encode": remote.spent.encode_s,
                "decode": remote.spent.decode_s,
            },
            remote.bytes_up - before[1],
            remote.bytes_down - before[2],
            device.recorder.counters.round_trips - before[0],
            remote.spent.clock_error_s,
        )


class DeviceRunner:
    """One of the modes of a :class:`DeviceModule`."""

    def __init__(self, mode: Mode, module: DeviceModule) -> None:
        self.mode = mode
        self._module = module

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        return self._module.unavailable_reason(self.mode, inputs)

    def run(
        self, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], local_s: float, meta: Mapping[str, Any]
    ) -> Attempt:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        return self._module.run(self.mode, inputs, deadline_s, local_s)

    def state(self) -> str:
        """How the mode stands, in words."""
        return self._module.state(self.mode)
