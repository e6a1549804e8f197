"""A network with an early and a late output, and state that both have changed."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(3)
weight = (torch.randn(192, 192, generator=generator) / 14).to(device)
state = torch.zeros(8, device=device)
norm = torch.nn.BatchNorm1d(192).to(device)  # in training mode: every inference moves its averages
torch.set_grad_enabled(False)
for i in range(12):
    x = torch.randn(192, 192, generator=generator).to(device)
    hidden = (x @ weight).relu()
    state += hidden[0, :8]
    early = hidden.mean(0).cpu()
    print([value.hex() for value in early[:3].tolist()])
    if i == 9:
        state.neg_()  # something that was not expected, between the two
    for _ in range(12):
        hidden = (hidden @ weight).relu() + x
    late = norm(hidden).abs().sum(0)[:8] * state
    print([value.hex() for value in late.cpu().tolist()])
print([value.hex() for value in norm.running_var[:4].cpu().tolist()], int(norm.num_batches_tracked))
