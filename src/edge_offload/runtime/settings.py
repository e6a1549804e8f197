"""Settings of an offloaded module: one typed list, with defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Optional, Sequence, TypedDict, Union

from edge_offload.execute.engines.base import EAGER
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.manager.policy import CANDIDATES
from edge_offload.mode import BRIDGE, BRIDGED, Mode
from edge_offload.models.entry import Scalar
from edge_offload.power.states import StatePowers

if TYPE_CHECKING:
    import torch

    from edge_offload.companion.process import ExecutorProcess
    from edge_offload.execute.module import Inputs


class ModuleOptions(TypedDict, total=False):
    """Keyword arguments of :class:`~edge_offload.runtime.module.OffloadedModule`: see :class:`ModuleSettings`."""

    options: Optional[Mapping[str, Scalar]]
    device: Union[str, torch.device]
    engine: str
    exact: bool
    codec: str
    robot_slowdown: float
    patience: Optional[TimeoutLimits]
    example: Optional[Inputs]
    hedging: bool
    report_results: bool
    candidates: Sequence[Mode]
    powers: Optional[StatePowers]
    in_flight: int
    companion: Optional[ExecutorProcess]


@dataclass(frozen=True)
class ModuleSettings:
    """Settings of an :class:`~edge_offload.runtime.module.OffloadedModule`.

    Attributes:
        options: those that the module was built with, for the server to build the same.
        device: where the robot computes.
        engine: what computes there; a ``spec`` of :func:`.table.engine_for_model`.
        exact: results have the robot's bits: no engine, and no server whose fingerprint differs.
        codec: payload codec, both ways; ``auto`` is lossless.
        robot_slowdown: emulate a robot that is so many times slower; 1 does not.
        patience: bounds on the wait for a reply of which there is no forecast.
        example: inputs of the shapes to come, so that the model is opened before the first frame.
        hedging: start the local computation when a remote result is late by its own forecast; the first one wins.
        report_results: send the server the results of calls with ``meta`` that it did not compute itself.
        candidates: modes that a policy may choose among, and that are made ready for it; ``local`` is always one.
        powers: of the robot by state, for the energy of forecasts; None: that is unknown (NaN).
        in_flight: most calls in flight at once; ``frames`` says when one more may start, but refuses none.
        companion: what computes on the robot in place of this process (:mod:`edge_offload.companion`); closed with the
            module.
    """

    options: Optional[Mapping[str, Scalar]] = None
    device: Union[str, torch.device] = "cpu"
    engine: str = EAGER
    exact: bool = False
    codec: str = "auto"
    robot_slowdown: float = 1.0
    patience: Optional[TimeoutLimits] = None
    example: Optional[Inputs] = None
    hedging: bool = True
    report_results: bool = False
    candidates: Sequence[Mode] = CANDIDATES
    powers: Optional[StatePowers] = None
    in_flight: int = 1
    companion: Optional[ExecutorProcess] = None

    @property
    def bridges(self) -> bool:
        """Tell whether ``server`` stands in for a mode that takes long to prepare."""
        return BRIDGE not in self.candidates and BRIDGED in self.candidates

    @property
    def forecast_modes(self) -> Sequence[Mode]:
        """The modes of which forecasts are made, in the order of :class:`Mode`."""
        modes = {Mode.LOCAL, *self.candidates, *((BRIDGE,) if self.bridges else ())}
        return tuple(mode for mode in Mode if mode in modes)
