"""The device that a server computes on: its name, its engine by default, and what robots are told of it."""

from __future__ import annotations

from typing import Any, Dict, Optional

from edge_offload import beside
from edge_offload.errors import Unsupported
from edge_offload.execute import devices
from edge_offload.execute.engines import table
from edge_offload.execute.engines.base import EAGER, ENGINE, FASTEST_EXACT, engine_label, fingerprint_entry
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.execute.threads import pin
from edge_offload.server.services.replica.replicas import EmulatedDevice
from edge_offload.server.settings import Compute

#: What an emulated device is called by: ``emulated:TABLE.csv``.
EMULATED = "emulated:"


class ComputeDevice:
    """Picked at once, prepared on the thread that owns it.

    Args:
        compute: what was asked for.

    Raises:
        BadInput, Unsupported: the device is unknown or absent, or the engine unknown.

    Attributes:
        placed: torch's device.
        emulated: the device that is emulated on it; None: it is the real one.
        name: ``cpu`` or ``cuda``, or the emulated one by name.
        engine: what computes models that are not named, for people.
        fingerprint, facts: what robots are told; empty before :meth:`prepare_device`.
    """

    def __init__(self, compute: Compute) -> None:
        self.emulated: Optional[EmulatedDevice] = None
        if compute.device.startswith(EMULATED):
            self.emulated = beside.action("emulated-device", "edge_offload_research").load_device(compute.device)
        self.placed = devices.pick_device("cpu" if self.emulated else compute.device)
        self.name = self.emulated.name if self.emulated else str(self.placed)
        self._compute = compute
        self.fingerprint: Dict[str, Any] = {}
        self.facts: Dict[str, Any] = {}
        try:
            backend = table.pick_backend(table.engine_for_model(compute.engine, "", FASTEST_EXACT), self.placed.type)
        except Unsupported as error:
            self.engine, self._stated = f"{EAGER}: {error}", ""
        else:
            self.engine, self._stated = (
                EAGER if backend is None else engine_label(backend),
                fingerprint_entry(backend),
            )

    def prepare_device(self, storage_bytes: int) -> None:
        """Pin this thread and read the device's facts; ``storage_bytes``: limit of one virtual device."""
        pin(self._compute.threads, self._compute.cores)
        self.fingerprint = fingerprint_of(devices.fix_kernel_choice(self.placed))
        engine = self.emulated.name if self.emulated else self._stated
        if engine:
            self.fingerprint[ENGINE] = engine
        self.facts = devices.device_facts(self.placed, storage_bytes)
