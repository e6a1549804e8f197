"""Robot's half of a split plan, computed in the executor process; only rows of tensors cross between the processes."""

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
    """Device whose halves of plans the executor process computes.

    Args:
        process: the executor process.
        recorded: true: networks come from recordings and are sent to the process. False: the process traces its open
            model.
    """

    def __init__(self, process: ExecutorProcess, recorded: bool = False) -> None:
        super().__init__(process.device)
        self._process, self._recorded = process, recorded
        #: By ``id`` of a plan: the plan (kept so that its ``id`` stays unique), its number, its sequence's hash.
        self._plan_entries: Dict[int, Tuple[ReadyPlan, int, str]] = {}
        #: By the sequence's hash.
        self._networks: Dict[str, TracedNetwork] = {}
        self._counter = itertools.count(1)

    def share_values(self, network: TracedNetwork) -> Mapping[int, torch.Tensor]:
        """Return an empty mapping: the process has its own tensors of the values that both sides share."""
        return {}

    def measure_profile(
        self, network: TracedNetwork, repeats: int, report: Callable[[str], None] = lambda what: None
    ) -> Profile:
        report("it is being timed in the executor process")
        identity = sequence_hash(network.program.sequence)
        self._networks[identity] = network
        self._send_network(identity)
        facts, _ = self._process.run_operation("advance", "profile", sequence=identity, repeats=repeats)

        def copy_to_device(rows: torch.Tensor) -> None:
            self._process.run_operation("take", "copy", [rows])

        def copy_from_device(nbytes: int) -> None:
            self._process.run_operation("fetch", "copy", nbytes=nbytes)

        return replace(Profile.from_record(facts["profile"]), copies=time_copies(copy_to_device, copy_from_device))

    def make_half(
        self, ready: ReadyPlan, side: Side, located: LocalityMap, shared: Mapping[int, torch.Tensor]
    ) -> PieceHalf:
        """Start an inference with ``ready`` in the process, which receives the plan on first use."""
        assert side is Side.ROBOT
        _, number, identity = self._plan_entries.get(id(ready)) or self._assign_number(ready, located)
        run = next(self._counter)
        start_facts: Dict[str, Any] = {"number": number, "sequence": identity, "run": run}
        if not self._process.run_operation("advance", "begin", **start_facts)[0]["known"]:  # it has no such plan
            plan_facts: Dict[str, Any] = {"number": number, "sequence": identity, "text": ready.plan.to_json()}
            facts, _ = self._process.run_operation("advance", "plan", **plan_facts)
            if not facts["known"]:  # nor the network: a restart
                self._send_network(identity)
                self._process.run_operation("advance", "plan", **plan_facts)
            self._process.run_operation("advance", "begin", **start_facts)
        return CompanionHalf(self._process, located, run)

    def _send_network(self, identity: str) -> None:
        """Have the process trace its open model, or send it the recorded network."""
        network = self._networks[identity]
        if not self._recorded:
            self._process.run_operation("advance", "trace", network.inputs, sequence=identity)
            return
        constants = network.program.constants
        encoded = torch.frombuffer(bytearray(wire.encode(network.program.sequence)), dtype=torch.uint8)
        record_facts: Dict[str, Any] = {"sequence": identity, "name": network.name, "digests": list(constants)}
        self._process.run_operation(
            "advance", "record", [encoded, *network.inputs, *constants.values()], **record_facts
        )

    def _assign_number(self, ready: ReadyPlan, located: LocalityMap) -> Tuple[ReadyPlan, int, str]:
        if len(self._plan_entries) > 1024:
            self._plan_entries.clear()
        entry = self._plan_entries[id(ready)] = (ready, next(self._counter), sequence_hash(located.sequence))
        return entry


class CompanionHalf(PieceHalf):
    """Robot's half of one inference; its values are in the executor process."""

    def __init__(self, process: ExecutorProcess, located: LocalityMap, run: int) -> None:
        super().__init__(located, {}, {})
        self._process, self._run = process, run
        self._seconds: Optional[float] = None

    def take_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        self._process.run_operation("take", "take", [tensor], run=self._run, number=number, low=low)

    def run_block(self, steps: Sequence[Tuple[int, int, int]], unused: Iterable[Sequence[int]]) -> None:
        """Compute the next block; the process reads ``steps`` and ``unused`` from its copy of the plan."""
        self._process.run_operation("advance", "advance", run=self._run)

    def wait_blocks(self) -> None:
        facts, _ = self._process.run_operation("advance", "catch_up", run=self._run)
        self._seconds = facts["seconds"]

    def fetch_rows(self, number: int, low: int, high: int, blocks: int) -> torch.Tensor:
        facts, (rows,) = self._process.run_operation(
            "fetch", "fetch", run=self._run, number=number, low=low, high=high, blocks=blocks
        )
        self._seconds = facts["seconds"]
        return rows

    def device_seconds(self) -> Optional[float]:
        """Return the compute time in seconds, as of the last :meth:`fetch_rows` or :meth:`wait_blocks`."""
        return self._seconds
