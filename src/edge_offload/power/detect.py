"""Detection of this machine's best power sensors, with the reasons why others are not used."""

from __future__ import annotations

import pathlib
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Union

from edge_offload.errors import BadInput
from edge_offload.power.boards import NoTotal
from edge_offload.power.ina3221 import Ina3221
from edge_offload.power.meter import EnergyMeter
from edge_offload.power.nvml import Nvml
from edge_offload.power.rapl import Rapl
from edge_offload.power.source import PowerSource
from edge_offload.power.states import StateModel, StatePowers, StateTimeline
from edge_offload.power.tegrastats import Tegrastats

CHOICES = ("auto", "ina3221", "tegrastats", "rapl", "nvml", "model")


@dataclass
class Detection:
    """Power sensors of this machine.

    Attributes:
        sources: sensors whose sum is the machine's power; empty: only a model can give it.
        absent: for each source that is not used, the reason.
        parts: why the sensors together measure only a part of the machine's power; empty: this is not so.
    """

    sources: List[PowerSource] = field(default_factory=list)
    absent: Dict[str, str] = field(default_factory=dict)
    parts: str = ""


def detect(
    choice: str = "auto",
    root: Union[str, pathlib.Path] = "/",
    nvml: Optional[Any] = None,
    tegrastats: Optional[str] = None,
    clock: Callable[[], float] = time.monotonic,
) -> Detection:
    """Open the best sources present.

    A board's input rail (INA3221, or tegrastats where sysfs is not readable) measures the whole computer, so it is the
    only source used. Without board rails, processor (RAPL) and GPU (NVML) are summed. A board whose rails give no total
    has no source, because processor and GPU are parts of its rails. Processor or GPU alone is not used where the other
    one exists but is not readable: the processor's counters often belong to root.

    Args:
        choice: one of :data:`CHOICES`; a name selects this source alone.
        root: root of the file system; tests pass an artificial tree.
        nvml: NVML binding to use in place of ``pynvml``.
        tegrastats: path of the program, if not in ``PATH``.
        clock: monotonic seconds.

    Raises:
        BadInput: no such choice, or the chosen source is absent (the message says why).
    """
    if choice not in CHOICES:
        raise BadInput(f"unknown power source {choice!r}", remedy=f"use one of: {', '.join(CHOICES)}")
    openers: Dict[str, Callable[[], PowerSource]] = {
        "ina3221": lambda: Ina3221(root),
        "tegrastats": lambda: Tegrastats(tegrastats, clock=clock),
        "rapl": lambda: Rapl(root, clock),
        "nvml": lambda: Nvml(nvml),
    }
    if choice == "model":
        return Detection(absent=dict.fromkeys(openers, "the state model was asked for"))
    if choice != "auto":
        return Detection([openers[choice]()], {name: f"{choice} was asked for" for name in openers if name != choice})

    detection = Detection()
    for name in ("ina3221", "tegrastats"):
        if detection.sources:
            detection.absent[name] = f"not needed: {detection.sources[0].name} is the whole board"
        else:
            _open_source(detection, name, openers[name])
    board_source = detection.sources[0].name if detection.sources else ""
    for name in ("rapl", "nvml"):
        if board_source:
            detection.absent[name] = f"not needed: {board_source} is the whole board"
        elif detection.parts:
            detection.absent[name] = "a part of what the board draws, as are its rails"
        else:
            _open_source(detection, name, openers[name])
    _drop_partial_sources(detection, pathlib.Path(root))
    return detection


def _drop_partial_sources(detection: Detection, root: pathlib.Path) -> None:
    """Close a GPU source without the processor's, and a processor source where an NVIDIA GPU is not measured."""
    opened = {name for name in ("rapl", "nvml") if name not in detection.absent}
    if opened == {"nvml"}:
        part, lacking = "the GPU", "rapl"
    elif opened == {"rapl"} and any(root.glob("proc/driver/nvidia/gpus/*")):
        part, lacking = "the processor", "nvml"
    else:
        return
    (source,) = detection.sources
    source.close()
    detection.sources, name = [], opened.pop()
    detection.absent[name] = f"{source.name} measures {part} alone (to read it nevertheless, choose the source {name})"
    detection.parts = f"{part} alone can be measured: {detection.absent[lacking]}"


def _open_source(detection: Detection, name: str, opener: Callable[[], PowerSource]) -> None:
    """Add a source to ``detection``, or the reason why it cannot be opened."""
    try:
        detection.sources.append(opener())
        detection.parts = ""
    except BadInput as error:
        detection.absent[name] = str(error)
        if isinstance(error, NoTotal):
            detection.parts = detection.parts or str(error)


def open_meter(
    timeline: StateTimeline, choice: str = "auto", powers: Optional[StatePowers] = None, **options: Any
) -> EnergyMeter:
    """Start an :class:`EnergyMeter` on the best sources, with the state model over ``timeline`` as the fallback.

    Args:
        timeline: states of the machine, for the model.
        choice: see :func:`detect`.
        powers: watts by state; None: no model, and energy that no sensor measures is unknown.
        options: of the meter: ``period_s``, ``max_gap_s``, ``history_s``, ``clock``.

    Raises:
        BadInput: see :func:`detect`.
    """
    model = None if powers is None else StateModel(timeline, powers)
    return EnergyMeter(detect(choice).sources, model, **options).start()
