"""An executor process that cannot start says why."""

from __future__ import annotations

import pytest
import torch

from edge_offload.device.remotes.executor import WorkerRemote
from edge_offload.errors import LinkLost


@pytest.mark.process
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: the executor starts")
def test_reason_of_the_executor() -> None:
    with pytest.raises(LinkLost, match=r"did not start.*(CUDA|NVIDIA|device)"):
        WorkerRemote("cuda", 1)
