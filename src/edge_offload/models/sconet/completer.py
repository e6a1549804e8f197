"""Scene completer: from points to the network's input, a device module, from its output to a labelled grid."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Dict, Optional, Sequence

import torch

from edge_offload import places
from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models import checkpoint
from edge_offload.models.scenes.labels import LABELS
from edge_offload.models.sconet.baselines import label_sweep, retain_hits
from edge_offload.models.sconet.network import HEIGHT, STRIDE, SCONet
from edge_offload.models.voxels import VoxelGrid

DEFAULTS: Dict[str, Any] = {"weights": "", "seed": 0}
SHIPPED = pathlib.Path(__file__).parent / "weights" / "sconet.safetensors"
VOXEL_SIZE_M = VoxelGrid.voxel_size
"""Voxel size in the training of the shipped weights."""


class SceneCompleter:
    """Completes the grid around a robot. ``interpret(module(prepare(points)))`` is one inference.

    Attributes:
        name: the model's name in the registry.
        module: plain PyTorch, in eval mode: uint8 occupancy [x, y, 32] in, a tuple of uint8 labels [x, y, 32] out.
        trained: whether the weights come from training. If not, ``interpret`` returns the sweep without completion, so
            that random numbers never look like a scene.
        grid: the voxel grid, which the caller may replace.

    Args:
        weights: a safetensors file, from :func:`save_weights` or a training checkpoint (its moving average is
            taken); empty: the weights that come with edge_offload or, without those, random ones from ``seed``.

    Raises:
        BadInput: the file is damaged or of another network.
    """

    labels = LABELS

    def __init__(self, weights: str = "", seed: int = 0, grid: Optional[VoxelGrid] = None) -> None:
        self.name = "sconet"
        #: Runs the module in :meth:`complete`; None: it is called directly.
        self.executor: Optional[Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]] = None
        self.grid = grid or VoxelGrid()
        path = places.expand(weights) if weights else SHIPPED
        self.trained = bool(weights) or path.exists()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = SCONet()
        if self.trained:
            load_weights(module, path)
        self.module = module.eval().requires_grad_(False)

    def prepare(self, points: Array) -> torch.Tensor:
        """Compute the occupancy uint8 [x, y, 32] of float [n, 3 or more] points (m, in the grid's frame).

        Raises:
            BadInput: not points, or a grid that does not fit the network.
        """
        x, y, z = self.grid.shape
        if z != HEIGHT or x % STRIDE or y % STRIDE:
            raise BadInput(
                f"the network takes no grid of {x}x{y}x{z} voxels",
                remedy=f"make it {HEIGHT} high, and long and wide in multiples of {STRIDE}",
            )
        return torch.from_numpy(self.grid.occupancy(points))

    def interpret(self, outputs: Sequence[torch.Tensor], occupancy: torch.Tensor) -> Array:
        """Labels uint8 [x, y, 32] from the outputs of ``module``; what the sweep hit stays full.

        Raises:
            BadInput: the outputs are not labels of this grid.
        """
        hit = occupancy.cpu().numpy()
        if not self.trained:
            return label_sweep(hit)
        if len(outputs) != 1 or outputs[0].dtype != torch.uint8 or tuple(outputs[0].shape) != hit.shape:
            raise BadInput("the outputs are not a label grid of the input's size")
        labels: Array = outputs[0].cpu().numpy()
        if labels.max(initial=0) >= len(LABELS):
            raise BadInput(f"the outputs hold a label above {len(LABELS) - 1}")
        return retain_hits(labels, hit)

    def complete(self, points: Array) -> Array:
        """Run all steps and return labels uint8 [x, y, 32]."""
        occupancy = self.prepare(points)
        if self.executor is not None:
            return self.interpret(self.executor([occupancy]), occupancy)
        device = next(self.module.parameters()).device
        with torch.inference_mode():
            outputs = self.module(occupancy.to(device))
        return self.interpret(outputs, occupancy)


def load_weights(module: SCONet, path: pathlib.Path) -> Dict[str, str]:
    """Load the weights of a safetensors file into ``module`` and return the file's metadata.

    Raises:
        BadInput: the file is damaged or of another network.
    """
    tensors, metadata = checkpoint.read(path)
    average = {name[len("average.") :]: tensor for name, tensor in tensors.items() if name.startswith("average.")}
    try:
        module.load_state_dict({name: tensor.float() for name, tensor in (average or tensors).items()})
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise BadInput(f"{path} holds no weights of SCONet: {first}", remedy="name another file") from error
    return metadata


def save_weights(module: SCONet, path: pathlib.Path, metadata: Dict[str, str]) -> None:
    """Write the weights in half precision, by rename."""
    from safetensors.torch import save

    from edge_offload.cache import write_atomic

    half = {
        name: (tensor.half() if tensor.dtype.is_floating_point else tensor).cpu().contiguous()
        for name, tensor in module.state_dict().items()
    }
    write_atomic(path, save(half, metadata))
