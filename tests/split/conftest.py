"""Shared by the split tests: one thread (bits and speed), fixed seeds, no fused attention path."""

from __future__ import annotations

from typing import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads, fast_path = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.backends.mha.set_fastpath_enabled(fast_path)
