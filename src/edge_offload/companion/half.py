"""The robot's half of a plan in the process beside this one: rows go there and come back, and nothing else does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.companion.process import ExecutorProcess
from edge_offload.ir import sequence_hash, wire
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.network import Network
from edge_offload.split.model.plan import Side
from edge_offload.split.runtime.half import PieceHalf
from edge_offload.split.runtime.places import Place
from edge_offload.split.runtime.profile import Profile, timed_copies
from edge_offload.split.runtime.tables import ReadyPlan


class PlaceBeside(Place):
    """Halves of the network that the process has open.

    Args:
        process: who computes.
        recorded: networks are records, which the process is given whole; else it traces the model that it has open.
    """

    def __init__(self, process: ExecutorProcess, recorded: bool = False) -> None:
        super().__init__(process.device)
        self._process, self._recorded = process, recorded
        self._numbers: Dict[int, Tuple[ReadyPlan, int, str]] = {}
        self._networks: Dict[str, Network] = {}
        self._next = itertools.count(1)

    def shared(self, network: Network) -> Mapping[int, torch.Tensor]:
        """See :class:`Place`: the process has made its own."""
        return {}

    def measure(self, network: Network, repeats: int, tell: Callable[[str], None] = lambda what: None) -> Profile:
        """See :class:`Place`."""
        tell("it is being timed in the executor process")
        identity = sequence_hash(network.program.sequence)
        self._networks[identity] = network
        self._introduce(identity)
        facts, _ = self._process.ask("advance", "profile", sequence=identity, repeats=repeats)

        def there(rows: torch.Tensor) -> None:
            self._process.ask("take", "copy", [rows])

        def back(nbytes: int) -> None:
            self._process.ask("fetch", "copy", nbytes=nbytes)

        return replace(Profile.from_record(facts["profile"]), copies=timed_copies(there, back))

    def half(self, ready: ReadyPlan, side: Side, located: LocalityMap, shared: Mapping[int, torch.Tensor]) -> PieceHalf:
        """See :class:`Place`."""
        assert side is Side.ROBOT
        _, number, identity = self._numbers.get(id(ready)) or self._number(ready, located)
        run = next(self._next)
        begun: Dict[str, Any] = {"number": number, "sequence": identity, "run": run}
        if not self._process.ask("advance", "begin", **begun)[0]["known"]:
            told: Dict[str, Any] = {"number": number, "sequence": identity, "text": ready.plan.to_json()}
            if not self._process.ask("advance", "plan", **told)[0]["known"]:  # it was started again
                self._introduce(identity)
                self._process.ask("advance", "plan", **told)
            self._process.ask("advance", "begin", **begun)
        return HalfBeside(self._process, located, run)

    def _introduce(self, identity: str) -> None:
        network = self._networks[identity]
        if not self._recorded:
            self._process.ask("advance", "trace", network.inputs, sequence=identity)
            return
        constants = network.program.constants
        encoded = torch.frombuffer(bytearray(wire.encode(network.program.sequence)), dtype=torch.uint8)
        told: Dict[str, Any] = {"sequence": identity, "name": network.name, "digests": list(constants)}
        self._process.ask("advance", "record", [encoded, *network.inputs, *constants.values()], **told)

    def _number(self, ready: ReadyPlan, located: LocalityMap) -> Tuple[ReadyPlan, int, str]:
        if len(self._numbers) > 1024:
            self._numbers.clear()
        found = self._numbers[id(ready)] = (ready, next(self._next), sequence_hash(located.sequence))
        return found


class HalfBeside(PieceHalf):
    """See :class:`PieceHalf`: the values of one inference are in the process."""

    def __init__(self, process: ExecutorProcess, located: LocalityMap, run: int) -> None:
        super().__init__(located, {}, {})
        self._process, self._run = process, run
        self._seconds: Optional[float] = None

    def take(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """See :class:`PieceHalf`."""
        self._process.ask("take", "take", [tensor], run=self._run, number=number, low=low)

    def advance(self, steps: Sequence[Tuple[int, int, int]], unused: Iterable[Sequence[int]]) -> None:
        """See :class:`PieceHalf`: the process knows the plan's blocks."""
        self._process.ask("advance", "advance", run=self._run)

    def catch_up(self) -> None:
        """See :class:`PieceHalf`."""
        facts, _ = self._process.ask("advance", "catch_up", run=self._run)
        self._seconds = facts["seconds"]

    def fetch(self, number: int, low: int, high: int, blocks: int) -> torch.Tensor:
        """See :class:`PieceHalf`."""
        facts, (rows,) = self._process.ask(
            "fetch", "fetch", run=self._run, number=number, low=low, high=high, blocks=blocks
        )
        self._seconds = facts["seconds"]
        return rows

    def seconds(self) -> Optional[float]:
        """See :class:`PieceHalf`."""
        return self._seconds
