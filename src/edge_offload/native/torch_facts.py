"""Facts of the installed torch for the compiler and the loader, found without importing it."""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
import re
from typing import List, Tuple

from edge_offload.errors import Unsupported

#: C++ standards that torch's headers require, by the number that they compare ``__cplusplus`` with.
STANDARDS = {201402: "c++14", 201703: "c++17", 202002: "c++20", 202302: "c++23"}
#: The oldest and the newest torch that this release was tested with.
OLDEST, NEWEST = "2.0.1", "2.15.0"


def torch_directory() -> pathlib.Path:
    """Return the folder of the installed torch.

    Raises:
        Unsupported: torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Unsupported("torch is not installed in this Python", remedy="pip install torch")
    return pathlib.Path(spec.origin).parent


def torch_version() -> str:
    """Return torch's version, with its local part (such as ``+cpu``)."""
    lines = (torch_directory() / "version.py").read_text().splitlines()
    (version, *_) = (line.split("=", 1)[1] for line in lines if line.startswith("__version__"))
    return version.strip().strip("'\"")


def built_with_cuda() -> bool:
    """Return True if torch has CUDA kernels of its own, which those of the virtual device then replace."""
    return (torch_directory() / "lib" / "libtorch_cuda.so").exists()


def load_torch() -> None:
    """Load the libraries of torch that the native guard needs, as ``import torch`` will.

    torch's CUDA libraries, if there are any, are loaded before the guard, which replaces the kernels they register.

    Raises:
        Unsupported: a library cannot be loaded.
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


def standard(include: pathlib.Path) -> str:
    """Return the C++ standard that torch's headers in ``include`` require: C++17 up to torch 2.13, then C++20.

    It is at least C++17, which our sources need and GCC 9 has in full.
    """
    try:
        text = (include / "ATen" / "ATen.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    required = max(map(int, re.findall(r"__cplusplus\s*<\s*(\d{6})L", text)), default=0)
    return STANDARDS.get(max(required, 201703), "c++23")


def compile_flags(include: pathlib.Path, cxx11_abi: bool = True) -> List[str]:
    """Return the compiler flags for torch's headers in ``include``; the same for each source."""
    return [
        f"-std={standard(include)}", f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)}", "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-I{include}", f"-I{include / 'torch/csrc/api/include'}",
    ]  # fmt: skip


def flags_of_installed(extension: bool) -> Tuple[List[str], List[str]]:
    """Return compiler and linker flags for the installed torch; ``extension``: for an extension module of Python."""
    root = torch_directory()
    links = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    return compile_flags(root / "include", cxx11_abi()), [*links, *(["-ltorch_python", "-ldl"] if extension else [])]


def cxx11_abi() -> bool:
    """Return True if torch was built with the new libstdc++ string ABI, as the names of its functions show."""
    path = torch_directory() / "lib" / "libc10.so"
    return path.exists() and b"_ZN3c108demangleB5cxx11EPKc" in path.read_bytes()
