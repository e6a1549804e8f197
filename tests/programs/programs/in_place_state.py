"""State on the device that every inference updates, and a view that sees it."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
state = torch.zeros(4, 6, device=device)
row = state[1]
count = torch.zeros((), dtype=torch.int64, device=device)
hidden = torch.zeros(6, device=device)
for i in range(9):
    x = torch.randn(4, 6).to(device)
    state.mul_(0.5).add_(x)
    count += 1
    hidden = torch.tanh(hidden + row)
    if i == 6:
        state[2].zero_()
    print(i, [v.hex() for v in (state.sum(0) + hidden).cpu().tolist()], int(count), row.cpu()[0].item().hex())
