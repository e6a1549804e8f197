"""Reports to the server the results of frames that it did not compute, for its operator."""

from __future__ import annotations

import logging
from typing import Any, Mapping, Optional, Sequence

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.tensors import MAX_REPORT_BYTES, pack_tensors
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.modes.server import CAPTURED
from edge_offload.timing import InferenceReport

_log = logging.getLogger(__name__)


def report_result(
    client: Optional[Client],
    model: str,
    outputs: Sequence[torch.Tensor],
    report: InferenceReport,
    meta: Mapping[str, Any],
) -> bool:
    """Report a frame's result to the server, without waiting; return whether it was sent."""
    if client is None or client.state is not LinkState.READY:
        return False
    if sum(tensor.numel() * tensor.element_size() for tensor in outputs) > MAX_REPORT_BYTES:
        return False
    cost = {
        "total_s": report.total_s,
        "stages_s": dict(report.stages_s),
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "round_trips": report.round_trips,
        "emulated_slowdown": report.emulated_slowdown,
        "fallback_reason": report.fallback_reason,
        "overlap_s": report.overlap_s,
    }
    try:
        descriptors, buffers = pack_tensors(outputs)
        body = {
            "model": model,
            "mode": report.mode.value,
            "meta": {key: value for key, value in meta.items() if key != CAPTURED},
            "outputs": descriptors,
            "cost": cost,
        }
        client.notify("report", body, buffers)
    except EdgeOffloadError as error:
        _log.debug("a result was not reported: %s", error)
        return False
    return True
