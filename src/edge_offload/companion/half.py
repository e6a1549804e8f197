"""The robot's half of a plan, computed in the executor process: only rows of tensors are passed to and fro."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.companion.process import ExecutorProcess
from edge_offload.ir import sequence_hash, wire
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side
from edge_offload.split.runtime.half import PieceHalf
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.profile import Profile, time_copies
from edge_offload.split.runtime.tables import ReadyPlan


class CompanionPlace(SplitDevice):
    """Place whose halves are computed by the executor process.

    Args:
        process: the executor process.
        recorded: networks are records, which are sent to the process; else it traces the model that it has open.
    """

    def __init__(self, process: ExecutorProcess, recorded: bool = False) -> None:
        super().__init__(process.device)
        self._process, self._recorded = process, recorded
        self._numbers: Dict[int, Tuple[ReadyPlan, int, str]] = {}
        self._networks: Dict[str, TracedNetwork] = {}
        self._counter = itertools.count(1)

    def share_values(self, network: TracedNetwork) -> Mapping[int, torch.Tensor]:
        """Return nothing: the process has shared tensors of its own."""
        return {}

    def measure_profile(
        self, network: TracedNetwork, repeats: int, tell: Callable[[str], None] = lambda what: None
    ) -> Profile:
        tell("it is being timed in the executor process")
        identity = sequence_hash(network.program.sequence)
        self._networks[identity] = network
        self._send_network(identity)
        facts, _ = self._process.request("advance", "profile", sequence=identity, repeats=repeats)

        def copy_to_device(rows: torch.Tensor) -> None:
            self._process.request("take", "copy", [rows])

        def copy_from_device(nbytes: int) -> None:
            self._process.request("fetch", "copy", nbytes=nbytes)

        return replace(Profile.from_record(facts["profile"]), copies=time_copies(copy_to_device, copy_from_device))

    def make_half(
        self, ready: ReadyPlan, side: Side, located: LocalityMap, shared: Mapping[int, torch.Tensor]
    ) -> PieceHalf:
        """Start an inference with ``ready`` in the process, which receives the plan on first use."""
        assert side is Side.ROBOT
        _, number, identity = self._numbers.get(id(ready)) or self._assign_number(ready, located)
        run = next(self._counter)
        start_facts: Dict[str, Any] = {"number": number, "sequence": identity, "run": run}
        if not self._process.request("advance", "begin", **start_facts)[0]["known"]:
            plan_facts: Dict[str, Any] = {"number": number, "sequence": identity, "text": ready.plan.to_json()}
            if not self._process.request("advance", "plan", **plan_facts)[0]["known"]:  # the process was restarted
                self._send_network(identity)
                self._process.request("advance", "plan", **plan_facts)
            self._process.request("advance", "begin", **start_facts)
        return CompanionHalf(self._process, located, run)

    def _send_network(self, identity: str) -> None:
        network = self._networks[identity]
        if not self._recorded:
            self._process.request("advance", "trace", network.inputs, sequence=identity)
            return
        constants = network.program.constants
        encoded = torch.frombuffer(bytearray(wire.encode(network.program.sequence)), dtype=torch.uint8)
        record_facts: Dict[str, Any] = {"sequence": identity, "name": network.name, "digests": list(constants)}
        self._process.request("advance", "record", [encoded, *network.inputs, *constants.values()], **record_facts)

    def _assign_number(self, ready: ReadyPlan, located: LocalityMap) -> Tuple[ReadyPlan, int, str]:
        if len(self._numbers) > 1024:
            self._numbers.clear()
        entry = self._numbers[id(ready)] = (ready, next(self._counter), sequence_hash(located.sequence))
        return entry


class CompanionHalf(PieceHalf):
    """Half of one inference, whose values are in the executor process."""

    def __init__(self, process: ExecutorProcess, located: LocalityMap, run: int) -> None:
        super().__init__(located, {}, {})
        self._process, self._run = process, run
        self._seconds: Optional[float] = None

    def take_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        self._process.request("take", "take", [tensor], run=self._run, number=number, low=low)

    def run_block(self, steps: Sequence[Tuple[int, int, int]], unused: Iterable[Sequence[int]]) -> None:
        """Compute the next block; the process reads ``steps`` and ``unused`` from its copy of the plan."""
        self._process.request("advance", "advance", run=self._run)

    def wait_blocks(self) -> None:
        facts, _ = self._process.request("advance", "catch_up", run=self._run)
        self._seconds = facts["seconds"]

    def fetch_rows(self, number: int, low: int, high: int, blocks: int) -> torch.Tensor:
        facts, (rows,) = self._process.request(
            "fetch", "fetch", run=self._run, number=number, low=low, high=high, blocks=blocks
        )
        self._seconds = facts["seconds"]
        return rows

    def device_seconds(self) -> Optional[float]:
        """Return the seconds computed, as of the last :meth:`fetch_rows` or :meth:`wait_blocks`."""
        return self._seconds
