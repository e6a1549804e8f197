"""Building the native libraries on first use, once per torch, compiler and source, however many processes ask at once.

The robot's device is two of them, the server's runner of nodes a third. They are kept in
``$XDG_CACHE_HOME/edge_offload/ext`` (default ``~/.cache``). ``python -m edge_offload.capture.build nodes`` builds one.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import List, Optional, Sequence

from edge_offload.errors import EdgeOffloadError, Unsupported

SOURCES = pathlib.Path(__file__).parent / "native"
#: Libraries of the robot's device, and of the server's executor.
DEVICE, NODES = ("guard", "device"), ("nodes",)
FLAGS = ("-O2", "-DNDEBUG", "-fno-plt", "-std=c++17", "-fvisibility=hidden", "-Wno-attributes")


class BuildFailed(EdgeOffloadError):
    """The compiler ran and said no."""


@dataclass(frozen=True)
class Libraries:
    """Paths of the two shared libraries: the guard (loaded before torch) and the device (a Python extension)."""

    guard: pathlib.Path
    device: pathlib.Path


def torch_directory() -> pathlib.Path:
    """Where torch is installed, found without importing it.

    Raises:
        Unsupported: it is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Unsupported("torch is not installed in this Python", remedy="pip install torch")
    return pathlib.Path(spec.origin).parent


def built_with_cuda() -> bool:
    """Whether torch has a CUDA device of its own, whose kernels the virtual one then replaces."""
    return (torch_directory() / "lib" / "libtorch_cuda.so").exists()


def load_torch() -> None:
    """Load the libraries of torch that the guard builds upon, as ``import torch`` will.

    Its CUDA libraries, if it has them, come first: what they register is then replaced by the guard.
    """
    directory = torch_directory() / "lib"
    names = ["libc10.so", "libtorch_cpu.so"]
    if built_with_cuda():
        names = ["libtorch_global_deps.so", *names, "libc10_cuda.so", "libtorch_cuda.so"]
    try:
        for name in names:
            ctypes.CDLL(str(directory / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise Unsupported(
            f"torch {torch_version()} cannot be loaded: {error}", remedy="see whether python -c 'import torch' works"
        ) from None


def torch_version() -> str:
    """torch's version, read without importing it."""
    scope: List[str] = [
        line for line in (torch_directory() / "version.py").read_text().splitlines() if line.startswith("__version__")
    ]
    return scope[0].split("=", 1)[1].strip().strip("'\"")


def compiler() -> Optional[str]:
    """The C++ compiler that would be used, or None."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def cache_directory(names: Sequence[str] = DEVICE) -> pathlib.Path:
    """Where the libraries for this torch, compiler and source are kept."""
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "") or pathlib.Path.home() / ".cache")
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        if (source.stem in NODES) != (names == NODES):
            continue
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    digest.update(" ".join(FLAGS).encode())
    found = compiler()
    if found is not None:
        digest.update(subprocess.run([found, "--version"], capture_output=True, check=False).stdout)
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return root / "edge_offload" / "ext" / f"torch-{torch_version()}-{tag}-{digest.hexdigest()[:16]}"


def existing() -> Optional[Libraries]:
    """The device's libraries if they have been built."""
    libraries = Libraries(*_paths(DEVICE))
    return libraries if libraries.guard.exists() and libraries.device.exists() else None


def nodes_path() -> pathlib.Path:
    """Where the runner of nodes is, once it has been built."""
    return _paths(NODES)[0]


def build(wait_s: float = 900.0) -> Libraries:
    """The device's libraries, built if need be. One process builds, others wait for it.

    Raises:
        Unsupported: no compiler.
        BuildFailed: the compiler failed; the text ends with its last lines.
    """
    return Libraries(*_build(DEVICE, wait_s))


def build_nodes(wait_s: float = 900.0) -> pathlib.Path:
    """The runner of nodes, as :func:`build`."""
    return _build(NODES, wait_s)[0]


def _paths(names: Sequence[str]) -> List[pathlib.Path]:
    directory = cache_directory(names)
    return [directory / f"edge_offload_{name}.so" for name in names]


def _build(names: Sequence[str], wait_s: float) -> List[pathlib.Path]:
    paths = _paths(names)
    if all(path.exists() for path in paths):
        return paths
    if compiler() is None:
        raise Unsupported(
            "the native device needs a C++ compiler, and none is installed", remedy="apt install g++, or set CXX"
        )
    directory = paths[0].parent
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"lock-{names[0]}").open("w") as lock:
        _lock(lock.fileno(), wait_s, directory)
        if not all(path.exists() for path in paths):
            for name in names:
                _compile(name, directory)
    return paths


def _lock(descriptor: int, wait_s: float, directory: pathlib.Path) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise BuildFailed(
                    f"another process has been building in {directory} for {wait_s:.0f} s",
                    remedy="look what it is doing",
                ) from None
            time.sleep(0.2)


def _compile(name: str, directory: pathlib.Path) -> None:
    """Compile ``native/<name>.cpp`` next to its final place and move it there, so that no one loads half a library."""
    import sysconfig

    torch_root = torch_directory()
    include = torch_root / "include"
    abi = int(_torch_flag(torch_root))
    temporary = directory / f"{name}.{os.getpid()}.so"
    command = [
        str(compiler()), *FLAGS, "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        "-DTORCH_EXTENSION_NAME=edge_offload_device", "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-I{sysconfig.get_path('include')}",
        str(SOURCES / f"{name}.cpp"), "-o", str(temporary),
        f"-L{torch_root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch",
    ]  # fmt: skip
    if name != "guard":
        command += ["-ltorch_python", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        temporary.unlink(missing_ok=True)
        tail = "\n".join(line for line in done.stderr.splitlines() if "error" in line)[-1500:]
        raise BuildFailed(
            f"building the native device for torch {torch_version()} failed: {tail or done.stderr[-1500:]}"
        )
    temporary.rename(directory / f"edge_offload_{name}.so")


def _torch_flag(torch_root: pathlib.Path) -> bool:
    """Whether this torch was built with the new libstdc++ string ABI, read from the names of its own functions."""
    with (torch_root / "lib" / "libc10.so").open("rb") as stream:
        return b"_ZN3c108demangleB5cxx11EPKc" in stream.read()


def main() -> int:
    """Build what the arguments name (default: the device) in this process, at low priority, and print where."""
    names = tuple(sys.argv[1:]) or DEVICE
    if names not in (DEVICE, NODES):
        raise SystemExit(f"there is nothing named {' '.join(names)}: say {' '.join(DEVICE)}, or {' '.join(NODES)}")
    os.nice(10)
    print(_build(names, 900.0)[0].parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
