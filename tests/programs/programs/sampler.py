"""A sampler as of diffusion: reads a moment at each step, and adds noise that is drawn and uploaded after the read."""

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    """Inferences of four steps, noise in all but the last."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval().to(DEVICE)
    with torch.no_grad():
        for _ in range(14):
            moments = torch.tensor([30.0, 20.0, 10.0, 0.0]).to(DEVICE)
            image = torch.randn(2, 8).to(DEVICE)
            for moment in moments:
                place = (moments == moment).nonzero().item()
                image = image - model(image) * (moments[place] / 40)
                if moments[place].item() > 0:
                    image = image + 0.1 * torch.randn(2, 8).to(DEVICE)
            print(image.sum().item())


main()
