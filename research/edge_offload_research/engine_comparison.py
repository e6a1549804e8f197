"""Engines of a module beside torch: speed in turns on the same inputs, errors, and how long each takes to be ready."""

from __future__ import annotations

import copy
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.execute.engines import table
from edge_offload.execute.engines.base import CPU, EAGER, engine_facts, relative_error
from edge_offload.execute.module import ByEngine, Divided, ModuleExecutor, as_tensors

#: Seconds that an engine may take to be built.
BUILD_S = 600.0
#: Turns of which medians are made, whatever they take; seconds between two lines on how far it is.
LEAST_TURNS, REPORT_S = 5, 5.0


@dataclass
class EngineMeasurement:
    """One engine (or torch) on one module.

    Attributes:
        engine: its name; ``facts``: with version and precision; ``by``: what computes where no engine is asked for.
        why_not: why torch computes in its place, in words; empty where it computes.
        first_s, first_cpu_s: seconds, and of processor time, from the first frame until it was built
            and loaded; what was kept of it counts, too.
        restart_s, restart_cpu_s: the same for a second start of the same module.
        wall_s, cpu_s: seconds of each inference, and of processor time.
        error: of the dense part's outputs, from torch's, largest over outputs and inputs, as a share of the output's
            largest value.
        error64: the same, from float64's; None where the network does not compute in float64.
        differ: inputs for which the module's outputs have other shapes than torch's (other numbers of people), or other
            integers.
    """

    engine: str
    facts: str = EAGER
    by: str = "torch"
    why_not: str = ""
    first_s: float = 0.0
    first_cpu_s: float = 0.0
    restart_s: float = 0.0
    restart_cpu_s: float = 0.0
    wall_s: List[float] = field(default_factory=list)
    cpu_s: List[float] = field(default_factory=list)
    error: float = 0.0
    error64: Optional[float] = None
    differ: int = 0

    def speedup_over(self, eager: EngineMeasurement, cpu: bool = False) -> float:
        """Median over the pairs of how many times as fast as ``eager`` it was; NaN before it was measured."""
        mine, other = (self.cpu_s, eager.cpu_s) if cpu else (self.wall_s, eager.wall_s)
        return statistics.median(slow / fast for slow, fast in zip(other, mine)) if mine else math.nan


Inputs = Sequence[torch.Tensor]


def measure_engines(
    module: nn.Module,
    names: Sequence[str],
    inputs: Sequence[Inputs],
    turns: int,
    device: str = CPU,
    most_s: float = math.inf,
    report: Callable[[str], None] = lambda line: None,
) -> List[EngineMeasurement]:
    """Torch first, then each engine in the order of ``names``, with as many threads as this one has.

    Args:
        module: whose engines are measured.
        names: of engines.
        inputs: what is computed, in turn; the first two decide whether an engine takes over.
        turns: of all rivals on the same inputs, each turn in another order; 0: only build.
        device: where torch computes.
        most_s: seconds after which no turn begins, once there were :data:`LEAST_TURNS`.
        report: is told how far it is.
    """
    measurements = [EngineMeasurement(EAGER), *(EngineMeasurement(name) for name in names)]
    executors = {EAGER: ModuleExecutor(module, device)}
    if isinstance(module, ByEngine):
        measurements[0].by = executors[EAGER].engine
    for one in measurements[1:]:
        report(f"{one.engine}: being built")
        executor, (one.first_s, one.first_cpu_s) = _start_engine(module, device, one.engine, inputs)
        state, amber = executor.engine_state()
        if amber or executor.engine == EAGER:
            one.why_not = state
            executor.close()
            continue
        backend = table.pick_backend(one.engine, device, module)
        one.facts = str(engine_facts(backend)) if backend is not None else EAGER
        executors[one.engine] = executor
    able = [one for one in measurements if not one.why_not]
    _take_turns(able, executors, inputs, turns, most_s, report)
    for executor in executors.values():
        executor.close()
    if turns:
        _measure_errors(module, able, inputs, device, report)
    return measurements


