"""Model replicas: whole models on the device, built from an allow-list, compared by the hash of their weights."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Protocol, Set, Tuple

import torch
from torch import nn

from edge_offload.errors import BadInput, EdgeOffloadError, Refused, RemoteError
from edge_offload.execute.engines.base import EAGER, ENGINE, FASTEST_EXACT
from edge_offload.execute.engines.table import engine_for_model
from edge_offload.execute.module import ModuleExecutor, state_versions
from edge_offload.execute.tensors import TensorSpec
from edge_offload.models import registry
from edge_offload.models.entry import Scalar

ReplicaKey = Tuple[str, Tuple[Tuple[str, Scalar], ...]]
MAX_OPTION_CHARACTERS = 256


@dataclass
class Replica:
    """One model on the device.

    Attributes:
        name, options: what it was built from.
        executor: runs it; only the thread that owns the device may.
        state_hash: sha256 of its weights.
        warm: input shapes that it has computed once.
    """

    name: str
    options: Dict[str, Scalar]
    executor: ModuleExecutor
    state_hash: str
    warm: Set[Tuple[TensorSpec, ...]] = field(default_factory=set)

    @property
    def key(self) -> ReplicaKey:
        """Key among the replicas of a store."""
        return _make_key(self.name, self.options)

    def warm_up(self, specs: Tuple[TensorSpec, ...]) -> float:
        """Compute once on zeros and return the seconds; 0 when these shapes are warm already.

        Raises:
            Refused: the model writes to its own state while it computes, so that robot and server would drift apart.
            RemoteError: the model cannot compute inputs of these shapes.
        """
        if specs in self.warm:
            return 0.0
        before = state_versions(self.executor.placed)
        started = time.monotonic()
        try:
            self.executor.run_module([spec.zeros() for spec in specs])
        except EdgeOffloadError:
            raise
        except Exception as error:
            raise RemoteError(
                f"model {self.name!r} fails on {', '.join(map(str, specs)) or 'no input'}: "
                f"{type(error).__name__}: {error}",
                remedy="check the shapes that the robot sends",
            ) from error
        if state_versions(self.executor.placed) != before:
            raise Refused(
                f"model {self.name!r} changes its own buffers while it computes",
                remedy="run it in mode local, or make it a function of its inputs",
            )
        if len(self.warm) >= 256:
            self.warm.clear()
        self.warm.add(specs)
        return time.monotonic() - started


class EmulatedDevice(Protocol):
    """A device of another distribution, which takes the time of a table."""

    @property
    def name(self) -> str:
        """What it is called wherever results are told of."""

    def make_executor(self, module: nn.Module) -> ModuleExecutor:
        """Return what computes ``module`` on it."""


class ReplicaStore:
    """Builds replicas and stores them. Thread-safe.

    Args:
        device: where replicas live.
        allow: models of the user's own that peers may ask for by name: factories (``package.module:factory``) and
            TorchScript files, for which a robot asks by the file's name alone.
        overrides: options that replace what a peer says, by model name (paths of this machine, say).
        engine: what computes them, as :func:`edge_offload.execute.engines.table.engine_for_model` takes it.
        max_replicas: replicas kept; the one that was used longest ago makes room when no robot has it open.
        emulated: they only take its time, in place of what ``engine`` says.
    """

    def __init__(
        self,
        device: torch.device,
        allow: Iterable[str] = (),
        overrides: Optional[Mapping[str, Mapping[str, Scalar]]] = None,
        max_replicas: int = 8,
        engine: str = FASTEST_EXACT,
        emulated: Optional[EmulatedDevice] = None,
    ) -> None:
        self.device, self._engine, self._emulated = device, engine, emulated
        engine_for_model(engine, "")  # it can be read
        #: What builds each, by the name that a robot asks for.
        self._allow: Dict[str, str] = {}
        for name in sorted(set(allow)):
            registry.check_user_model(name)
            other = self._allow.setdefault(registry.name_on_wire(name), name)
            if other != name:
                raise BadInput(f"{name} and {other} have the same name for a robot", remedy="rename one of the files")
        self._overrides = {name: dict(options) for name, options in (overrides or {}).items()}
        self._max_replicas = max_replicas
        self._replicas: OrderedDict[ReplicaKey, Replica] = OrderedDict()
        self._users: Dict[int, int] = {}
        self._building = threading.Lock()
        self._lock = threading.Lock()

    def engine_states(self) -> Dict[str, Tuple[str, bool]]:
        """Return each replica's engine state, in words, and True if it needs attention."""
        with self._lock:
            replicas = list(self._replicas.values())
        return {replica.name: replica.executor.engine_state() for replica in replicas}

    def list_engines(self) -> List[str]:
        """Return the engines that compute the loaded models, or will once built; each once."""
        with self._lock:
            replicas = list(self._replicas.values())
        return list(dict.fromkeys(replica.executor.engine_facts().get(ENGINE, EAGER) for replica in replicas))

    def engine_of(self, model: str) -> str:
        """Return the engine for a model of this name."""
        return engine_for_model(self._engine, model, FASTEST_EXACT)

    def make_key(self, name: Any, options: Any) -> ReplicaKey:
        """:attr:`Replica.key` of what :meth:`acquire_replica` would return.

        Raises:
            Refused, BadInput: it would not.
        """
        return _make_key(name, self._check_options(name, options))

    def acquire_replica(self, name: Any, options: Any, expected_hash: Optional[str]) -> Replica:
        """Return the replica of model ``name``, built if there is none; return it with :meth:`release_replica`.

        Args:
            name: of the registry, as the robot sent it.
            options: of the model, as the robot sent them.
            expected_hash: :func:`edge_offload.models.registry.state_hash` of the robot's model; None skips the check.

        Raises:
            Refused: the name is not allowed, the weights differ, or there is no room for another model.
            BadInput: malformed options.
            RemoteError: building the model failed.
        """
        options = self._check_options(name, options)
        key = _make_key(name, options)
        with self._building:
            with self._lock:
                replica = self._replicas.get(key)
                if replica is None:
                    self._make_room()
            if replica is None:
                # seconds of work: not under the lock that release() needs
                replica = self._build_replica(name, options)
            if expected_hash is not None and expected_hash != replica.state_hash:
                raise Refused(
                    f"the weights of model {name!r} differ: {expected_hash} on the robot, "
                    f"{replica.state_hash} on the server",
                    remedy="install the same weights and the same release on both sides",
                )
            with self._lock:
                self._replicas[key] = replica
                self._replicas.move_to_end(key)
                self._users[id(replica)] = self._users.get(id(replica), 0) + 1
        return replica

    def build_name(self, replica: Replica) -> str:
        """Return the name that builds it here: of a file, its path."""
        return self._allow.get(replica.name, replica.name)

    def release_replica(self, replica: Replica) -> None:
        """Count one user less."""
        with self._lock:
            self._users[id(replica)] -= 1

    def _check_options(self, name: Any, options: Any) -> Dict[str, Scalar]:
        if not isinstance(name, str) or len(name) > MAX_OPTION_CHARACTERS:
            raise BadInput("a model is opened by its name")
        if registry.is_user_model(name):
            if name not in self._allow:
                raise Refused(
                    f"model {name!r} is not allowed on this server", remedy=f"start it with: serve --allow {name}"
                )
        elif name not in registry.entries():
            raise Refused(
                f"this server knows no model {name[:64]!r}", remedy=f"use one of {', '.join(registry.entries())}"
            )
        most = 32
        if not isinstance(options, Mapping) or len(options) > most:
            raise BadInput(f"options of model {name!r} are a map of at most {most} scalars")
        overrides = self._overrides.get(name, {})
        # an own factory says nothing of its options: there, whatever looks like a path counts as one
        paths = (registry.WEIGHTS,) if registry.is_user_model(name) else registry.entries()[name].path_options
        merged = {**options, **overrides}
        for option, value in merged.items():
            if not isinstance(value, (bool, int, float, str)) or len(str(option) + str(value)) > MAX_OPTION_CHARACTERS:
                raise BadInput(f"model {name!r}: option {str(option)[:64]!r} is not a short scalar")
            names_file = option in paths or (isinstance(value, str) and _is_path(value))
            if names_file and value != "" and option not in overrides:
                raise Refused(
                    f"model {name!r}: option {option}={value!r} names a file; a robot names no files of the server",
                    remedy=f"start the server with: serve --option {name}.{option}=PATH",
                )
        return merged

    def _make_room(self) -> None:
        while len(self._replicas) >= self._max_replicas:
            idle = [key for key, replica in self._replicas.items() if not self._users.get(id(replica))]
            if not idle:
                raise Refused(
                    f"full: {len(self._replicas)} models are open on this server",
                    remedy="close one, or start the server with a larger --max-models",
                )
            self._users.pop(id(self._replicas.pop(idle[0])), None)

    def _build_replica(self, name: str, options: Dict[str, Scalar]) -> Replica:
        try:
            module = registry.build_module(self._allow.get(name, name), **options)
            state_hash = registry.state_hash(module)
            return Replica(name, options, self._make_executor(name, module), state_hash)
        except EdgeOffloadError:
            raise
        except Exception as error:
            raise RemoteError(f"cannot build model {name!r} on the server: {type(error).__name__}: {error}") from error

    def _make_executor(self, name: str, module: nn.Module) -> ModuleExecutor:
        if self._emulated is not None:
            return self._emulated.make_executor(module)
        return ModuleExecutor(module, self.device, self.engine_of(name))


def _make_key(name: str, options: Mapping[str, Scalar]) -> ReplicaKey:
    return name, tuple(sorted(options.items()))


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.startswith((".", "~"))
