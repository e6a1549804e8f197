"""Convert a PyTorch checkpoint (.pt, a pickle) to safetensors, once, on a workstation: robots read no pickles.

  edge-offload convert kapao_s_coco.pt kapao_s_coco.safetensors
  edge-offload track walk.avi --model kapao_s --option checkpoint=kapao_s_coco.safetensors

FILE is an official KAPAO checkpoint (a pickled model, of which the moving average is preferred, as there), or a state
dict, at the top or under model, state_dict or model_state_dict. It is read by torch.load(weights_only=True): nothing
in it is executed, and of its model only the tensors are kept. What this does not know is refused by name.
"""

from __future__ import annotations

import argparse
import pathlib

from edge_offload.outputs import add_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    parser.add_argument("file", type=pathlib.Path, metavar="FILE", help="the checkpoint, e.g. kapao_s_coco.pt")
    add_output(parser, "out", type=pathlib.Path, metavar="OUT", help="the safetensors file to write")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    from safetensors.torch import save

    from edge_offload.cache import tensors_hash, write_atomic
    from edge_offload_training.pickled import read_state

    state = read_state(args.file)
    write_atomic(args.out, save(state, {"source": args.file.name}))
    print(f"{args.out}: {len(state)} tensors, sha256 {tensors_hash(state)} (of the tensors)")
    return 0
