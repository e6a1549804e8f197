"""Plots of experiments."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any, Iterator, Tuple

from edge_offload.errors import BadInput


@contextlib.contextmanager
def open_panels(path: pathlib.Path, down: int, across: int, size: Tuple[float, float], dpi: int = 110) -> Iterator[Any]:
    """Axes [down, across] of a figure of ``size`` inches, which is written to ``path`` at the end.

    Raises:
        BadInput: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("--plot needs matplotlib", remedy="pip install 'edge_offload[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(down, across, figsize=size, squeeze=False)
    try:
        yield grid
        figure.tight_layout()
        figure.savefig(path, dpi=dpi)
    finally:
        pyplot.close(figure)
