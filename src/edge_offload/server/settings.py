"""What a server is told when it is made, by concern."""

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
    """What a server computes with.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda``, or ``emulated:TABLE.csv``.
        engine: what computes the replicas of mode ``server``, as
            :func:`~edge_offload.execute.engines.table.engine_for_model` takes it; torch computes where an
            engine is not installed, and ``OffloadServer.engine`` says so.
        threads, cores: compute threads and CPU cores of this process; None leaves them.
    """

    device: str = devices.AUTO
    engine: str = FASTEST_EXACT
    threads: Optional[int] = None
    cores: Optional[Collection[int]] = None


@dataclass(frozen=True)
class Models:
    """Which models robots may open.

    Attributes:
        allow: factories (``package.module:factory``) besides the models of the registry.
        overrides: options by model name that replace those that a robot sends.
        most: models in memory at once.
    """

    allow: Iterable[str] = ()
    overrides: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    most: int = 12


@dataclass(frozen=True)
class Limits:
    """What robots may take.

    Attributes:
        queue_per_peer, queue_total: requests that one robot, and all, may have waiting for the device.
        robot: what one robot may have open.
        devices: what virtual devices may take.
    """

    queue_per_peer: int = 4
    queue_total: int = 64
    robot: RobotQuota = field(default_factory=RobotQuota)
    devices: DeviceQuota = field(default_factory=DeviceQuota)
