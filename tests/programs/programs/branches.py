"""Another path is taken depending on a value read back, and on a shape that depends on data."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(2)
weight = torch.randn(6, 6).to(device)
total = torch.zeros(6, device=device)
for i in range(14):
    x = torch.randn(5, 6).to(device)
    y = x @ weight
    if y.mean().item() > 0:
        y = y.relu()
        total += y.sum(0)
    else:
        y = y.abs() * 2
        total -= y.mean(0)
    selected = y[y[:, 0] > 0.5]
    print(
        i,
        tuple(selected.shape),
        [v.hex() for v in selected.sum(0).cpu().tolist()],
        [v.hex() for v in total.cpu().tolist()],
    )
