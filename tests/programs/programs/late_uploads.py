"""A static network with state that uploads its image first and a constant last, which is another one once."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(4)
weight = torch.randn(60, 5).to(device)
state = torch.zeros(5, device=device)
for number in range(24):
    image = torch.randn(40, 60).to(device)
    features = (image @ weight).relu().mean(0)
    state.add_(features)
    scale = torch.tensor([2.0, 0.5, 1.0, 1.0, 3.0 if number == 12 else 4.0]).to(device)
    state.mul_(0.5).add_(scale)
    print(number, [value.hex() for value in (state * scale).cpu().tolist()])
