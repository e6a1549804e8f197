"""A member and a profile on the virtual CUDA device beside the CPU's: started by test_devices.py; prints JSON."""

from __future__ import annotations

import json
import os

import torch

from edge_offload.device.installation import current_installation
from edge_offload.models import registry
from edge_offload.server.pool import accelerators, measuring, member, parcels, stages
from tests.server.pool.stage_nets import Parted, chain
from tests.server.pool.test_stages import CHAIN, frame

BATCHES = 3


def uploads(network, batches):
    """Numbers of tensors that reach the device while runners for batches of up to ``batches`` are made."""
    real, sizes = torch.Tensor.to, []

    def to(self, *args, **kwargs):
        moved = real(self, *args, **kwargs)
        if moved.device.type == "cuda" and self.device.type == "cpu":
            sizes.append(self.numel())
        return moved

    torch.Tensor.to = to
    try:
        for batch in range(1, batches + 1):
            network.runner_for(batch)
    finally:
        torch.Tensor.to = real
    return sizes


def through(of, cuts, batch, frames):
    """Bytes of all that passes: behind each of two stages."""
    parts = ((1, 0, 2), (1, 2, cuts.block_count))
    arrays = [parcels.pack_tensor(each) for each in frames[:batch]]
    packed = []
    for part in parts:
        of.prepare(part, batch)
        seconds, arrays = of.run(part, batch, arrays)
        assert seconds > 0
        packed.append([(dtype, shape, order, raw.tobytes()) for dtype, shape, order, raw in arrays])
    return packed


def main():
    torch.set_num_threads(1)
    module = chain()
    network = stages.BatchedNetwork(module, stages.parse_inputs("float32[1,3,32,32]"), "cuda")
    cuts = measuring.cut_network(network, 4)
    frames = [frame(network.inputs[0], seed) for seed in range(BATCHES)]
    model = {"name": CHAIN, "options": {}, "state_hash": registry.state_hash(module), "cuts": cuts.to_dict()}
    on_cpu = member.Member(model, "L4", 1, BATCHES)
    os.environ[accelerators.DEVICES] = "cpu,cuda:0"
    on_gpu = member.Member(model, "L4", 1, BATCHES, 1)
    second = stages.BatchedNetwork(chain(), network.inputs, "cuda")
    moved = uploads(second, BATCHES)
    taken, crossing = measuring.measure_blocks(network, cuts, 2, lambda _: None)
    parted = Parted()
    split = [
        stages.BatchedNetwork(parted, stages.parse_inputs("float32[1,3,8,8]"), device) for device in ("cpu", "cuda")
    ]
    picture = [[frame(split[0].inputs[0], 0)]]
    read = []
    for each in split:
        bounds = stages.Cuts(
            stages.names_digest(each.program_for(1).sequence), (0, len(each.program_for(1).sequence)), each.inputs
        )
        (outputs,) = stages.StageRunner(each, bounds, 0, 1).run(1, [parcels.pack_tensor(picture[0][0])])
        read.append(outputs[3].tobytes())
    facts = on_gpu.fingerprint()
    reported = {
        "equal": [
            through(on_cpu, cuts, batch, frames) == through(on_gpu, cuts, batch, frames)
            for batch in range(1, BATCHES + 1)
        ],
        "where": [of.fingerprint()["where"] for of in (on_cpu, on_gpu)],
        "device": facts["device"], "tf32": facts["cudnn_flags"]["matmul_tf32"],
        "constants": sorted(parameter.numel() for parameter in module.parameters()), "moved": sorted(moved),
        "seconds": float(taken.min()), "shape": taken.shape, "crossing": float(crossing.min()),
        "read out": read[0] == read[1], "parameters on": parted.network[0].weight.device.type,
        "label": accelerators.label("cuda"),
    }  # fmt: skip
    print(json.dumps(reported), flush=True)
    current_installation().native.lose()
    on_gpu.run((1, 0, 2), 1, [parcels.pack_tensor(frames[0])])


if __name__ == "__main__":
    main()
