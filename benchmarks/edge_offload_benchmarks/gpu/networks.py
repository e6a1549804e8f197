"""Networks that are measured, the same on robot, server and in one process (names: ``served.BENCH_NETWORKS``)."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from edge_offload.ir.torchvision_package import torchvision_package


class Pictures(nn.Module):
    """uint8 [3, H, W], as a camera gives it, to a network of normalised batches."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Compute one picture."""
        output: torch.Tensor = self.network(image[None].float() / 255.0 - 0.5)
        return output


class Vit(nn.Module):
    """A ViT-S: 12 layers of 384, 197 tokens."""

    def __init__(self, width: int = 384, layers: int = 12, heads: int = 6, patch: int = 16, side: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits [N, 1000] of pictures [N, 3, side, side]."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1) + self.place
        logits: torch.Tensor = self.head(self.layers(tokens)[:, 0])
        return logits


def _build_seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Pictures(make()).eval()


def resnet50() -> nn.Module:
    """ResNet-50 without trained weights."""
    return _build_seeded(lambda: torchvision_package().models.resnet50(weights=None))


def resnet18() -> nn.Module:
    """ResNet-18 without trained weights."""
    return _build_seeded(lambda: torchvision_package().models.resnet18(weights=None))


def mobilenet_v3_large() -> nn.Module:
    """MobileNetV3-Large without trained weights."""
    return _build_seeded(lambda: torchvision_package().models.mobilenet_v3_large(weights=None))


def vit_s() -> nn.Module:
    """ViT-S without trained weights."""
    return _build_seeded(Vit)


def tiny() -> nn.Module:
    """Build a network for rehearsals: seconds on a slow CPU."""
    return _build_seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        )
    )


BUILDERS: Dict[str, Tuple[Callable[[], nn.Module], Tuple[int, ...]]] = {
    "resnet50": (resnet50, (3, 224, 224)),
    "resnet18": (resnet18, (3, 224, 224)),
    "mobilenet_v3_large": (mobilenet_v3_large, (3, 224, 224)),
    "vit_s": (vit_s, (3, 224, 224)),
    "tiny": (tiny, (3, 64, 64)),
}


def fix_numerics(tf32: bool = False) -> None:
    """Set what decides a GPU's bits as a server sets it: no algorithms by timing, and TF32 as asked."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32


def build_network(name: str) -> nn.Module:
    """The network, on the host, with the same weights everywhere."""
    if name in BUILDERS:
        return BUILDERS[name][0]()
    from edge_offload.models import registry

    return registry.build_module(name)


def make_inputs(name: str, count: int) -> List[List[torch.Tensor]]:
    """``count`` different inputs, on the host."""
    draw = torch.Generator().manual_seed(1)
    if name in BUILDERS:
        # smooth pictures with noise, as a camera's: codecs have something to do
        pictures = []
        for _ in range(count):
            small = torch.rand(3, 8, 8, generator=draw)
            big = nn.functional.interpolate(small[None], BUILDERS[name][1][1:], mode="bilinear")[0]
            noise = 0.02 * torch.randn(big.shape, generator=draw)
            pictures.append([((big + noise).clamp(0, 1) * 255).to(torch.uint8)])
        return pictures
    from edge_offload.models.video import read_frames, sample_video, synthetic_frame
    from edge_offload_research.networks import build_samples

    try:
        frames: Any = list(read_frames(sample_video(), range(count)).values())
    except Exception:
        frames = [synthetic_frame(480, 640, number) for number in range(count)]
    return [list(one) for one in build_samples(name, {}, frames)[1]]


def outputs_of(result: Any) -> Tuple[torch.Tensor, ...]:
    """The results of a network as a tuple."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
