"""Two threads, each with a model of its own, run at the same time."""

import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}


def work(name, seed):
    generator = torch.Generator().manual_seed(seed)
    net = nn.Linear(6, 6, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.randn(6, 6, generator=generator))
        net.to(device)
        lines = []
        for _ in range(25):
            x = torch.randn(2, 6, generator=generator).to(device)
            lines.append([v.hex() for v in torch.tanh(net(x)).cpu().flatten().tolist()])
    results[name] = lines


threads = [threading.Thread(target=work, args=(f"t{i}", i)) for i in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for name in sorted(results):
    for line in results[name]:
        print(name, line)
