"""Two models in two threads, as nodes have it: one thread loads both, each callback infers with one of them."""

import queue
import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)
pose = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
depth = nn.Sequential(nn.Conv2d(1, 4, 5, padding=2), nn.Sigmoid(), nn.Conv2d(4, 1, 1), nn.Upsample(scale_factor=2))
jobs = {"pose": (pose, (1, 3, 20, 20)), "depth": (depth, (1, 1, 12, 12))}
for model, _ in jobs.values():
    model.eval().to(device)
inputs = {name: [torch.rand(shape) for _ in range(20)] for name, (_, shape) in jobs.items()}
done = queue.Queue()


def callback(name):
    model = jobs[name][0]
    with torch.no_grad():
        for i, x in enumerate(inputs[name]):
            done.put((name, i, [value.hex() for value in model(x.to(device)).cpu().flatten().tolist()[:6]]))


threads = [threading.Thread(target=callback, args=(name,)) for name in jobs]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for line in sorted(done.queue):
    print(*line)
