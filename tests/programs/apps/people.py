"""KAPAO over frames, with its decoding and suppression on the device, and a warm-up with half the picture."""

import torch

from edge_offload.models.registry import build_estimator

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
estimator = build_estimator("kapao_n", size=128)
network = estimator.module.to(device)
torch.manual_seed(2)
with torch.no_grad():
    for i in range(8):
        frame = torch.randint(0, 256, (96, 128, 3), dtype=torch.uint8).numpy()
        image, letterbox = estimator.prepare(frame)
        outputs = [item.cpu() for item in network(image.to(device))]
        people = estimator.interpret(outputs, letterbox)
        print(i, [tuple(item.shape) for item in outputs], len(people.boxes))
        print("  ", [float(item.float().sum()).hex() for item in outputs])
