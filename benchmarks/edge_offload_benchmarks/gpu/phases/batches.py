"""What promises are made of: batch latencies on the device, by torch and as CUDA graphs, and which are exact."""

from __future__ import annotations

import shutil
from typing import Dict

from edge_offload_benchmarks.gpu import networks
from edge_offload_benchmarks.gpu.results import Phase

EAGER, GRAPHS = "eager", "eager+graph"
MODELS = ("kapao_vtest", "resnet50", "mobilenet_v3_large", "kapao_s")


def run(phase: Phase) -> None:
    """Record tables and verdicts by network."""
    import torch

    from edge_offload.execute import devices

    cuda = phase.settings.cuda
    torch.set_num_threads(4 if cuda else 1)
    devices.fix_kernel_choice(devices.pick_device(phase.settings.device))
    networks.fix_numerics(False)
    for engine in (GRAPHS, EAGER) if cuda else (EAGER,):
        for name in ("tiny",) if phase.settings.tiny else MODELS:
            if not phase.fits_in_time(4):
                phase.record(f"{name} {engine}", skipped="out of time")
                continue
            with phase.guard_errors(f"{name} {engine}"):
                measure_network(phase, name, engine)


def measure_network(phase: Phase, name: str, engine: str) -> None:
    """One network's table of latencies, and verdicts on batches of 2, 4 and 8."""
    from edge_offload.execute.batches import BatchExecutor
    from edge_offload.execute.module import ModuleExecutor
    from edge_offload.execute.tensors import specs_of
    from edge_offload.server.services.promise.batches import BatchRunner
    from edge_offload.server.services.replica.replicas import Replica

    executor = ModuleExecutor(networks.build_network(name), phase.settings.device, engine)
    given = networks.make_inputs(name, 8)
    judged = BatchExecutor(executor)
    facts: Dict[str, object] = {}
    for size in (2, 4, 8):
        verdict = judged.compare_batch(given[:size])
        facts[f"batch {size}"] = [verdict.equal, verdict.error, verdict.reason]
    replica = Replica(name, {}, executor, "0" * 64)
    folder = phase.settings.folder / f"tables-{engine}"
    shutil.rmtree(folder, ignore_errors=True)  # a table that is there is not measured again
    table = BatchRunner(replica, specs_of(given[0])).load_or_measure(lambda: None, folder)
    phase.record(
        f"{name} {engine}",
        median_ms=[round(1e3 * one, 3) for one in table.median_s],
        p95_ms=[round(1e3 * one, 3) for one in table.p95_s],
        equal=table.equal,
        reason=table.reason,
        **facts,
    )
