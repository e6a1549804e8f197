"""Stages of a pool on the device, in this process and without Ray, against the undivided network on that device."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from edge_offload_benchmarks.gpu import networks
from edge_offload_benchmarks.gpu.results import Phase, spread_ms

MODELS = ("resnet50", "mobilenet_v3_large")
BATCHES = (1, 4)
#: Runs of each stage that are timed.
RUNS = 10
#: Runs after which a stage is a graph, where there are graphs.
GRAPHED = 3
#: Most that a value of a batch may differ from that of a single frame, in parts of the largest.
MOST_ERROR = 2e-5
#: Seconds that a network takes at most on a GPU.
NETWORK_S = 7


def run(phase: Phase) -> None:
    """Record bits, errors and times of two stages by network."""
    import torch

    from edge_offload.execute import devices

    device = devices.fix_kernel_choice(devices.pick_device(phase.settings.device))
    devices.select_device(device)
    torch.set_num_threads(4 if phase.settings.cuda else 1)
    for name in ("tiny",) if phase.settings.tiny else MODELS:
        if not phase.fits_in_time(NETWORK_S):
            phase.record(name, skipped="out of time")
            continue
        with phase.guard_errors(name):
            phase.record(name, device=str(device), **compare_stages(name, device))


def compare_stages(name: str, device: Any) -> Dict[str, Any]:
    """Compare two stages of a network with the undivided one, in batches of 1 and 4.

    Returns:
        Facts of a record; with ``failed`` where single frames have other bits than the undivided network's, or a batch
        too great an error.
    """
    import torch

    from edge_offload.execute.module import ModuleExecutor
    from edge_offload.execute.tensors import TensorSpec
    from edge_offload.server.pool import measuring, stages

    module: Any = networks.build_network(name).network
    shape = (1, *networks.BUILDERS[name][1])
    frames = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(max(BATCHES))]
    undivided = ModuleExecutor(module, device)
    expected = [undivided.run_module([one]).outputs[0] for one in frames]
    compute_s = [undivided.run_module([one]).compute_s for one in frames]
    network = stages.BatchedNetwork(module, (TensorSpec("float32", shape),), device)
    cuts = measuring.cut_network(network)
    middle = cuts.block_count // 2
    parts = [stages.StageRunner(network, cuts, *ends) for ends in ((0, middle), (middle, cuts.block_count))]
    record: Dict[str, Any] = {"undivided": spread_ms(compute_s), "operators": list(cuts.bounds), "middle": middle}
    for batch in BATCHES:
        for _ in range(GRAPHED):
            outputs = run_stages(parts, frames[:batch])
        error = max(
            float((one - other).abs().max() / other.abs().max()) for one, other in zip(outputs, expected[:batch])
        )
        equal = all(torch.equal(one, other) for one, other in zip(outputs, expected))
        runs = [measuring.stage_seconds(parts, batch) for _ in range(RUNS)]
        times = [spread_ms([one[at] for one in runs]) for at in range(len(parts))]
        record[f"batch {batch}"] = {"equal": equal, "error": error, "stages": times}
    if not record[f"batch {BATCHES[0]}"]["equal"]:
        record["failed"] = f"other bits than the undivided network's, one frame at a time: {record['batch 1']['error']}"
    elif record[f"batch {BATCHES[-1]}"]["error"] > MOST_ERROR:
        record["failed"] = f"an error of {record[f'batch {BATCHES[-1]}']['error']} in a batch, above {MOST_ERROR}"
    return record


def run_stages(parts: Sequence[Any], frames: Sequence[Any]) -> List[Any]:
    """The output of each frame, in a batch through all stages."""
    from edge_offload.server.pool.parcels import pack_tensor, unpack_tensor

    arrays = [pack_tensor(one) for one in frames]
    for stage in parts:
        arrays = stage.run(len(frames), arrays)
    return [unpack_tensor(each) for each in arrays]
