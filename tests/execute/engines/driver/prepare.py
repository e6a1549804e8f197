"""Fetch and build what the tests of TensorRT and pycuda need: ``python tests/execute/engines/driver/prepare.py``.

Into ``test-packages`` of the cache, once per Python: NVIDIA's parser, builder and bindings of TensorRT-RTX (test-only,
NVIDIA's licence), pycuda from source against NVIDIA's headers, and the stand-in for the CUDA driver. Some 100 MB are
downloaded and 230 MB kept; it takes about a minute. Nothing is installed into the environment.
"""

from __future__ import annotations

import functools
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from typing import List

from edge_offload.cache import cache_dir, locked

TENSORRT = "1.7.1.116"
PYCUDA = "2026.1"
ONNXSCRIPT = "0.7.2"  # for torch's other exporter
HEADERS = "12.9.79"
FOLDER = pathlib.Path(__file__).parent
COMMAND = "scripts/test -m tensorrt"

#: At the end of what pycuda's ``setup.py`` imports: compilers side by side, as setuptools does not start them.
_PARALLEL = """
import concurrent.futures, os
import setuptools  # its distutils
import distutils.ccompiler as _c

def _compile(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0, extra_preargs=None,
             extra_postargs=None, depends=None):
    macros, objects, extra, flags, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    arguments = self._get_cc_args(flags, debug, extra_preargs)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one: self._compile(one, *build[one], arguments, extra, flags), build))
    return objects

_c.CCompiler.compile = _compile
"""


@functools.lru_cache(maxsize=None)
def folder() -> pathlib.Path:
    """Where it all is, for this Python; as the environment was when it was first asked for."""
    facts = f"tensorrt-rtx-{TENSORRT}_pycuda-{PYCUDA}_cp{sys.version_info[0]}{sys.version_info[1]}"
    return cache_dir() / "test-packages" / facts


def ready() -> str:
    """Why the tests cannot run here; empty: they can."""
    if platform.machine() != "x86_64":
        return f"NVIDIA publishes TensorRT-RTX's Python packages for x86-64, and this is {platform.machine()}"
    return "" if (folder() / "ready").is_file() else f"TensorRT's packages for tests are not there: {COMMAND}"


def library() -> pathlib.Path:
    """The stand-in for the driver."""
    return folder() / "libcuda.so.1"


def main() -> None:
    """Make what is not there."""
    if not (folder() / "ready").is_file():
        with locked("test-packages"):
            _packages()
            (folder() / "ready").touch()
    driver = library()
    if not driver.is_file() or driver.stat().st_mtime < (FOLDER / "stand_in.c").stat().st_mtime:
        _driver()


def _packages() -> None:
    target = folder()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    headers = [f"nvidia-cuda-runtime-cu12=={HEADERS}", f"nvidia-cuda-profiler-api-cu12=={HEADERS}"]
    _pip("install", "--target", str(target / "headers"), *headers)
    _driver()
    wheels = [
        f"tensorrt-rtx-cu12-libs=={TENSORRT}", f"tensorrt-rtx-cu12-bindings=={TENSORRT}", "pytools", "platformdirs",
        f"onnxscript=={ONNXSCRIPT}", "onnx-ir",
    ]  # fmt: skip
    _pip("install", "--only-binary", ":all:", "--target", str(target / "site"), *wheels)
    with tempfile.TemporaryDirectory() as work:
        _pip("download", "--no-binary", ":all:", "--no-build-isolation", "-d", work, f"pycuda=={PYCUDA}")
        (archive,) = pathlib.Path(work).glob("pycuda-*.tar.gz")
        shutil.unpack_archive(str(archive), work)
        source = pathlib.Path(work) / f"pycuda-{PYCUDA}"
        (source / "siteconf.py").write_text(
            f"CUDA_INC_DIR = {[str(one) for one in _includes()]!r}\nCUDADRV_LIB_DIR = [{str(target)!r}]\n"
            "CUDA_ENABLE_CURAND = False\nCXXFLAGS = ['-O0', '-g0', '-w']\n"
        )
        with (source / "aksetup_helper.py").open("a") as stream:
            stream.write(_PARALLEL)
        _pip("install", "--no-build-isolation", "--target", str(target / "site"), str(source))


def _driver() -> None:
    """Compile the stand-in, and a refusal for every other function that the driver has."""
    source = (FOLDER / "stand_in.c").read_text()
    includes = [f"-I{one}" for one in _includes()]
    declared = subprocess.run(
        ["gcc", "-E", "-P", *includes, "-"], text=True, check=True, capture_output=True,
        input="#define __CUDA_API_VERSION_INTERNAL 1\n#include <cuda.h>\n#include <cudaProfiler.h>\n",
    ).stdout  # fmt: skip
    functions = set(re.findall(r"CUresult\s+(cu\w+)\s*\(", declared))
    refused = sorted(functions - set(re.findall(r"^API (cu\w+)\(", source, re.MULTILINE)))
    # declared with other arguments in cuda.h: so without it
    rest = source[source.rindex("#define REFUSED") :].replace("CUDA_ERROR_NOT_SUPPORTED", "801")
    with tempfile.TemporaryDirectory() as work:
        others = pathlib.Path(work) / "refused.c"
        others.write_text(rest + "\n".join(f"REFUSED({name})" for name in refused))
        made = pathlib.Path(work) / library().name
        flags = ["-shared", "-fPIC", "-O1", "-g", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["gcc", *flags, *includes, str(FOLDER / "stand_in.c"), str(others), "-o", str(made)], check=True)
        shutil.move(str(made), str(library()))
    link = folder() / "libcuda.so"
    if not link.is_symlink():
        link.symlink_to(library().name)


def _includes() -> List[pathlib.Path]:
    return sorted((folder() / "headers" / "nvidia").glob("*/include"))


def _pip(action: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", action, "--no-deps", "-q", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    if platform.machine() != "x86_64":
        sys.exit(ready())
    main()
    print(folder())
