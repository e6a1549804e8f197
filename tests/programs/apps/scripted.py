"""A TorchScript file: saved by one part of the program, loaded straight onto the device by another."""

import os
import tempfile

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        y = self.convolution(x).relu().mean(dim=[2, 3])
        if bool(y.sum() > 0.5):
            y = y * 2
        return self.head(y)


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(4)
path = os.path.join(tempfile.mkdtemp(), "net.pt")
torch.jit.script(Net().eval()).save(path)
net = torch.jit.load(path, map_location=device).eval()
with torch.no_grad():
    for i in range(8):
        x = torch.rand(1, 3, 9, 9).to(device) * (i % 3)
        print(i, [value.hex() for value in net(x)[0].tolist()])
