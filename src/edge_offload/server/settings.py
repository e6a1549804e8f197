"""Settings of a server: compute, models and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Iterable, Mapping, Optional

from edge_offload.execute import devices
from edge_offload.execute.engines.base import FASTEST_EXACT
from edge_offload.models.entry import Scalar
from edge_offload.server.quota import DeviceQuota
from edge_offload.server.services.replica.service import RobotQuota


@dataclass(frozen=True)
class Compute:
    """Device, engine and CPU resources of a server.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda``, or ``emulated:TABLE.csv``.
        engine: engine for the replicas of mode ``server``, as
            :func:`~edge_offload.execute.engines.table.engine_for_model` takes it. If it is not installed, torch
            computes, and ``OffloadServer.engine`` says so.
        threads, cores: number of compute threads, and numbers of the CPU cores of this process; None: unchanged.
    """

    device: str = devices.AUTO
    engine: str = FASTEST_EXACT
    threads: Optional[int] = None
    cores: Optional[Collection[int]] = None


@dataclass(frozen=True)
class Models:
    """Models that robots may open.

    Attributes:
        allow: factories (``package.module:factory``) that are allowed besides the models of the registry.
        overrides: options by model name; they replace those that a robot sends.
        most: largest number of models in memory at once.
    """

    allow: Iterable[str] = ()
    overrides: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    most: int = 12


@dataclass(frozen=True)
class Limits:
    """Limits of what robots may use.

    Attributes:
        queue_per_peer, queue_total: requests of one robot, and of all robots, that may wait for the device.
        robot: limits of what one robot may have open.
        devices: limits of virtual devices.
    """

    queue_per_peer: int = 4
    queue_total: int = 64
    robot: RobotQuota = field(default_factory=RobotQuota)
    devices: DeviceQuota = field(default_factory=DeviceQuota)
