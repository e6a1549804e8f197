"""Building the native libraries on first use, once per torch, compiler and source, however many processes ask at once.

The robot's device is two of them, the server's runner of nodes a third. They are kept in
``$XDG_CACHE_HOME/edge_offload/ext`` (default ``~/.cache``). ``python -m edge_offload.native.build nodes`` builds one.
What the compiler is told for a torch is decided here (:func:`flags`), for what is built and for what is only tried.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from typing import List, Optional, Sequence

from edge_offload.errors import EdgeOffloadError, Unsupported
from edge_offload.native.recipe import Telling

SOURCES = pathlib.Path(__file__).parent / "cpp"
#: Libraries of the robot's device, and of the server's executor.
DEVICE, NODES = ("guard", "device"), ("nodes",)
FLAGS = ("-O2", "-DNDEBUG", "-fno-plt", "-fvisibility=hidden", "-Wno-attributes")
#: What is built, in words, and how long that takes on two cores.
WORDS = {DEVICE: "the virtual GPU (one to three minutes)", NODES: "the server's runner of steps (half a minute to two)"}
#: The C++ standards that torch's headers have asked for, by the number that they compare ``__cplusplus`` with.
STANDARDS = {201402: "c++14", 201703: "c++17", 202002: "c++20", 202302: "c++23"}
#: The newest torch that this release was tested with.
NEWEST = "2.15.0"
#: The least of what our sources include that shows whether a compiler takes torch's headers and finds Python's.
TRIAL = "#include <Python.h>\n#include <ATen/core/Tensor.h>\n#include <torch/library.h>\n"
TRIAL_S = 300.0


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
    """Torch's version, read without importing it."""
    scope: List[str] = [
        line for line in (torch_directory() / "version.py").read_text().splitlines() if line.startswith("__version__")
    ]
    return scope[0].split("=", 1)[1].strip().strip("'\"")


def standard(include: pathlib.Path) -> str:
    """The C++ standard that torch's headers in ``include`` ask for: 17 up to torch 2.13, 20 from 2.14 on.

    Our sources are C++17, which GCC 9 has in full: more is asked of a compiler only where torch does.
    """
    try:
        text = (include / "ATen" / "ATen.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    asked = max(map(int, re.findall(r"__cplusplus\s*<\s*(\d{6})L", text)), default=0)
    return STANDARDS.get(max(asked, 201703), "c++23")


def flags(include: pathlib.Path, cxx11_abi: bool = True) -> List[str]:
    """What the compiler is told for torch's headers in ``include``; the same for each source."""
    return [
        *FLAGS, f"-std={standard(include)}", f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)}",
        "-DTORCH_EXTENSION_NAME=edge_offload_device", "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-I{sysconfig.get_path('include')}",
    ]  # fmt: skip


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
    digest.update(" ".join([*FLAGS, standard(torch_directory() / "include")]).encode())
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


def problem() -> Optional[BuildFailed]:
    """Why the libraries cannot be built here, found by a test compile; None if they can. A success is remembered.

    Raises:
        Unsupported: no compiler.
    """
    directory = cache_directory()
    if (directory / "tried").exists():
        return None
    include = torch_directory() / "include"
    command = [_needed_compiler(), *flags(include), "-fsyntax-only", "-x", "c++", "-"]
    try:
        done = subprocess.run(command, input=TRIAL, capture_output=True, text=True, timeout=TRIAL_S, check=False)
    except subprocess.TimeoutExpired:
        return BuildFailed(f"{command[0]} did not compile a small file within {TRIAL_S:.0f} s")
    if done.returncode:
        return _failure(done.stderr, include)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "tried").touch()
    except OSError as error:
        return BuildFailed(f"{directory} cannot be written: {error.strerror}", remedy="set XDG_CACHE_HOME")
    return None


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
    _needed_compiler()
    directory = paths[0].parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with Telling(words(names), directory), (directory / f"lock-{names[0]}").open("w") as lock:
            _lock(lock.fileno(), wait_s, directory)
            if not all(path.exists() for path in paths):
                for name in names:
                    _compile(name, directory)
    except OSError as error:
        raise BuildFailed(f"cannot build into {directory}: {error}", remedy="set XDG_CACHE_HOME") from error
    return paths


def words(names: Sequence[str]) -> str:
    """What is built and about how long that takes, for :class:`~edge_offload.native.recipe.Telling`."""
    return f"{WORDS[tuple(names)]} for torch {torch_version()}"


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


def _needed_compiler() -> str:
    found = compiler()
    if found is None:
        raise Unsupported(
            "the native device needs a C++ compiler, and none is installed", remedy="apt install g++, or set CXX"
        )
    return found


def _compile(name: str, directory: pathlib.Path) -> None:
    """Compile ``native/<name>.cpp`` next to its final place and move it there, so that no one loads half a library."""
    torch_root = torch_directory()
    include = torch_root / "include"
    temporary = directory / f"{name}.{os.getpid()}.so"
    command = [
        _needed_compiler(), *flags(include, _torch_flag(torch_root)), "-shared", "-fPIC",
        str(SOURCES / f"{name}.cpp"), "-o", str(temporary),
        f"-L{torch_root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch",
    ]  # fmt: skip
    if name != "guard":
        command += ["-ltorch_python", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        temporary.unlink(missing_ok=True)
        raise _failure(done.stderr, include)
    temporary.rename(directory / f"edge_offload_{name}.so")


def _failure(log: str, include: pathlib.Path) -> BuildFailed:
    """What the compiler said, as a cause and a remedy."""
    wanted, version = standard(include), torch_version()
    errors = [line for line in log.splitlines() if "error" in line]
    what = f"the virtual GPU cannot be built for torch {version}"
    if "Python.h" in log and "No such file" in log:
        number = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return BuildFailed(
            f"{what}: Python.h is missing", remedy=f"apt install python3-dev (headers of this Python, {number})"
        )
    if re.search(r"(unrecognized|unknown|invalid)[^\n]*std=", log) or (errors and str(include) in errors[0]):
        older = "" if wanted == "c++17" else "pip install 'torch<2.14' (C++17), or "
        return BuildFailed(
            f"{what}: its headers want {wanted.upper()}, and {_compiler_version()} says: {' '.join(errors)[:300]}",
            remedy=f"{older}install a newer compiler (apt install g++-12, then CXX=g++-12)",
        )
    return BuildFailed(f"{what}: {' '.join(errors)[:1500] or log[-1500:]}", remedy=f"pip install 'torch<={NEWEST}'")


def _compiler_version() -> str:
    done = subprocess.run([_needed_compiler(), "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [_needed_compiler()])[0]


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
    try:
        print(_build(names, 900.0)[0].parent)
    except EdgeOffloadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
