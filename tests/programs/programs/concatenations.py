"""What is put together from parts whose sizes depend on data is itself a part of something that is put together."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(4)
for i in range(16):
    x = torch.randn(40, 6).to(device)
    few, many = x[x[:, 0] > 0.8], x[x[:, 1] > -0.5]
    both = torch.cat((few, many))
    more = torch.cat((both, few * 2, both + 1))
    most = torch.cat((more, many, both, more))
    print(i, tuple(most.shape), [v.hex() for v in (most.flatten() * 0.5).view(-1, 6).sum(0).tolist()])
