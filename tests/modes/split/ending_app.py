"""A program that ends while its inference is recorded, timed, planned or divided. argv: inferences, how it ends."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Conv2d(3, 24, 3, padding=1)]
for _ in range(8):
    layers += [nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()]
network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval().to("cuda")
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        network(torch.rand(1, 3, 96, 96).to("cuda")).cpu()
if sys.argv[2] == "exit":
    sys.exit(3)
if sys.argv[2] == "raise":
    raise ValueError("the program's own")
