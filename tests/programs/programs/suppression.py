"""Non-maximum suppression written with tensor operations: every shape depends on data."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)


def suppress(boxes, scores, threshold):
    order = scores.argsort(descending=True)
    survivors = []
    while order.numel() > 0:
        best = order[0]
        survivors.append(best)
        rest = order[1:]
        corner = torch.maximum(boxes[best, :2], boxes[rest, :2])
        other = torch.minimum(boxes[best, 2:], boxes[rest, 2:])
        inter = (other - corner).clamp(min=0).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        overlap = inter / (area[best] + area[rest] - inter)
        order = rest[overlap <= threshold]
    return torch.stack(survivors) if survivors else order


for i in range(4):
    corner = torch.rand(12, 2)
    boxes = torch.cat([corner, corner + torch.rand(12, 2)], 1).to(device)
    scores = torch.rand(12).to(device)
    chosen = scores > 0.3
    retained = suppress(boxes[chosen], scores[chosen], 0.4)
    print(i, retained.cpu().tolist(), [v.hex() for v in boxes[chosen][retained].cpu().flatten().tolist()])
