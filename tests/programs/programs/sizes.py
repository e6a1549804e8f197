"""Rows above a threshold and pairs that suppress each other: sizes, and turns of a loop, depend on data.

With state in place. Arguments: inferences; a place where each of them is different from the others once, or "none".
"""

import hashlib
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
count, place = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(11)
weight = torch.randn(6, 5).to(device)
state = torch.zeros(5, device=device)


def inference(x, odd):
    y = x.to(device) @ weight
    y = y * 0.5 if odd == "first" else y
    rows = y[y[:, 0] > 0.5]
    state.add_(rows.sum(0))
    rows = rows.abs() if odd == "after a size" else rows
    order = rows[:, 1].argsort(stable=True)
    near = (rows[order][:, None, 2] - rows[order][None, :, 2]).abs() < 0.2
    if odd == "in place":
        state.neg_()
    remaining = (~near.triu(1).any(0)).nonzero()[:, 0]
    survivors = order[remaining]
    while survivors.numel() > 1:
        survivors = survivors[rows[survivors, 3] > rows[survivors, 3].mean()]
        if odd == "in the loop":
            state.mul_(0.5)
    if odd == "a read":
        print(state[0].item().hex())
    outputs = torch.cat((rows[survivors], state.sigmoid().expand(survivors.numel(), 5)), 1)
    return (outputs.double() if odd == "at the end" else outputs).cpu(), state.cpu()


for i in range(count):
    results = inference(torch.randn(24, 6), place if i % 20 == 17 else "none")
    print(i, *(tuple(item.shape) for item in results),
          hashlib.sha1(b"".join(item.numpy().tobytes() for item in results)).hexdigest())  # fmt: skip
