"""Shared by the split tests: one thread (bits and speed), fixed seeds, no fused attention where it has a switch."""

from __future__ import annotations

from typing import Iterator

import pytest
import torch

#: torch 2.1 and older have no switch.
set_fast_path = getattr(getattr(torch.backends, "mha", None), "set_fastpath_enabled", lambda on: None)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    set_fast_path(False)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    set_fast_path(True)
