"""Runs a program of ``apps/`` untouched. torchvision's wheel for CUDA cannot be imported beside a CPU-only torch: here
its missing operators are defined first, so that the program's own ``import torchvision`` works as on a robot."""

import pathlib
import runpy
import sys

import torch

torch.set_num_threads(1)
name = sys.argv[1]
if name in ("classifier", "detector"):
    from edge_offload.ir.torchvision_package import torchvision_package

    torchvision_package()
runpy.run_path(str(pathlib.Path(__file__).parent / "apps" / f"{name}.py"), run_name="__main__")
