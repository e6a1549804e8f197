"""A GPU without memory, a program that breaks the GPU's context, a server that is killed and comes back."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any, Callable, List, Tuple

from edge_offload_benchmarks.gpu.processes import BLIND, Process, Server, cli_command, thread_count
from edge_offload_benchmarks.gpu.results import Phase

#: Modes in which a program breaks its context; seconds without which no part begins.
MODES, LEAST_S = ("lazy", "replay"), 8.0
#: Pixels by which a picture of 224 is made wider and higher: the first layer's output exceeds the GPU's free memory.
WIDER = 800
#: Takes the GPU's memory but for so many MiB.
HOG = """
import sys, torch
left = int(float(sys.argv[1]) * 2**20)
blocks = []
free, total = torch.cuda.mem_get_info()
while free > left:
    size = max(1 << 20, min(1 << 32, free - left))
    try:
        blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        break
    free, total = torch.cuda.mem_get_info()
print("full:", free >> 20, "MiB left", flush=True)
sys.stdin.readline()
"""
NEEDS_MEMORY = """
import torch
try:
    x = [torch.rand(1 << 28, device='cuda') for _ in range(6)]
    print('sum', float(sum(one.sum() for one in x)))
except Exception as error:
    print('raised', type(error).__name__, str(error)[:200])
print('after', float(torch.ones(4, device='cuda').sum()))
"""
#: An index out of range: a CPU raises, a GPU's context is lost.
BREAKS = """
import torch
x = torch.rand(100, device="cuda")
print("sum", float(x.sum()), flush=True)
for turn in range(3):
    try:
        y = x.gather(0, torch.full((3,), 10_000_000, device="cuda"))
        print("read", y.cpu().tolist(), flush=True)
    except Exception as error:
        print("raised", type(error).__name__, str(error)[:150], flush=True)
try:
    print("then", float((x + 1).sum()), flush=True)
except Exception as error:
    print("then raised", type(error).__name__, str(error)[:150], flush=True)
"""
LOOP = """
import sys, time, torch
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval().to("cuda")
ends = time.monotonic() + float(sys.argv[1])
count = 0
while time.monotonic() < ends:
    with torch.no_grad():
        began = time.monotonic()
        value = float(net(torch.ones(16, 32).to("cuda")).sum().cpu())
    count += 1
    if count in (1, 5) or time.monotonic() - began > 0.5:
        print(f"frame {count} {value:.6f} {time.monotonic() - began:.2f} s", flush=True)
    time.sleep(0.02)
print(f"frames {count} {value:.6f}", flush=True)
"""


def run(phase: Phase) -> None:
    """Provoke each fault, and record what the program printed; parts that share nothing run at once, memory last."""
    parts: List[Tuple[str, Callable[[], None]]] = [("killed", lambda: kill_server(phase))]
    if phase.settings.cuda:
        parts.append(("context: plain CUDA", lambda: break_plainly(phase)))
    threads = [threading.Thread(target=attempt_part, args=(phase, *part)) for part in parts]
    for thread in threads:
        thread.start()
    with phase.guard_errors("server"), Server(phase.settings) as server:
        # the same server: it goes on after programs that break their contexts
        contexts = [
            threading.Thread(target=attempt_part, args=(phase, f"context: {mode}", break_context, phase, server, mode))
            for mode in MODES
        ]
        for thread in contexts:
            thread.start()
        for thread in (*contexts, *threads):
            thread.join()
        attempt_part(phase, "memory", exhaust_memory, phase, server)


def attempt_part(phase: Phase, name: str, part: Callable[..., None], *arguments: Any) -> None:
    """Run a part; its error is a record."""
    if not phase.fits_in_time(LEAST_S):
        phase.record(name, skipped="out of time")
        return
    with phase.guard_errors(name):
        part(*arguments)


def python_command(code: str, *arguments: str) -> List[str]:
    """The command of a program."""
    return [sys.executable, "-c", code, *arguments]


def record_end(phase: Phase, name: str, program: Process, most_s: float) -> None:
    """Wait for the end of a program, and record it, or that there was none."""
    code = program.end(min(most_s, phase.remaining_s() - 2))
    phase.record(name, code=code, lines=program.stamp_lines(), log=program.read_tail(3000))


def exhaust_memory(phase: Phase, server: Server) -> None:
    """A robot and a server whose GPU's memory another process takes."""
    if not phase.settings.cuda:
        phase.record("memory", skipped="no GPU")
        return
    import torch

    from edge_offload.execute.module import ModuleExecutor
    from edge_offload_benchmarks.gpu import networks

    name, settings = "resnet50", phase.settings
    executor, given = ModuleExecutor(networks.build_network(name), "cuda", spare=True), networks.make_inputs(name, 4)
    executor.run_module(given[0])
    torch.cuda.empty_cache()
    with Process(settings, "hog", python_command(HOG, "60")) as hog:
        phase.record("memory: hog", line=hog.wait_line("full", 60))
        for number, frame in enumerate(given[:2]):
            started_at = time.monotonic()
            done = executor.run_module([torch.nn.functional.pad(frame[0], (0, WIDER, 0, WIDER))])
            phase.record(f"memory: robot's frame {number}", note=done.note, seconds=time.monotonic() - started_at)
        command = [*server.exec_command("--mode", "lazy"), *python_command(NEEDS_MEMORY)]
        with Process(settings, "memory", command, **BLIND) as program:
            record_end(phase, "memory: a program on a server without memory", program, 30.0)
        hog.write("\n")
        hog.end(20)
        time.sleep(2.2)
        phase.record("memory: room again", note=executor.run_module(given[1]).note)


def break_plainly(phase: Phase) -> None:
    """A program that reads out of range, in plain CUDA."""
    with Process(phase.settings, "breaks_plain", python_command(BREAKS)) as program:
        record_end(phase, "context: plain CUDA", program, 40.0)


def break_context(phase: Phase, server: Server, mode: str) -> None:
    """The same program offloaded."""
    command = [*server.exec_command("--mode", mode), *python_command(BREAKS)]
    with Process(phase.settings, f"breaks_{mode}", command, **BLIND) as program:
        record_end(phase, f"context: {mode}", program, 60.0)


def kill_server(phase: Phase) -> None:
    """A server is killed under a program in ``replay``, and another takes its place on the same port."""
    settings = phase.settings
    with Server(settings) as server:
        port = server.address.rpartition(":")[2]
        seconds = "8" if settings.tiny else "18"
        command = [*server.exec_command("--mode", "replay", "--resume", "2"), *python_command(LOOP, seconds)]
        with Process(settings, "loop", command, **BLIND) as program:
            program.wait_line("frame 5 ", min(60.0, phase.remaining_s()))
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            time.sleep(1)
            restart = cli_command(
                "serve",
                "--bind",
                f"tcp://127.0.0.1:{port}",
                "--device",
                settings.device,
                "--threads",
                thread_count(settings),
                "--keys",
                str(server.keys),
                "--weights-cache",
                str(settings.folder / "blobs"),
            )
            with Process(settings, "serve_again", restart, settings.server_cores):
                record_end(phase, "killed", program, 50.0)
