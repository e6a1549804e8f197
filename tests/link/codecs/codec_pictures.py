"""Made pictures for the codec tests."""

import numpy as np


def picture(height, width, seed=0, shift=0):
    """A made photograph, uint8 [height, width, 3]: smooth shapes, three related channels, a little texture."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(float)
    base = 110 + 60 * np.sin((x + shift) / 17) + 50 * np.cos(y / 23) + rng.normal(0, 1.5, (height, width))
    colour = np.stack([base * 0.9 + 10, base, base * 1.05 - 5], axis=-1)
    return np.clip(np.rint(colour), 0, 255).astype(np.uint8)
