"""Find the best source of power that this machine has, and say why the others are absent."""

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
    """What was found.

    Attributes:
        sources: measured sources that add up to this machine's power; empty means that only a model remains, if any.
        absent: for each source not used, why.
        parts: why what is measured here is a part of what the machine draws; empty where it is not, or nothing is.
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

    A board's own input rail (INA3221, or tegrastats where sysfs is closed) is the whole robot computer, so it is used
    alone. Without one, processor (RAPL) and GPU (NVML) are added up, unless there are rails of a board: then these two
    are parts of it, too. One of them alone is no total where there is the other: the processor's counters are often
    root's. ``choice`` picks one source by name instead.

    Args:
        choice: one of :data:`CHOICES`.
        root: root of the file system to look in; tests pass a made-up tree.
        nvml: NVML binding to use in place of ``pynvml``.
        tegrastats: path of the program, if not in ``PATH``.
        clock: monotonic seconds.

    Raises:
        BadInput: no such choice, or the one source asked for is not there (the message says why).
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

    found = Detection()
    for name in ("ina3221", "tegrastats"):
        if found.sources:
            found.absent[name] = f"not needed: {found.sources[0].name} is the whole board"
        else:
            _open(found, name, openers[name])
    whole = found.sources[0].name if found.sources else ""
    for name in ("rapl", "nvml"):
        if whole:
            found.absent[name] = f"not needed: {whole} is the whole board"
        elif found.parts:
            found.absent[name] = "a part of what the board draws, as are its rails"
        else:
            _open(found, name, openers[name])
    _drop_parts(found, pathlib.Path(root))
    return found


def _drop_parts(found: Detection, root: pathlib.Path) -> None:
    """Use neither the GPU without the processor, nor the processor without an NVIDIA GPU that is there."""
    opened = {name for name in ("rapl", "nvml") if name not in found.absent}
    if opened == {"nvml"}:
        part, lacking = "the GPU", "rapl"
    elif opened == {"rapl"} and any(root.glob("proc/driver/nvidia/gpus/*")):
        part, lacking = "the processor", "nvml"
    else:
        return
    (source,) = found.sources
    source.close()
    found.sources, name = [], opened.pop()
    found.absent[name] = f"{source.name} measures {part} alone (to read it nevertheless, choose the source {name})"
    found.parts = f"{part} alone can be measured: {found.absent[lacking]}"


def _open(found: Detection, name: str, opener: Callable[[], PowerSource]) -> None:
    try:
        found.sources.append(opener())
        found.parts = ""
    except BadInput as error:
        found.absent[name] = str(error)
        if isinstance(error, NoTotal):
            found.parts = found.parts or str(error)


def open_meter(
    timeline: StateTimeline, choice: str = "auto", powers: Optional[StatePowers] = None, **options: Any
) -> EnergyMeter:
    """A started :class:`EnergyMeter` on the best sources here, with the state model over ``timeline`` behind them.

    Without ``powers`` there is no model of this machine: what no sensor measures is unknown.

    ``options`` go to the meter (``period_s``, ``max_gap_s``, ``history_s``, ``clock``).
    """
    model = None if powers is None else StateModel(timeline, powers)
    return EnergyMeter(detect(choice).sources, model, **options).start()
