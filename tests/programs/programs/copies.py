"""A static network with three uploads and four reads; with ``dependent``, one more upload that depends on a read."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
count, dependent = int(sys.argv[1]), sys.argv[2] == "dependent"
torch.manual_seed(8)
weight = torch.randn(6, 6).to(device)
for _ in range(count):
    a, b, c = (torch.randn(6, 6).to(device) for _ in range(3))
    y = (a @ weight + b).relu()
    z = y * c
    torch.cuda.synchronize() if device == "cuda" else None
    place = z.argmin() if dependent else z.argmax()
    print(y.sum().item().hex(), [v.hex() for v in z[0].cpu().tolist()], place.item())
    if dependent:
        threshold = y.max().item()
        other = (torch.ones(6, 6) * threshold).to(device)
        print(int((z > other).sum()))
    print(z.mean().item().hex())
