"""Checks of a machine with an NVIDIA GPU: prepared on another machine, run there in phases with time limits.

``scripts/gpu prepare`` collects what such a machine may lack, and ``scripts/gpu run`` measures and compares there.
This package's front imports the standard library only: the GPU machine needs nothing but Python and torch.
"""
