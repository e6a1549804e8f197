"""A program for two versions of torch: name, shape and values. On the device it also asks for an operator that another
version may have otherwise, which is refused by name."""

import torch
from torch import nn

torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=8)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        y = self.body(x)
        y = nn.functional.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return torch.softmax(self.head(y.mean((2, 3))), 1)


def show(name, y):
    y = y.detach().cpu().double()
    print(name, "x".join(map(str, y.shape)), *(f"{v:.12g}" for v in y.flatten()[:: max(1, y.numel() // 50)].tolist()))


def network():
    try:
        import torchvision
    except Exception:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return torchvision.models.resnet18(weights=None)


with torch.no_grad():
    small, large = Small().eval().to(device), network().eval().to(device)
    for _ in range(4):
        show("small", small(torch.rand(2, 3, 32, 32).to(device)))
        show("large", large(torch.rand(1, 3, 64, 64).to(device)))
    if device == "cuda":
        q = torch.rand(1, 2, 4, 8).to(device)
        message = "scaled_dot_product_attention"
        try:
            nn.functional.scaled_dot_product_attention(q, q, q)
        except NotImplementedError as error:
            message = str(error)
        assert "scaled_dot_product_attention" in message, message
