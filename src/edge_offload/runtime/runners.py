"""What runs each mode of one module."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from edge_offload.companion.module import CompanionModule
from edge_offload.companion.process import ExecutorProcess
from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.engines.table import engine_for_model
from edge_offload.execute.module import ByEngine, ModuleExecutor, as_inputs
from edge_offload.execute.tensors import specs_of
from edge_offload.link.transport.client import Client
from edge_offload.manager.promise import PromisePolicy
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.models.entry import Scalar
from edge_offload.modes.local import LocalRunner
from edge_offload.modes.runner import Runner
from edge_offload.modes.server import ServerRunner
from edge_offload.runtime.promise import Promise
from edge_offload.runtime.settings import ModuleSettings
from edge_offload.split.model.objective import Objective


class ModeRunners:
    """The runners of one module's modes. Thread-safe.

    Args:
        name, module, client, settings: as :class:`~edge_offload.runtime.module.OffloadedModule` has them.

    Attributes:
        by_mode: all of them that are there.
        local: the robot's own.
        server: None without a server.
        make_split: makes what runs mode ``split``, once; None: it is not offered.

    Raises:
        BadInput: a slowdown below 1, or no such engine.
    """

    def __init__(self, name: str, module: nn.Module, client: Optional[Client], settings: ModuleSettings) -> None:
        self._client = client
        options, slowdown = settings.options or {}, settings.robot_slowdown
        engine = EAGER if settings.exact else engine_for_model(settings.engine, name)
        executor = executor_of(module, settings.device, settings.companion, name, options, engine)
        self.local = LocalRunner(executor, slowdown)
        self.server: Optional[ServerRunner] = None
        self._objective: Optional[Objective] = None
        self.make_split: Optional[Callable[[], Runner]] = None
        self.by_mode: Dict[Mode, Runner] = {Mode.LOCAL: self.local}
        if client is None:
            return
        hashed = functools.partial(registry.state_hash, executor.module)
        how = (settings.codec, settings.exact, lambda: executor.engine)
        self.server = ServerRunner(name, options, client, hashed, executor.fingerprint(), *how)
        self.add(self.server)
        source = (name, options, executor.module, hashed, self.local.attempt_inference)
        link = {"client": client, "slowdown": slowdown, "power": settings.powers}
        if not isinstance(module, ByEngine):
            self.make_split = made_once(lambda: split_runner(executor, *source, objective=self._objective, **link))
        if settings.example is not None:
            self.server.prepare(specs_of(as_inputs(settings.example)))

    def add(self, runner: Runner) -> None:
        """Let ``runner`` run its mode from now on."""
        self.by_mode[runner.mode] = runner

    def aim(self, objective: Objective) -> None:
        """Have plans made for ``objective`` from now on; returns at once."""
        self._objective = objective
        for runner in list(self.by_mode.values()):
            runner.aim(objective)

    def follow(self, policy: PromisePolicy, inputs: Callable[[], Sequence[torch.Tensor]]) -> Promise:
        """Request a promise from the server and follow its slots from now on.

        Raises:
            BadInput: there is no server.
        """
        server = self.server
        if server is None or self._client is None:
            raise BadInput("a bound on accuracy is promised by a server", remedy="start with server:=host:port")
        promise = Promise(policy, self._client, lambda: server.handle(specs_of(inputs())))
        server.follow(promise)
        return promise

    def state(self) -> Dict[str, str]:
        """Each mode's state in words."""
        return {mode.value: runner.state() for mode, runner in self.by_mode.items()}

    def close(self) -> None:
        """End what learns a split, and what computes."""
        self.make_split = None
        for runner in list(self.by_mode.values()):
            runner.close()
        self.local.executor.close()


def executor_of(
    module: nn.Module,
    device: Union[str, torch.device],
    companion: Optional[ExecutorProcess],
    name: str,
    options: Mapping[str, Scalar],
    engine: str,
) -> ModuleExecutor:
    """Make what runs the model ``name`` as a whole; arguments as :class:`ModuleSettings`."""
    if companion is not None:
        return CompanionModule(
            module, companion, module.path if isinstance(module, ByEngine) else name, options, engine
        )
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
    from edge_offload.companion.half import CompanionPlace
    from edge_offload.modes.split.robot.runner import SplitRunner
    from edge_offload.modes.split.unmodified.other_torch import AnyTorchSource
    from edge_offload.split.runtime.places import place_of

    companion = executor.process if isinstance(executor, CompanionModule) else None
    place = place_of(executor.device) if companion is None else CompanionPlace(companion)
    return SplitRunner(AnyTorchSource(*source), place=place, **link)
