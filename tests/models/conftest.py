"""Shared by the tests of models: one thread (numbers and times depend on it), and skips where weights are absent."""

from __future__ import annotations

from typing import Iterator

import pytest
import torch

from edge_offload.errors import BadInput
from edge_offload.models.movenet import weights
from edge_offload.models.video import sample_video


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def movenet_weights() -> None:
    """Skip where MoveNet's weights are not cached: a test never downloads."""
    if not weights.cached_path().exists():
        pytest.skip("MoveNet's weights are not cached: run 'edge-offload models fetch movenet'")


@pytest.fixture
def vtest() -> None:
    """Skip where the sample video is absent."""
    try:
        sample_video()
    except BadInput as error:
        pytest.skip(str(error))
