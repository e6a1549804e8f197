"""The modes of one module: what runs each of them, and why one cannot run now."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from edge_offload.companion.module import ModuleBeside
from edge_offload.companion.process import ExecutorProcess
from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.engines.table import chosen
from edge_offload.execute.module import ByEngine, ModuleExecutor, as_inputs
from edge_offload.execute.tensors import specs_of
from edge_offload.link.estimate.estimator import LinkReading
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
from edge_offload.timing import Expected


class ModeRunners:
    """What runs each mode of one module. Thread-safe.

    Args:
        name, module, client, settings: as :class:`~edge_offload.runtime.module.OffloadedModule` has them.
        silent: why no remote mode can begin now, in words; None: there is no such reason.

    Attributes:
        local: the robot's own.
        server: None without a server.

    Raises:
        BadInput: a slowdown below 1, or no such engine.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        client: Optional[Client],
        settings: ModuleSettings,
        silent: Callable[[], Optional[str]],
    ) -> None:
        self._name, self._client, self._silent = name, client, silent
        options, slowdown = settings.options or {}, settings.robot_slowdown
        engine = EAGER if settings.exact else chosen(settings.engine, name)
        executor = executor_of(module, settings.device, settings.beside, name, options, engine)
        self.local = LocalRunner(executor, slowdown)
        self.server: Optional[ServerRunner] = None
        self._objective: Optional[Objective] = None
        self._make_split: Optional[Callable[[], Runner]] = None
        self._runners: Dict[Mode, Runner] = {Mode.LOCAL: self.local}
        if client is None:
            return
        hashed = functools.partial(registry.state_hash, executor.module)
        how = (settings.codec, settings.exact, lambda: executor.engine)
        self.server = ServerRunner(name, options, client, hashed, executor.fingerprint(), *how)
        self.add(self.server)
        source = (name, options, executor.module, hashed, self.local.run)
        link = {"client": client, "slowdown": slowdown, "power": settings.powers}
        if not isinstance(module, ByEngine):
            self._make_split = made_once(lambda: split_runner(executor, *source, objective=self._objective, **link))
        if settings.example is not None:
            self.server.prepare(specs_of(as_inputs(settings.example)))

    def __getitem__(self, mode: Mode) -> Runner:
        return self._runners[mode]

    def get(self, mode: Mode) -> Optional[Runner]:
        """What runs ``mode``, if anything does yet."""
        return self._runners.get(mode)

    def __len__(self) -> int:
        return len(self._runners)

    def add(self, runner: Runner) -> None:
        """Let ``runner`` run its mode from now on."""
        self._runners[runner.mode] = runner

    def modes(self) -> Tuple[Mode, ...]:
        """The modes that can be asked for."""
        return tuple(self._runners)

    def offers(self, mode: Mode) -> bool:
        """Whether ``mode`` can be asked for at all here; ``split`` is prepared when it first is."""
        return mode in self._runners or (mode is Mode.SPLIT and self._make_split is not None)

    def unavailable_reason(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Why ``mode`` cannot run ``inputs`` now, in words; None when it can. Never blocks."""
        if mode is Mode.LOCAL:
            return None  # nothing ever keeps the robot from computing by itself
        if mode is Mode.SPLIT and mode not in self._runners and self._make_split is not None:
            self.add(self._make_split())  # tracing and planning are costly: only for who asks for it
        runner = self._runners.get(mode)
        if runner is None:
            return f"mode {mode} is not available for model {self._name!r}"
        return self._silent() or runner.unavailable_reason(inputs)

    def planned(self, mode: Mode, inputs: Sequence[torch.Tensor], reading: LinkReading) -> Optional[Expected]:
        """What the plan that is in force for such a link is expected to take; None where there are no plans."""
        runner = self._runners.get(mode)
        if runner is None or not runner.has_plans or not inputs or reading.uplink <= 0:
            return None
        planned = runner.planned(inputs)
        return None if planned is None else planned.expected(reading.uplink)

    def aim(self, objective: Objective) -> None:
        """Have plans made for ``objective`` from now on; returns at once."""
        self._objective = objective
        for runner in list(self._runners.values()):
            runner.aim(objective)

    def follow(self, policy: PromisePolicy, inputs: Callable[[], Sequence[torch.Tensor]]) -> Promise:
        """Ask the server for a promise and follow its turns from now on.

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
        return {mode.value: runner.state() for mode, runner in self._runners.items()}

    def close(self) -> None:
        """End what learns a split, and what computes."""
        self._make_split = None
        for runner in list(self._runners.values()):
            runner.close()
        self.local.executor.close()


def executor_of(
    module: nn.Module,
    device: Union[str, torch.device],
    beside: Optional[ExecutorProcess],
    name: str,
    options: Mapping[str, Scalar],
    engine: str,
) -> ModuleExecutor:
    """What runs the model ``name`` as a whole; arguments as :class:`ModuleSettings`."""
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
    from edge_offload.modes.split.robot.opening import ModelSource
    from edge_offload.modes.split.robot.runner import SplitRunner
    from edge_offload.split.runtime.places import place_of

    beside = executor.process if isinstance(executor, ModuleBeside) else None
    place = place_of(executor.device) if beside is None else PlaceBeside(beside)
    return SplitRunner(ModelSource(*source), place=place, **link)
