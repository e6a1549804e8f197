"""Two models in one process, used in turn and then irregularly."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(4)
first = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device).eval()
second = nn.LSTM(8, 5).to(device).eval()
with torch.inference_mode():
    for i, which in enumerate([0, 1] * 5 + [0, 0, 1, 1, 1, 0]):
        x = torch.randn(3, 8).to(device)
        out = second(x.unsqueeze(1))[0] if which else first(x)
        print(i, which, [v.hex() for v in out.cpu().flatten().tolist()])
