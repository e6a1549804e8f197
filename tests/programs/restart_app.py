"""Programs that go on when their server dies, or is restarted. ``argv``: which.

At a line on stdin it computes once more. Prints a line for each result; the first inferences come unasked.
"""

import copy
import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.set_grad_enabled(False)
which = sys.argv[1]
torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 32 * 32, 128), nn.ReLU(),
    nn.Dropout(0.5), nn.Linear(128, 10),
)  # fmt: skip
network.train(which in ("statistics", "draws", "lost"))
network[1].train(which == "statistics")
network[6].train(which in ("draws", "lost"))
on_cpu, on_device = copy.deepcopy(network), network.to("cuda")
on_device.load_state_dict(on_cpu.state_dict())
torch.manual_seed(5)  # both draw the same from here on
generator = torch.Generator().manual_seed(1)


def infer(turn):
    x = torch.randn(1, 3, 32, 32, generator=generator)
    if which == "seeded":
        torch.manual_seed(turn)
        torch.cuda.manual_seed(turn)
        noise = torch.randn(10, device="cuda"), torch.randn(10)
    y = on_device(x.to("cuda"))
    if which == "seeded":
        y = y + noise[0]
    output = y.cpu()
    expected = on_cpu(x) + noise[1] if which == "seeded" else on_cpu(x)
    return output, torch.equal(output, expected)


turn = 0
if which == "lost":
    from edge_offload.replay.recovery import log

    log.MAX_SEGMENTS = 2  # more are forgotten
    log.PRUNE_SEGMENTS = 1
for turn in range(6):
    infer(turn)
print("ready", flush=True)
for _line in sys.stdin:
    for _ in range(5):
        turn += 1
        print(infer(turn)[1], flush=True)
    print("asked", flush=True)
