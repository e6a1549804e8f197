"""LMSCNet: the scene-completion network that SCONet descends from, so that its published weights can be read.

After Roldao et al., "LMSCNet: Lightweight Multiscale 3D Semantic Completion" (2020), figure 2: a plain 2D U-Net over
height slices, in which every scale feeds all finer ones, and SCONet's 3D head at full resolution. The heads at the
coarser scales serve training only and are left out.
"""

from __future__ import annotations

import pathlib
from typing import Dict, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from edge_offload.errors import BadInput
from edge_offload.models.sconet.network import HEIGHT, DilatedHead

MAX_FILE_BYTES = 64 << 20
_HEAD = {
    "conv0": "enter",
    "conv1": "first",
    "bn1": "first_norms",
    "conv2": "second",
    "bn2": "second_norms",
    "conv_classes": "classify",
}
"""Names in the published head -> names in :class:`DilatedHead`."""


class LMSCNet(nn.Module):
    """Uint8 occupancy [x, y, 32] to uint8 labels of the same shape, in SemanticKITTI's order."""

    def __init__(self) -> None:
        super().__init__()
        f = HEIGHT
        self.Encoder_block1 = nn.Sequential(*_pair(f, f))
        self.Encoder_block2 = nn.Sequential(nn.MaxPool2d(2), *_pair(f, f * 3 // 2))
        self.Encoder_block3 = nn.Sequential(nn.MaxPool2d(2), *_pair(f * 3 // 2, f * 2))
        self.Encoder_block4 = nn.Sequential(nn.MaxPool2d(2), *_pair(f * 2, f * 5 // 2))
        self.conv_out_scale_1_8 = nn.Conv2d(f * 5 // 2, f // 8, 3, padding=1)
        self.deconv_1_8__1_2 = nn.ConvTranspose2d(f // 8, f // 8, 4, stride=4)
        self.deconv_1_8__1_1 = nn.ConvTranspose2d(f // 8, f // 8, 8, stride=8)
        self.deconv1_8 = nn.ConvTranspose2d(f // 8, f // 8, 6, stride=2, padding=2)
        self.conv1_4 = nn.Conv2d(f * 2 + f // 8, f * 2, 3, padding=1)
        self.conv_out_scale_1_4 = nn.Conv2d(f * 2, f // 4, 3, padding=1)
        self.deconv_1_4__1_1 = nn.ConvTranspose2d(f // 4, f // 4, 4, stride=4)
        self.deconv1_4 = nn.ConvTranspose2d(f // 4, f // 4, 6, stride=2, padding=2)
        self.conv1_2 = nn.Conv2d(f * 3 // 2 + f // 4 + f // 8, f * 3 // 2, 3, padding=1)
        self.conv_out_scale_1_2 = nn.Conv2d(f * 3 // 2, f // 2, 3, padding=1)
        self.deconv1_2 = nn.ConvTranspose2d(f // 2, f // 2, 6, stride=2, padding=2)
        self.conv1_1 = nn.Conv2d(f + f // 2 + f // 4 + f // 8, f, 3, padding=1)
        self.head = DilatedHead(1)

    def logits(self, occupancy: torch.Tensor) -> torch.Tensor:
        """Float [b, x, y, 32] occupancy to class logits [b, 20, x, y, 32]."""
        full = self.Encoder_block1(occupancy.permute(0, 3, 1, 2).contiguous())
        half = self.Encoder_block2(full)
        quarter = self.Encoder_block3(half)
        eighth = self.conv_out_scale_1_8(self.Encoder_block4(quarter))
        quarter = F.relu(self.conv1_4(torch.cat((self.deconv1_8(eighth), quarter), 1)))
        quarter = self.conv_out_scale_1_4(quarter)
        half = torch.cat((self.deconv1_4(quarter), half, self.deconv_1_8__1_2(eighth)), 1)
        half = self.conv_out_scale_1_2(F.relu(self.conv1_2(half)))
        coarser = (self.deconv_1_4__1_1(quarter), self.deconv_1_8__1_1(eighth))
        full = F.relu(self.conv1_1(torch.cat((self.deconv1_2(half), full, *coarser), 1)))
        logits: torch.Tensor = self.head(full.permute(0, 2, 3, 1).unsqueeze(1).contiguous())
        return logits

    def forward(self, occupancy: torch.Tensor) -> Tuple[torch.Tensor]:
        """Uint8 [x, y, 32] of 0 and 1 to a tuple of uint8 [x, y, 32] labels; x and y multiples of 8."""
        logits = self.logits(occupancy.unsqueeze(0).float())
        return (logits.argmax(dim=1).squeeze(0).to(torch.uint8),)


def load(path: pathlib.Path) -> LMSCNet:
    """The network with the weights of a published checkpoint. Nothing in the file is executed.

    Raises:
        BadInput: no such checkpoint.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadInput(f"{path} is over {MAX_FILE_BYTES >> 20} MB")
        state = torch.load(path, map_location="cpu", weights_only=True)["model"]
    except BadInput:
        raise
    except Exception as error:
        # the unpickler's errors have no common base
        raise BadInput(f"{path} is no checkpoint of LMSCNet: {type(error).__name__}") from error
    network = LMSCNet()
    try:
        network.load_state_dict(_renamed(state))
    except (RuntimeError, AttributeError) as error:
        raise BadInput(f"{path} is no checkpoint of LMSCNet: {str(error).splitlines()[0]}") from error
    return network.eval()


def _renamed(state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    tensors = {}
    for name, tensor in state.items():
        prefix, _, rest = name.partition(".")
        if prefix == "seg_head_1_1":
            part, _, tail = rest.partition(".")
            # the published head convolves over z, x, y; the one here over x, y, z
            tensors[f"head.{_HEAD[part]}.{tail}"] = tensor.permute(0, 1, 3, 4, 2) if tensor.ndim == 5 else tensor
        elif not prefix.startswith("seg_head"):
            tensors[name] = tensor
    return tensors


def _pair(inputs: int, outputs: int) -> Tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
