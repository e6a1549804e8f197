"""The same calls again and again with numbers that are equal and not the same: zeros of two signs, 1 and True."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.arange(-3.0, 3.0).to(device)
mask = (torch.arange(6) % 2 == 0).to(device)
numbers = [0.0, -0.0, 0, False, 1.5, float("inf"), float("nan"), -1.5]
for turn in range(3):
    for number in numbers:
        filled = x.masked_fill(mask, number)
        counted = mask.to(torch.int64).add(1).mul(1 if turn % 2 else True)
        print(torch.signbit(filled).cpu().tolist(), filled.sum().item().hex(), counted.cpu().tolist())
    pair = torch.add(x, x), torch.add(x, x.clone()), torch.add(x, x, alpha=turn)
    print([item.cpu().tolist() for item in pair])