def _trial_inputs(inputs: Sequence[Inputs]) -> List[Inputs]:
    """Inputs on which an engine is compared: after the first, two more, or the same again."""
    return [*inputs, *inputs, *inputs][1:3]


def _take_turns(
    rivals: Sequence[EngineMeasurement],
    executors: Dict[str, ModuleExecutor],
    inputs: Sequence[Inputs],
    turns: int,
    most_s: float,
    report: Callable[[str], None],
) -> None:
    started_s = reported_s = time.monotonic()
    for turn in range(turns):
        if turn >= LEAST_TURNS and time.monotonic() - started_s > most_s:
            report(f"{turn} turns of {turns} in {most_s:.0f} s; no more")
            break
        if time.monotonic() - reported_s > REPORT_S:
            report(f"turn {turn} of {turns}")
            reported_s = time.monotonic()
        given = inputs[turn % len(inputs)]
        results: Dict[str, Sequence[torch.Tensor]] = {}
        for place in range(len(rivals)):
            one = rivals[(place + turn) % len(rivals)]
            wall, cpu = time.perf_counter(), time.process_time()
            outputs = executors[one.engine].run_module(given).outputs
            one.cpu_s.append(time.process_time() - cpu)
            one.wall_s.append(time.perf_counter() - wall)
            results[one.engine] = outputs
        for one in rivals:
            one.differ += any(map(_results_differ, results[EAGER], results[one.engine]))


def _measure_errors(
    module: nn.Module,
    rivals: Sequence[EngineMeasurement],
    inputs: Sequence[Inputs],
    device: str,
    report: Callable[[str], None],
    most: int = 8,
) -> None:
    """Errors of the dense part on up to ``most`` inputs; its engines are there already, so this is a second start."""
    dense = module.dense_part()[0] if isinstance(module, Divided) else module
    precise, plain = _in_float64(dense), ModuleExecutor(dense, device)
    given = inputs[:most]
    report(f"errors on {len(given)} inputs, from torch and from float64")
    with torch.inference_mode():
        eager = [plain.run_module(one).outputs for one in given]
        exact = [_run_in_float64(precise, one) for one in given]
    for rival in rivals:
        if rival.engine == EAGER:
            outputs = eager
        else:
            executor, (rival.restart_s, rival.restart_cpu_s) = _start_engine(dense, device, rival.engine, given)
            outputs = [executor.run_module(one).outputs for one in given]
            executor.close()
        rival.error = max(_largest_error(want, have) for want, have in zip(eager, outputs))
        if all(one is not None for one in exact):
            rival.error64 = max(_largest_error(want or (), have) for want, have in zip(exact, outputs))


def _start_engine(
    module: nn.Module, device: str, engine: str, inputs: Sequence[Inputs]
) -> Tuple[ModuleExecutor, Tuple[float, float]]:
    """Return an executor whose engine is ready, and the seconds and processor seconds until it was built."""
    started_s, spent = time.monotonic(), time.process_time()
    executor = ModuleExecutor(module, device, engine)
    executor.run_module(inputs[0])
    executor.engine_ready(BUILD_S)
    taken = (time.monotonic() - started_s, time.process_time() - spent)
    for trial in _trial_inputs(inputs):
        executor.run_module(trial)
    return executor, taken


def _results_differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape != other.shape or not (one.is_floating_point() or torch.equal(one, other))


def _largest_error(want: Sequence[torch.Tensor], have: Sequence[torch.Tensor]) -> float:
    """Largest error over outputs that are floating-point numbers; others count when they differ at all."""
    errors = [
        relative_error(one, other) if one.is_floating_point() else (0.0 if torch.equal(one, other) else math.inf)
        for one, other in zip(want, have)
    ]
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)


def _in_float64(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network).cpu().double()


def _run_in_float64(network: nn.Module, inputs: Inputs) -> Optional[Sequence[torch.Tensor]]:
    """Outputs in float64; None if the network computes in float32 whatever its weights are."""
    try:
        outputs = as_tensors(network(*(one.double() if one.is_floating_point() else one for one in inputs)))
    except RuntimeError:
        return None
    return outputs if any(one.dtype is torch.float64 for one in outputs) else None
