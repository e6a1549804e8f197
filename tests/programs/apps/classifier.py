"""Classifies images with a torchvision network."""

import torch
import torchvision

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = torchvision.models.mobilenet_v3_small(weights=None).eval().to(device)
mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(3, 1, 1)
std = torch.tensor([0.229, 0.224, 0.225], device=device).view(3, 1, 1)
with torch.inference_mode():
    for i in range(10):
        image = torch.randint(0, 256, (3, 96, 96), dtype=torch.uint8)
        x = (image.to(device, non_blocking=True).float() / 255 - mean) / std
        probabilities = model(x.unsqueeze(0)).softmax(1)
        scores, classes = probabilities.topk(5)
        print(i, classes[0].tolist(), [score.hex() for score in scores[0].tolist()])
