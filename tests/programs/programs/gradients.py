"""Gradients at inference: which part of a feature map a class score comes from, by hooks and by torch.autograd.grad."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def bits(tensor):
    return [value.hex() for value in tensor.detach().cpu().flatten().tolist()]


maps = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(3),
)  # fmt: skip
net = nn.Sequential(maps, nn.Flatten(), nn.Linear(72, 5)).eval().to(device)
captured = {}
maps[4].register_forward_hook(lambda module, given, made: captured.update(map=made))
maps[4].register_full_backward_hook(lambda module, given, made: captured.update(gradient=made[0]))
for _ in range(4):
    score = net(torch.rand(1, 3, 16, 16).to(device)).log_softmax(1)
    best = int(score.argmax())
    (gradient,) = torch.autograd.grad(score[0, best], captured["map"], retain_graph=True)
    shown = torch.relu((gradient.mean((2, 3), keepdim=True) * captured["map"]).sum(1))
    net.zero_grad()
    score.softmax(1)[0, best].backward()
    print(best, bits(score), bits(gradient), bits(shown), bits(captured["gradient"]), bits(maps[0].weight.grad))
