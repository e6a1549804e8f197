"""Operators in order, with inputs, constants and what the program reads back: the OperatorSequence."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, Set, Tuple

from edge_offload.errors import BadInput
from edge_offload.ir.operators import Operator
from edge_offload.ir.values import Kind, Value

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class OperatorSequence:
    """One inference: values, operators in order, inputs and outputs.

    Attributes:
        values: every value by number.
        inputs: numbers of the INPUT values, in the order in which they are given.
        constants: number of each CONSTANT value -> hex digest of its content (:func:`.build.tensor_digest`).
        operators: the calls, in the order in which they were issued.
        outputs: numbers of the values that the program reads on the host, in order.
        live_outs: numbers of the values that must outlive the inference on the device, without being read.
        rebinds: pairs (INPUT number, number): after the inference, that state is replaced by that value.
    """

    values: Mapping[int, Value]
    inputs: Tuple[int, ...]
    constants: Mapping[int, str]
    operators: Tuple[Operator, ...]
    outputs: Tuple[int, ...]
    live_outs: Tuple[int, ...] = ()
    rebinds: Tuple[Tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.operators)

    def validate(self) -> OperatorSequence:
        """Check that the sequence means something, and return it.

        Every value is defined exactly once and before its first use, kinds agree with where values are listed,
        writes and aliases name arguments of the call, and constants are never written.

        Raises:
            BadInput: naming the operator and the value.
        """
        self._check_lists()
        storages = {self.values[number].storage for number in self.constants} - {None}
        defined: Set[int] = set(self.inputs) | set(self.constants)
        for index, operator in enumerate(self.operators):
            operator.check_names()
            where = f"operator {index} ({operator.name})"
            reads = set(operator.input_ids())
            self._require_defined(reads, defined, f"{where} uses")
            for number in operator.mutates:
                if number not in reads:
                    raise BadInput(f"{where} writes value {number}, which is not among its arguments")
                value = self.values[number]
                if value.kind is Kind.CONSTANT or value.storage in storages:
                    raise BadInput(f"{where} writes constant {number}", remedy="list state that is written as input")
            for position, number in operator.aliases:
                if number not in reads or not 0 <= position < len(operator.outputs):
                    raise BadInput(f"{where} has an alias of output {position} and value {number}, which it lacks")
            for number in operator.output_ids():
                if number in defined:
                    raise BadInput(f"{where} defines value {number} a second time")
                if number not in self.values or self.values[number].kind is not Kind.INTERMEDIATE:
                    raise BadInput(f"{where} makes value {number}, which is not listed as intermediate")
                defined.add(number)
        orphans = set(self.values) - defined
        if orphans:
            raise BadInput(f"values {sorted(orphans)[:8]} are listed and never defined")
        self._require_defined(self.outputs, defined, "the outputs name")
        self._require_defined(self.live_outs, defined, "the live-outs name")
        for state, number in self.rebinds:
            self._require_defined((number,), defined, "a rebind names")
            if state not in self.inputs:
                raise BadInput(f"rebind of value {state}, which is not an input")
        return self

    def _check_lists(self) -> None:
        for number, value in self.values.items():
            if value.id != number:
                raise BadInput(f"value {value.id} is listed under number {number}")
        if len(set(self.inputs)) != len(self.inputs):
            raise BadInput("an input is listed twice")
        for kind, numbers in ((Kind.INPUT, set(self.inputs)), (Kind.CONSTANT, set(self.constants))):
            listed = {number for number, value in self.values.items() if value.kind is kind}
            if listed != numbers:
                raise BadInput(f"values of kind {kind.value} and the list of {kind.value}s differ in "
                               f"{sorted(listed ^ numbers)[:8]}")  # fmt: skip
        for number, digest in self.constants.items():
            if not _DIGEST.fullmatch(digest):
                raise BadInput(f"constant {number}: {digest!r} is not a digest of 64 hexadecimal digits")

    @staticmethod
    def _require_defined(numbers: Iterable[int], defined: Set[int], user: str) -> None:
        missing = [number for number in numbers if number not in defined]
        if missing:
            raise BadInput(f"{user} value {missing[0]} before anything defines it")

    @property
    def is_functional(self) -> bool:
        """True if no operator overwrites anything (views may still share bytes)."""
        return not any(operator.mutates for operator in self.operators)

    def producer_indices(self) -> Dict[int, int]:
        """Number of each intermediate value -> index of the operator that makes it."""
        return {number: index for index, operator in enumerate(self.operators) for number in operator.output_ids()}

    def consumer_indices(self) -> Dict[int, List[int]]:
        """Number of each value -> indices of the operators that take it, ascending."""
        indices: Dict[int, List[int]] = {number: [] for number in self.values}
        for index, operator in enumerate(self.operators):
            for number in operator.input_ids():
                indices[number].append(index)
        return indices

    def retained_ids(self) -> Tuple[int, ...]:
        """Values that must exist after the last operator: host reads, live-outs, new state."""
        return tuple(dict.fromkeys((*self.outputs, *self.live_outs, *(number for _, number in self.rebinds))))

    def without_dead_code(self) -> OperatorSequence:
        """Drops operators that contribute to nothing retained, and the constants that only they used.

        An operator that writes always stays. Inputs stay, so that the call signature does not change.
        """
        needed = set(self.retained_ids())
        chosen: List[Operator] = []
        for operator in reversed(self.operators):
            if operator.mutates or needed.intersection(operator.output_ids()):
                chosen.append(operator)
                needed.update(operator.input_ids())
        chosen.reverse()
        live = needed | set(self.inputs) | {number for operator in chosen for number in operator.output_ids()}
        return replace(
            self,
            operators=tuple(chosen),
            values={number: value for number, value in self.values.items() if number in live},
            constants={number: digest for number, digest in self.constants.items() if number in live},
        )
