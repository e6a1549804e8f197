"""Packages of engines for the GPU machine: ONNX Runtime for CUDA in pieces that travel one a call, and pycuda.

ONNX Runtime's CUDA provider keeps machine code for Hopper (sm_90) alone: 57 MB instead of 247.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import zipfile
from typing import List

from edge_offload_benchmarks.gpu import carried, fatbin
from edge_offload_benchmarks.gpu.fetching import download_wheels, run, to_mib
from edge_offload_benchmarks.gpu.settings import ROOT

ONNX, ONNX_VERSION, PYCUDA_VERSION = "onnxruntime-gpu", "1.30.0", "2026.1"
ARCHITECTURES = frozenset([90])
PIECE = 40 << 20
#: Parts of the package that are not used.
UNUSED = ("capi/libonnxruntime_providers_tensorrt.so", "tools", "transformers", "quantization")
STUB = "void cuInit(void){}"
SITE_CONFIGURATION = """
CUDA_INC_DIR = ['{include}']
CUDADRV_LIB_DIR = ['{stub}']
CUDA_ENABLE_CURAND = False
CXXFLAGS = ['-O1', '-g0', '-w']
LDFLAGS = ['-Wl,--allow-shlib-undefined', '-Wl,--unresolved-symbols=ignore-all']
"""


def onnx_runtime(python: str) -> None:
    """Fill ``.gpu-onnxruntime-gpu/0``, ``1`` ... with the package, unless they are there."""
    target = ROOT / f".gpu-{ONNX}"
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        download_wheels(python, [f"{ONNX}=={ONNX_VERSION}"], folder)
        site = folder / "site"
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
            archive.extractall(site)
        package = site / "onnxruntime"
        fatbin.thin_library(package / "capi" / "libonnxruntime_providers_cuda.so", ARCHITECTURES)
        for path in [*(package / part for part in UNUSED), *(package / "capi").glob("libonnxruntime.so.*")]:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
        packed = folder / "packed"
        subprocess.run(f"tar -C {site} -cf - . | zstd -q -19 --long=27 -T0 -o {packed}", shell=True, check=True)
        data = packed.read_bytes()
    for number, first in enumerate(range(0, len(data), PIECE)):
        piece = target / str(number) / f"{ONNX}.{number}"
        piece.parent.mkdir(parents=True)
        piece.write_bytes(data[first : first + PIECE])
        print(f"{piece.relative_to(ROOT)}: {to_mib(len(data[first : first + PIECE]))} MiB", flush=True)


def build_pycuda(python: str) -> None:
    """Build pycuda's wheel without a driver (minutes), unless it is there; CUDA's headers: ``$CUDA_INCLUDE``."""
    if list(carried.WHEELS.glob("pycuda-*.whl")):
        return
    include = pathlib.Path(os.environ.get("CUDA_INCLUDE", "/usr/local/cuda/include"))
    if not (include / "cuda.h").exists():
        print(f"prepare: no cuda.h in {include}; set CUDA_INCLUDE to its folder; pycuda is left out")
        return
    pip = [python, "-m", "pip"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = folder / "venv"
        run(python, "-m", "venv", str(environment))
        build: List[str] = [str(environment / "bin" / "python"), "-m", "pip"]
        needed = ["wheel", "setuptools", "numpy==2.5.2", "platformdirs", "pytools", "mako"]
        run(*build, "install", "-q", *needed)
        run(
            *build,
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
            "-d",
            name,
            f"pycuda=={PYCUDA_VERSION}",
        )
        shutil.unpack_archive(str(next(folder.glob("pycuda-*.tar.gz"))), name)
        source = folder / f"pycuda-{PYCUDA_VERSION}"
        stub = source / "stub"
        stub.mkdir()
        (stub / "c.c").write_text(STUB, encoding="utf-8")
        run("gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(stub / "libcuda.so"), str(stub / "c.c"))
        text = SITE_CONFIGURATION.format(include=include, stub=stub)
        (source / "siteconf.py").write_text(text, encoding="utf-8")
        run(*build, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(carried.WHEELS), str(source))
    run(
        *pip,
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(carried.WHEELS),
        "pytools",
        "platformdirs",
        "siphash24",
    )
