"""Loops of random operators on a few buffers: views, writes in place, frees, growth, reads, uploads, branches.

Every loop runs its body several times with fresh uploads; in later turns a call is left out or replaced now and then.
"""

import random
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 4


def calls(rng):
    """One body: a list of (name, numbers), to be done on the buffers."""
    names = ["add_", "mul", "view", "cat", "copy", "free", "upload", "upload", "read", "item", "slice_write", "grow"]
    names += ["mask", "out", "alias", "random", "branch", "matmul", "scalar"]
    return [(rng.choice(names), [rng.randrange(1000) for _ in range(3)]) for _ in range(rng.randrange(3, 14))]


def do(buffers, call, host, lines):
    name, (a, b, c) = call
    i, j = a % len(buffers), b % len(buffers)
    x, y = buffers[i], buffers[j]
    if name == "add_":
        x.add_(y.sum() * 0.125)
    elif name == "mul":
        buffers[j] = (x * 0.5).tanh()
    elif name == "view":
        buffers[j] = x.t() if c % 2 else x[:, :]
    elif name == "cat":
        buffers[j] = torch.cat([x, y])[1 : SIZE + 1]
    elif name == "copy":
        x.copy_(y)
    elif name == "free":
        buffers[i] = torch.zeros(SIZE, SIZE, device=device)
    elif name == "upload":
        x.copy_(torch.rand(SIZE, SIZE, generator=host))
    elif name == "read":
        lines.append([v.hex() for v in x[c % SIZE].cpu().tolist()])
    elif name == "item":
        lines.append(x.max().item().hex())
    elif name == "slice_write":
        x[c % SIZE] = y[:, 0]
    elif name == "grow":
        flat = torch.ones(2, device=device)
        flat.resize_(SIZE * SIZE)
        flat[2:] = c % 7
        buffers[j] = flat.view(SIZE, SIZE)
    elif name == "mask":
        selected = x[x[:, c % SIZE] > 0.25]
        lines.append(tuple(selected.shape))
        buffers[j] = torch.zeros(SIZE, SIZE, device=device)
        buffers[j][: len(selected)] = selected
    elif name == "out":
        torch.sub(x, y, out=buffers[j])
    elif name == "alias":
        buffers[j] = x
    elif name == "random":
        x.add_(torch.rand(SIZE, SIZE, device=device))
    elif name == "branch":
        buffers[j] = x.relu() if x.mean().item() > 0.2 else -x
    elif name == "matmul":
        buffers[j] = (x @ y).sigmoid()
    else:
        x.mul_(1 + (c % 3) * 0.125)


first, last = (int(value) for value in sys.argv[1:3]) if len(sys.argv) > 2 else (0, 40)
for seed in range(first, last):
    rng = random.Random(seed)
    host = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    buffers = [torch.rand(SIZE, SIZE, generator=host).to(device) for _ in range(4)]
    body = calls(rng)
    for turn in range(9):
        lines = []
        for position, call in enumerate(body):
            odd = turn >= 4 and rng.random() < 0.05
            if odd and position % 3 == 0:
                continue
            if odd:
                call = (rng.choice(["add_", "mul", "upload", "read", "random", "free"]), call[1])
            do(buffers, call, host, lines)
        print(seed, turn, lines)
    print(seed, [v.hex() for buffer in buffers for v in buffer.cpu().flatten().tolist()])
