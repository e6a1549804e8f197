"""What computes on the robot, whole inferences and halves of plans: this process's device, or a process beside it."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Mapping, Optional, Union

import torch
from torch import nn

from edge_offload.companion.module import ModuleBeside
from edge_offload.companion.process import ExecutorProcess
from edge_offload.execute.module import ByEngine, ModuleExecutor
from edge_offload.models.entry import Scalar
from edge_offload.modes.runner import Runner


def executor_of(
    module: nn.Module,
    device: Union[str, torch.device],
    beside: Optional[ExecutorProcess],
    name: str,
    options: Mapping[str, Scalar],
    engine: str,
) -> ModuleExecutor:
    """What runs the model ``name`` as a whole; arguments as :class:`~edge_offload.runtime.module.OffloadedModule`."""
    if beside is not None:
        return ModuleBeside(module, beside, module.path if isinstance(module, ByEngine) else name, options, engine)
    return ModuleExecutor(module, device, engine, spare=True)


def made_once(make: Callable[[], Runner]) -> Callable[[], Runner]:
    """``make``, called the first time; frames in flight ask at the same time, and get the same runner."""
    lock = threading.Lock()
    made: List[Runner] = []

    def once() -> Runner:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return once


def split_runner(executor: ModuleExecutor, *source: Any, **link: Any) -> Runner:
    """Mode ``split``; planners and their solvers are imported by who asks for it alone."""
    from edge_offload.companion.half import PlaceBeside
    from edge_offload.modes.split.robot.runner import SplitRunner
    from edge_offload.modes.split.unmodified.other_torch import AnyTorchSource
    from edge_offload.split.runtime.places import place_of

    beside = executor.process if isinstance(executor, ModuleBeside) else None
    place = place_of(executor.device) if beside is None else PlaceBeside(beside)
    return SplitRunner(AnyTorchSource(*source), place=place, **link)
