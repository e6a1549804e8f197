"""Frame times: one process on the device, and a robot without a GPU on other cores, over loopback and emulated links.

The ratios that matter: a mode over the CUDA graph and over eager torch in one process. A frame cannot take less than
kernels, copies, and the link's bytes over its bandwidth.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Sequence

from edge_offload_benchmarks.gpu import served
from edge_offload_benchmarks.gpu.power import EnergyLog
from edge_offload_benchmarks.gpu.processes import BLIND, EmulatedLink, Process, Server, module_command
from edge_offload_benchmarks.gpu.results import Phase

#: Networks that are timed.
MODELS = ("resnet50", "mobilenet_v3_large", "vit_s", "kapao_s")
MBPS = (93.0, 300.0)
FRAMES, TINY_FRAMES, LINK_FRAMES, TF32_FRAMES = 200, 6, 60, 30


def run(phase: Phase) -> None:
    """Record the device alone, then every mode beside it."""
    tiny, cuda = phase.settings.tiny, phase.settings.cuda
    names = ("tiny",) if tiny else MODELS
    frames = TINY_FRAMES if tiny else FRAMES
    native: Dict[str, Dict[str, Any]] = {}
    with phase.guard_errors("native"):
        measure_native(phase, names, frames, False, native)
    options = served.allow_options(names)
    with phase.guard_errors("server"), Server(phase.settings, *options) as server, EnergyLog() as energy:
        phase.record("server", start_s=server.start_s)
        robot = Robot(phase, server, energy, native, names)
        robot.measure_modes(["replay", "server", "lazy"] if tiny else ["replay", "server"], frames)
        phase.record("steps without a graph", lines=server.graph_lines())
        if cuda and phase.fits_in_time(40):
            from edge_offload.execute.session.cuda_driver import SWITCH

            with phase.guard_errors("server of single calls"), Server(
                phase.settings, *options, "--engine", "eager", keys=None, **{SWITCH: "0"}
            ) as calls:
                Robot(phase, calls, energy, native, names, " call by call").measure_modes(["replay"], frames)
        for mbps in () if tiny else MBPS:
            if phase.fits_in_time(20):
                with phase.guard_errors(f"{mbps:g} Mbps"), EmulatedLink(phase.settings, server.address, mbps) as link:
                    linked = Robot(phase, server, energy, native, names, f" at {mbps:g} Mbps", link.address)
                    linked.measure_modes(["replay", "server"], LINK_FRAMES)
        if not tiny:
            robot.measure_modes(["lazy", "cached", "per_op"], frames)
    if cuda and phase.fits_in_time(20):
        with phase.guard_errors("native with TF32"):
            measure_native(phase, names, TF32_FRAMES, True, native)


def measure_native(
    phase: Phase, names: Sequence[str], frames: int, tf32: bool, native: Dict[str, Dict[str, Any]]
) -> None:
    """Times in one process (:mod:`edge_offload_benchmarks.gpu.speed_native`), remembered by network."""
    command = module_command(
        "speed_native", "--models", *names, "--frames", str(frames), "--device", phase.settings.device
    )
    command += ["--tf32"] if tf32 else []
    with Process(phase.settings, "speed_native", command, phase.settings.server_cores) as process:
        code = process.end(min(60.0, phase.remaining_s()))
        for facts in json_lines(process):
            native.setdefault(facts["model"], facts)
            phase.record(f"native {facts['model']} tf32={tf32}", **facts)
        if code != 0:
            phase.record(f"native tf32={tf32}", failed=f"exit code {code}", log=process.read_tail())


def json_lines(process: Process) -> List[Dict[str, Any]]:
    """Parse the JSON lines that a child printed."""
    return [json.loads(line) for line in process.lines if line.startswith("{")]


class Robot:
    """A robot without a GPU on the clients' cores (:mod:`edge_offload_benchmarks.gpu.speed_client`).

    Args:
        phase: of the records.
        server: that it uses.
        energy: joules of the GPU by time.
        native: times in one process, by network.
        names: of the networks.
        suffix: of the records' names.
        address: of the link before the server; empty: loopback.
    """

    def __init__(
        self,
        phase: Phase,
        server: Server,
        energy: EnergyLog,
        native: Dict[str, Dict[str, Any]],
        names: Sequence[str],
        suffix: str = "",
        address: str = "",
    ) -> None:
        self._phase, self._server, self._energy, self._native = phase, server, energy, native
        self._names, self._suffix, self._address = names, suffix, address

    def measure_modes(self, modes: Sequence[str], frames: int) -> None:
        """Run the networks in the modes, and record times and ratios."""
        seconds = min(self._phase.remaining_s() - 5, 90.0)
        name = f"client {' '.join(modes)}{self._suffix}"
        if seconds < 5:
            self._phase.record(name, skipped="out of time")
            return
        keys = self._server.make_robot(self._address)
        command = module_command(
            "speed_client",
            "--server",
            self._address or self._server.address,
            "--keys",
            keys,
            "--models",
            *self._names,
            "--modes",
            *modes,
            "--frames",
            str(frames),
            "--seconds",
            f"{seconds:g}",
        )
        command = [
            *self._server.exec_command(
                "--mode", modes[0] if modes[0] != "server" else "replay", address=self._address, keys=keys
            ),
            *command,
        ]
        with Process(
            self._phase.settings, "speed_client", command, self._phase.settings.client_cores, **BLIND
        ) as process:
            code = process.end(min(seconds + 20, self._phase.remaining_s()))
            for facts in json_lines(process):
                self._record_facts(facts)
            if code != 0:
                self._phase.record(name, failed=f"exit code {code}", log=process.read_tail())

    def _record_facts(self, facts: Dict[str, Any]) -> None:
        if "wall" in facts:
            native = self._native.get(facts["model"], {})
            for kind in ("graph", "eager"):
                if native.get(kind, {}).get("ms"):
                    facts[f"over_{kind}"] = round(facts["wall"]["ms"] / native[kind]["ms"], 3)
            joules = self._energy.joules_between(facts.pop("from_s"), facts.pop("to_s"))
            if not math.isnan(joules):
                facts["J_per_frame"] = joules / facts["wall"]["n"]
        self._phase.record(f"{facts['model']} {facts.get('mode', '')}{self._suffix}", **facts)
