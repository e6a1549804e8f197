"""What the machine is, and its floors: launches, waits, copies, a graph's launch, bandwidth."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import Any, Callable, Dict, List, Tuple

from edge_offload_benchmarks.gpu.power import Power
from edge_offload_benchmarks.gpu.results import Phase, spread_ms

PACKAGES = (
    "numpy",
    "opencv-python-headless",
    "scipy",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnx",
    "torchvision",
    "nvidia-cudnn-cu13",
    "nvidia-cublas",
    "nvidia-cuda-runtime",
    "nvidia-ml-py",
    "triton",
    "pycuda",
)
SMI = "name,driver_version,power.draw,clocks.sm,clocks.mem,temperature.gpu,compute_mode,persistence_mode"


def run(phase: Phase) -> None:
    """Record the machine first, then its floors."""
    with phase.guard_errors("machine"):
        record_machine(phase)
    if phase.settings.cuda:
        with phase.guard_errors("gpu"):
            record_gpu(phase)
        with phase.guard_errors("nvml"):
            record_power(phase)
    with phase.guard_errors("floors"):
        measure_floors(phase)
    if phase.settings.cuda:
        with phase.guard_errors("throughput"):
            measure_throughput(phase)


def output_of(*command: str) -> str:
    """The standard output of a command; the error if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}"
    return done.stdout.strip()[:1500]


def version_of(name: str) -> str:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def record_machine(phase: Phase) -> None:
    """Versions, cores, compilers, headers, room on disks."""
    started_at = time.monotonic()
    import torch

    imported_s = time.monotonic() - started_at
    started_at = time.monotonic()
    context: Dict[str, Any] = {}
    if phase.settings.cuda:
        try:
            torch.zeros(1, device="cuda").item()
            context = {"first_context_s": time.monotonic() - started_at}
        except Exception as error:
            context = {"context_failed": f"{type(error).__name__}: {str(error)[:500]}"}
    include = sysconfig.get_paths()["include"]
    phase.record(
        "machine",
        python=sys.version.split()[0],
        torch=torch.__version__,
        cuda=torch.version.cuda,
        import_torch_s=imported_s,
        **context,
        cores=len(os.sched_getaffinity(0)),
        server_cores=phase.settings.server_cores,
        client_cores=phase.settings.client_cores,
        cpu=output_of("sh", "-c", "grep -m1 'model name' /proc/cpuinfo"),
        python_h=pathlib.Path(include, "Python.h").exists(),
        include=include,
        cpath=os.environ.get("CPATH", ""),
        cxx=output_of("g++", "--version").splitlines()[:1],
        nvcc=output_of("nvcc", "--version").splitlines()[-2:],
        os=output_of("sh", "-c", ". /etc/os-release; echo $PRETTY_NAME"),
        glibc=platform.libc_ver(),
        kernel=platform.release(),
        disk_gb=shutil.disk_usage("/tmp").free / 1e9,
        shm_gb=shutil.disk_usage("/dev/shm").free / 1e9,
        mps=shutil.which("nvidia-cuda-mps-control"),
        jemalloc=bool(list(pathlib.Path("/usr/lib").glob("*/libjemalloc.so.2"))),
        packages={name: version_of(name) for name in PACKAGES},
        torch_file=torch.__file__,
    )


def record_gpu(phase: Phase) -> None:
    """The GPU, its driver, the runtime's and cuDNN's versions, and the flags that decide bits."""
    import torch

    cudnn, properties = torch.backends.cudnn, torch.cuda.get_device_properties(0)
    header = output_of("nvidia-smi").splitlines()[:4]
    phase.record(
        "gpu",
        device=properties.name,
        memory=properties.total_memory,
        capability=[properties.major, properties.minor],
        multiprocessors=properties.multi_processor_count,
        architectures=torch.cuda.get_arch_list(),
        cuda_runtime=torch.version.cuda,
        cudnn=cudnn.version(),
        conv_tf32=cudnn.allow_tf32,
        matmul_tf32=torch.backends.cuda.matmul.allow_tf32,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        driver=output_of("nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"),
        smi=header,
    )


