"""The type of a NumPy array whose dtype and shape the docstring says."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
