"""Peers on a CPU, each in an environment of its own beside the product: ``bench peers``."""
