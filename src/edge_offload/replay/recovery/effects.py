"""Effects of segments on storages and on random generators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Set, Tuple

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.ir.operators import Symbol
from edge_offload.ir.trace.calls import ALLOC, NEW, RESTORE, SEED, STATE, UPLOAD, BoundOperator
from edge_offload.replay.signatures import Definition, SignatureTable, TableCall


@dataclass(frozen=True)
class Effect:
    """Effects of a call: storages that it writes, random generators that it uses, payloads that it takes.

    Storages are given by position. Of a call that is not known here it is assumed that it writes to all.
    """

    written: Tuple[int, ...] = ()
    generators: Tuple[int, ...] = ()
    hosts: int = 0
    unknown: bool = False


class Effects:
    """Works out what calls do; those that differ in integers alone do the same."""

    def __init__(self, signatures: SignatureTable) -> None:
        self.signatures = signatures
        self._cached: Dict[int, Effect] = {}

    def effect_of(self, call: TableCall) -> Effect:
        """Effect of ``call``, one of ``signatures``."""
        effect = self._cached.get(call.skeleton)
        if effect is None:
            effect = _work_out_effect(call)
            if not effect.generators:  # their numbers are integers, too
                self._cached[call.skeleton] = effect
        return effect


@dataclass(frozen=True)
class SegmentUse:
    """Effects of a segment on storages (by their canonical numbers) and on random generators.

    Attributes:
        made: those that it allocates, each with the key of the allocation.
        uploads: storage, key, and number of the payload.
        late: those of the uploads' storages that something else in the segment uses before an upload.
        computed: those to which anything else writes.
        generators: each that it uses, as −1, −2, …: whether it sets its state before it uses it.
    """

    definition: Definition
    made: Dict[int, bytes] = field(default_factory=dict)
    uploads: List[Tuple[int, bytes, int]] = field(default_factory=list)
    late: Set[int] = field(default_factory=set)
    computed: Set[int] = field(default_factory=set)
    generators: Dict[int, bool] = field(default_factory=dict)

    @staticmethod
    def of_definition(definition: Definition, effects: Effects) -> SegmentUse:
        """Collects the effects of a segment's calls."""
        use = SegmentUse(definition)
        following: Optional[int] = 0  # canonical number of the next new storage, as long as it is certain
        used: Set[int] = set()
        payload = 0
        for call, references in definition.calls_with_storages():
            if following is not None:
                following = max(following, max(references, default=-1) + 1)
            effect = effects.effect_of(call)
            if effect.unknown:
                use.computed.update(references)
                following = None
            for generator in effect.generators:
                use.generators.setdefault(-1 - generator, call.name in (SEED, RESTORE))
            if call.name == UPLOAD:
                use.uploads.append((references[0], call.key, payload))
                use.late.update(used.intersection(references))
            else:
                used.update(references)
                use.computed.update(references[number] for number in effect.written)
            payload += effect.hosts
            if call.name == ALLOC and following is not None:
                use.made[following] = call.key
                following += 1
            elif not call.is_special and following is not None:
                following = following + _count_new_storages(call) if call.claimed is not None else None
        return use


def _work_out_effect(call: TableCall) -> Effect:
    try:
        entry = BoundOperator(call.name, call.key, torch.device("cpu"))
    except EdgeOffloadError:
        return Effect(generators=(0,), unknown=True)
    if entry.refused is not None:
        return Effect(generators=(0,), hosts=len(entry.hosts), unknown=True)
    return Effect(tuple(entry.written), tuple(_generators_used(entry)), len(entry.hosts))


def _generators_used(entry: BoundOperator) -> List[int]:
    if entry.name in (SEED, STATE, RESTORE):
        return [int(entry.operator.args[0])]  # type: ignore[arg-type]
    if not entry.random:
        return []
    numbers = [int(leaf.name) for leaf in entry.operator.args if isinstance(leaf, Symbol) and leaf.kind == "generator"]
    return numbers or [0]


def _count_new_storages(call: TableCall) -> int:
    """Counts the new storages of a call whose results are given."""
    outs = [out for kind, what in call.claimed or () for out in ([what] if kind == "t" else what)]
    return sum(out[0] == NEW for out in outs)
