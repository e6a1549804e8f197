"""The measured program of ``bench overhead``: run by ``edge-offload exec``, prints its seconds as one line of JSON."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import sys
import time
from typing import Any, Callable, List, Sequence, Tuple

import torch

from edge_offload.device.installation import current_installation
from edge_offload.errors import RemoteError
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.models.video import read_frames, sample_video
from edge_offload.modes.split.robot.opening import ModelSource
from edge_offload.modes.split.robot.runner import SplitRunner
from edge_offload.runtime.module import OffloadedModule
from edge_offload_benchmarks.processes import wait_open
from edge_offload_research.networks import build_module

WARM = 12
OPEN_S = 300.0

Way = Callable[[], Tuple[torch.Tensor, ...]]


def time_rounds(ways: Sequence[Way], count: int, lead: int) -> List[List[float]]:
    """Time each way, each after ``lead`` untimed ones of its kind; order and predecessor vary."""
    for _ in range(WARM):
        for way in ways:
            way()
    seconds: List[List[float]] = [[] for _ in ways]
    for order in itertools.islice(itertools.cycle(itertools.permutations(range(len(ways)))), count):
        for which in order:
            for _ in range(lead):
                ways[which]()
            started_at = time.perf_counter()
            ways[which]()
            seconds[which].append(time.perf_counter() - started_at)
    return seconds


def learn_split(recorder: Any, infer: Way) -> None:
    """Infer until the split of the inference is open, with a device-only plan.

    Raises:
        RemoteError: it does not get open.
    """
    learner = recorder.strategy.learner
    learner.opener = functools.partial(learner.opener, planner="device_only")
    until = time.monotonic() + OPEN_S
    while "plans by device_only" not in recorder.strategy.state():
        if time.monotonic() > until:
            raise RemoteError(f"the split was not open after {OPEN_S:g} s: {recorder.strategy.state()}")
        infer()
        time.sleep(0.05)


def main() -> int:
    """``MODEL PAIRS LEAD SERVER KEYS WAYS``."""
    model, count, lead = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    address, keys, ways = sys.argv[4], sys.argv[5], sys.argv[6].split(",")
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    frame = read_frames(sample_video(), [0])[0]
    network, inputs = build_module(model, {}, frame)

    def to_host(outputs: Any) -> Tuple[torch.Tensor, ...]:
        return tuple(item.cpu() for item in (outputs if isinstance(outputs, (tuple, list)) else (outputs,)))

    def run_plain(of: Any) -> Tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return to_host(of(*inputs))

    # two of them: where the weights lie makes a difference of its own
    plain_ways: List[Way] = [functools.partial(run_plain, of) for of in (network, copy.deepcopy(network))]

    device = current_installation()
    assert device is not None
    on_device = registry.build_module(model).to("cuda")

    def run_virtual() -> Tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return to_host(on_device(*(tensor.to("cuda") for tensor in inputs)))

    for mine, theirs in zip(plain_ways[0](), run_virtual()):
        assert torch.equal(mine, theirs)
    before = device.native.counters()["calls"]
    run_virtual()
    operators = device.native.counters()["calls"] - before
    if device.recorder.mode is Mode.LOCAL:
        seconds = {"local": time_rounds([*plain_ways, run_virtual], count, lead)}
    else:
        seconds = {}
        if "split" in ways:
            learn_split(device.recorder, run_virtual)
            seconds["split"] = time_rounds([*plain_ways, run_virtual], count, lead)
        if "module" in ways:
            with Client(address, keys=KeyStore(keys)) as client:
                client.wait_ready(30.0)
                seconds["module"] = by_module(model, network, inputs, client, plain_ways, count, lead)
        assert device.recorder.strategy.splits.inferences == 0
        device.recorder.strategy.close()
    print(json.dumps({"operators": operators, "seconds": seconds}), file=out, flush=True)
    return 0


def by_module(
    model: str,
    network: Any,
    inputs: Sequence[torch.Tensor],
    client: Client,
    plain: Sequence[Way],
    count: int,
    lead: int,
) -> List[List[float]]:
    """Rounds of the plain networks and an OffloadedModule with a device-only plan.

    Raises:
        RemoteError: its split does not get open.
    """
    module = OffloadedModule(model, network, client, hedging=False)
    source = ModelSource(
        model, {}, network, lambda: registry.state_hash(network), module.runners.local.attempt_inference
    )
    runner = SplitRunner(source, client, planner="device_only")
    module.add_runner(runner)
    wait_open(module, Mode.SPLIT, inputs, OPEN_S)

    def run_split() -> Tuple[torch.Tensor, ...]:
        outputs, report = module.run_inference(inputs, Mode.SPLIT)
        assert report.mode is Mode.SPLIT, report.fallback_reason
        return outputs

    seconds = time_rounds([*plain, run_split], count, lead)
    module.close()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