def record_power(phase: Phase) -> None:
    """Power at rest."""
    power = Power()
    first, started_at = power.read_joules(), time.monotonic()
    time.sleep(1.0)
    watts = (power.read_joules() - first) / (time.monotonic() - started_at)
    phase.record("nvml", idle_watts=watts, usage_watts=power.read_watts(), memory_mb=power.memory_mb())


def measure_spread(count: int, call: Callable[[], Any], wait: Callable[[], Any]) -> Dict[str, float]:
    """The spread of the durations of a call, on an idle device."""
    seconds: List[float] = []
    for _ in range(count):
        wait()
        started_at = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started_at)
    return spread_ms(seconds)


def measure_floors(phase: Phase) -> None:
    """Microseconds of an operator, of a read, and of copies by size."""
    import torch

    cuda, device = phase.settings.cuda, phase.settings.device
    wait: Callable[[], Any] = torch.cuda.synchronize if cuda else (lambda: None)
    one = torch.zeros(16, device=device)
    with torch.inference_mode():
        for _ in range(200):
            one.add_(1)
        wait()
        started_at = time.perf_counter()
        for _ in range(5000):
            one.add_(1)
        launched = time.perf_counter() - started_at
        wait()
        phase.record("launch", python_op_us=launched / 5e-3, until_done_us=(time.perf_counter() - started_at) / 5e-3)
        phase.record("item", **measure_spread(200, lambda: one[0].item(), wait))
        if cuda:
            with phase.guard_errors("graph of 200"):
                graph_floor(phase, one)
        for size in (150_528, 921_600, 8 << 20):
            with phase.guard_errors(f"copies of {size}"):
                measure_copies(phase, size, wait)


def graph_floor(phase: Phase, one: Any) -> None:
    """Microseconds to launch a graph of 200 small kernels, and to finish it."""
    import torch

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(200):
            one.add_(1)
    torch.cuda.synchronize()
    started_at = time.perf_counter()
    for _ in range(100):
        graph.replay()
    launched = time.perf_counter() - started_at
    torch.cuda.synchronize()
    phase.record("graph of 200", launch_us=launched / 1e-4, until_done_us=(time.perf_counter() - started_at) / 1e-4)


def measure_copies(phase: Phase, size: int, wait: Callable[[], Any]) -> None:
    """Milliseconds of copies of ``size`` bytes, by memory that is pageable and that is pinned."""
    import torch

    device = phase.settings.device
    host, back = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    on_device = host.to(device)
    calls: List[Tuple[str, Callable[[], Any]]] = [
        ("pageable_up_ms", lambda: on_device.copy_(host)),
        ("pageable_down_ms", lambda: back.copy_(on_device)),
        ("to_ms", lambda: host.to(device)),
        ("cpu_ms", on_device.cpu),
    ]
    if phase.settings.cuda:
        locked = host.pin_memory()
        calls += [
            ("pinned_up_ms", lambda: (on_device.copy_(locked, non_blocking=True), wait())),
            ("pinned_down_ms", lambda: (locked.copy_(on_device, non_blocking=True), wait())),
        ]
    phase.record(f"copies of {size}", **{name: measure_spread(50, call, wait)["ms"] for name, call in calls})


def measure_throughput(phase: Phase) -> None:
    """Bandwidth of memory, and floating-point operations per second in float32 with TF32 and without."""
    import torch

    big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other, a = torch.empty_like(big), torch.randn(8192, 8192, device="cuda")
    flops = 2 * 8192**3 / 1e12
    measured: Tuple[Tuple[str, bool, Callable[[], Any], float], ...] = (
        ("copy_TB_s", False, lambda: other.copy_(big), 2 * (1 << 30) / 1e12),
        ("fp32_TFLOP_s", False, lambda: a @ a, flops),
        ("tf32_TFLOP_s", True, lambda: a @ a, flops),
    )
    for name, tf32, call, work in measured:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        call()
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(5):
            call()
        end.record()
        torch.cuda.synchronize()
        phase.record(name, value=5 * work / (begin.elapsed_time(end) / 1e3))
