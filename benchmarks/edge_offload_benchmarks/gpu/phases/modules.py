"""``OffloadedModule`` in modes local, server and split, with the device on both sides.

The robot of this phase owns the GPU too (no ``exec``): frames of a robot with a GPU and a server with a GPU.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List

from edge_offload_benchmarks.gpu import networks, served
from edge_offload_benchmarks.gpu.processes import Server
from edge_offload_benchmarks.gpu.results import Phase, spread_ms

MODELS = ("mobilenet_v3_large", "kapao_vtest", "resnet50")
#: Seconds that a mode may take until it can run.
READY_S = {"split": 60.0}


def relative_difference(want: Any, have: Any) -> float:
    """The largest difference, relative to the largest value; infinite for other shapes or integers that differ."""
    import torch

    worst = 0.0
    for a, b in zip(want, have):
        if a.shape != b.shape:
            return float("inf")
        if a.is_floating_point() and a.numel():
            worst = max(worst, float((a.double() - b.double()).abs().max()) / (float(a.double().abs().max()) or 1.0))
        elif not torch.equal(a, b):
            worst = float("inf")
    return worst


def run(phase: Phase) -> None:
    """Run each network in each mode, and compare with plain torch on the device and on the CPU."""
    import torch

    from edge_offload.execute import devices
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.manager.lateness import TimeoutLimits
    from edge_offload.mode import Mode
    from edge_offload.runtime.module import OffloadedModule

    torch.set_num_threads(2)
    networks.fix_numerics()
    device = devices.fix_kernel_choice(devices.pick_device(phase.settings.device))
    tiny = phase.settings.tiny
    patient = TimeoutLimits(first_s=60.0, floor_s=60.0, cap_s=60.0)
    names = ("tiny",) if tiny else MODELS
    with Server(phase.settings, *served.allow_options(names)) as server, Client(
        server.address, keys=KeyStore(server.make_robot())
    ) as client:
        client.wait_ready(30.0)
        for name in names:
            with phase.guard_errors(name):
                module, given = networks.build_network(name), networks.make_inputs(name, 3 if tiny else 12)
                plain = networks.build_network(name).to(device)
                with torch.inference_mode():
                    want = [
                        [one.cpu() for one in networks.outputs_of(plain(*[each.to(device) for each in frame]))]
                        for frame in given
                    ]
                    cpu = [list(networks.outputs_of(module(*frame))) for frame in given[:2]]
                phase.record(
                    f"{name} device beside CPU", difference=max(relative_difference(a, b) for a, b in zip(cpu, want))
                )
                offloaded = OffloadedModule(
                    served.wire_name(name),
                    module,
                    client,
                    device=device,
                    hedging=False,
                    patience=patient,
                    example=given[0],
                )
                try:
                    for mode in (Mode.LOCAL, Mode.SERVER) if tiny else (Mode.LOCAL, Mode.SERVER, Mode.SPLIT):
                        with phase.guard_errors(f"{name} {mode}"):
                            run_mode(phase, name, mode, offloaded, given, want)
                finally:
                    offloaded.close()


def run_mode(phase: Phase, name: str, mode: Any, offloaded: Any, given: List[Any], want: List[Any]) -> None:
    """Wait until a mode can run, run the frames, and record times and differences."""
    import torch

    started_at = time.monotonic()
    most = min(READY_S.get(str(mode), 30.0), phase.remaining_s())
    while (why := offloaded.unavailable_reason(mode, given[0])) is not None and time.monotonic() - started_at < most:
        time.sleep(0.05)
    ready_s = time.monotonic() - started_at
    if why is not None:
        phase.record(f"{name} {mode}", ready_s=ready_s, failed=why, state=str(offloaded.state())[:500])
        return
    seconds: List[float] = []
    differences: List[float] = []
    fallbacks: Dict[str, int] = {}
    equal = 0
    for frame, expected in zip(given, want):
        at = time.perf_counter()
        outputs, report = offloaded.run_inference(frame, mode)
        seconds.append(time.perf_counter() - at)
        differences.append(relative_difference(expected, outputs))
        equal += all(torch.equal(a, b) for a, b in zip(expected, outputs))
        if report.fallback_reason:
            fallbacks[report.fallback_reason[:120]] = fallbacks.get(report.fallback_reason[:120], 0) + 1
    stages = {key: round(value, 5) for key, value in report.stages_s.items()}
    phase.record(
        f"{name} {mode}",
        ready_s=ready_s,
        **spread_ms(seconds),
        difference=max(differences),
        equal=f"{equal} of {len(given)}",
        fallbacks=fallbacks,
        stages=stages,
        state=str(offloaded.state().get(str(mode), ""))[:300],
    )
