"""Runs networks and small programs on a device and saves their results: plain, or under ``edge-offload exec``.

Usage: python -m edge_offload_benchmarks.gpu.bits_child CONFIG.json
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from edge_offload_benchmarks.gpu.networks import build_network, fix_numerics, make_inputs, outputs_of
from edge_offload_benchmarks.gpu.programs import PROGRAMS

#: Frames of results, each a list of (host tensor, strides on the device), and facts.
Outcome = Tuple[List[List[Tuple[torch.Tensor, Tuple[int, ...]]]], Dict[str, Any]]


def use_native_batch_norm() -> None:
    """Compute batch normalisation with torch's own kernel in cuDNN's place."""
    from torch import nn

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.native_batch_norm(
            x,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.training,
            self.momentum or 0.0,
            self.eps,
        )[0]

    nn.modules.batchnorm._BatchNorm.forward = forward  # type: ignore[method-assign, assignment]


def round_trips() -> int:
    """Round trips of the virtual device; 0 without one."""
    module = sys.modules.get("edge_offload.device.installation")
    device: Any = module.current_installation() if module is not None else None
    return device.recorder.counters.round_trips if device is not None else 0


def collect_frames(run: Callable[[int], List[torch.Tensor]], frames: int) -> Outcome:
    """Results of every frame, round trips and seconds of each; an error is a fact."""
    frame_results: List[List[Tuple[torch.Tensor, Tuple[int, ...]]]] = []
    facts: Dict[str, Any] = {"trips": [], "frame_s": []}
    try:
        for turn in range(frames):
            before, started_at = round_trips(), time.monotonic()
            with torch.no_grad():
                results = run(turn)
            frame_results.append([(one.detach().cpu().contiguous(), tuple(one.stride())) for one in results])
            facts["trips"].append(round_trips() - before)
            facts["frame_s"].append(round(time.monotonic() - started_at, 4))
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {str(error)[:400]}"
    return frame_results, facts


def main() -> None:
    """Run what the configuration names."""
    path = pathlib.Path(sys.argv[1])
    config: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    at, frames = torch.device(config["device"]), int(config["frames"])
    fix_numerics(bool(config.get("tf32")))
    if config.get("native_bn"):
        use_native_batch_norm()
    outcomes: Dict[str, Outcome] = {}
    chosen: Optional[List[str]] = config["programs"]
    for name, program in PROGRAMS.items():
        if chosen is None or name in chosen:
            frame_results, facts = collect_frames(lambda turn, program=program: program(at, turn), frames)  # type: ignore[misc]
            facts.pop("frame_s")
            outcomes[name] = frame_results, facts
    for name in config["models"]:
        try:
            network, given = build_network(name).to(at), make_inputs(name, frames)
        except Exception as error:
            outcomes[f"net {name}"] = [], {"error": f"{type(error).__name__}: {str(error)[:400]}"}
            continue
        outcomes[f"net {name}"] = collect_frames(
            lambda turn, network=network, given=given: list(outputs_of(network(*[one.to(at) for one in given[turn]]))),  # type: ignore[misc]
            frames,
        )
    torch.save(outcomes, config["out"])
    print(f"{len(outcomes)} programs", flush=True)


if __name__ == "__main__":
    main()
