"""Engines for the calls of one recorded inference: compiled as a step, or by TorchInductor."""
