"""Compiles native libraries, each once, and keeps them in a cache that all processes share.

The cache is the folder ``native`` of the cache folder (:mod:`edge_offload.places`). A library's file name has a hash of
all that it depends on: sources and headers, compiler, flags and Python. Torch's version is included for a
library linked to torch, and the processor for a library compiled for it. A wheel of ``scripts/wheels`` contains the
libraries for one release of torch and Python.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import ClassVar, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from edge_offload import places
from edge_offload.errors import BadInput, Unsupported
from edge_offload.native import torch_facts
from edge_offload.native.progress import Progress

#: By language: environment variable that names a compiler, commands that are tried without it, Debian package.
COMPILERS = {"C": ("CC", ("cc", "gcc", "clang"), "gcc"), "C++": ("CXX", ("c++", "g++", "clang++"), "g++")}
#: Limits in seconds: of a compilation (own, or another process's that is waited for), and of a check of the compiler.
COMPILE_S, TRIAL_S = 1800.0, 300.0
#: Folder of libraries that a wheel contains.
PREBUILT = pathlib.Path(__file__).with_name("prebuilt")
#: Seconds between two checks whether a build has ended, or is to be stopped.
LOOK_S = 0.1


class BuildFailed(Unsupported):
    """A build that failed, was stopped or exceeded its time limit."""


def cache_folder() -> pathlib.Path:
    """Return the folder of built libraries.

    Raises:
        Unsupported: no cache folder can be determined.
    """
    try:
        return places.native_folder()
    except BadInput as error:
        raise Unsupported(error.cause, remedy=error.remedy) from None


def compiler(language: str = "C++") -> Optional[List[str]]:
    """Return the compiler for ``C`` or ``C++`` as an argument list; None: none is installed."""
    variable, usual, _ = COMPILERS[language]
    chosen = shlex.split(os.environ.get(variable, ""))
    candidates = [chosen] if chosen else [[name] for name in usual]
    return next((candidate for candidate in candidates if shutil.which(candidate[0])), None)


@dataclass(frozen=True)
class Recipe:
    """Build instructions of one library.

    Attributes:
        name: of the library's file in the cache and, if it is a Python extension, of the module.
        what: description for users.
        source: the one file that is compiled.
        flags: compiler flags besides those that follow from the other attributes.
        language: ``C`` or ``C++``.
        extension: it is an extension module of Python.
        torch: it is compiled and linked against torch.
        processor: it is compiled for this machine's processor, if the compiler can.
        takes: about how long the build takes, in words; empty: too short to report.
    """

    name: str
    what: str
    source: pathlib.Path
    flags: Tuple[str, ...] = ("-O2",)
    language: str = "C++"
    extension: bool = True
    torch: bool = False
    processor: bool = False
    takes: str = ""

    #: Flags that are tried in turn for this machine's processor: clang on ARM knows the second, not the first.
    TUNINGS: ClassVar[Sequence[Sequence[str]]] = (("-march=native",), ("-mcpu=native",), ())

    def path(self) -> pathlib.Path:
        """Return the path of the library, which may not be built yet.

        Raises:
            Unsupported: the library is not in the package, and one of these holds. There is no compiler, or it does
                not run; the library needs torch, and torch is not installed; no cache folder can be determined.
        """
        prebuilt = PREBUILT / self._prebuilt_name()
        if prebuilt.exists():
            return prebuilt
        command = self._compiler()
        try:
            version = subprocess.run([*command, "--version"], capture_output=True, timeout=TRIAL_S, check=False).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unsupported(f"the compiler {command[0]} does not run: {error}") from error
        suffix = self._suffix()
        facts = [repr((command, self.flags, self.language)), suffix, version.decode(errors="replace")]
        if self.torch:
            facts += [torch_facts.torch_version(), torch_facts.standard(torch_facts.torch_directory() / "include")]
        if self.processor:
            facts.append(_processor())
        digest = hashlib.sha256("\0".join(facts).encode())
        for name, data in sorted(_inputs(self.source).items()):
            digest.update(f"\0{name}\0".encode() + data)
        return cache_folder() / f"{self.name}-{digest.hexdigest()[:24]}{suffix}"

    def built(self) -> Optional[pathlib.Path]:
        """Return the path of the library if it has been built; else None."""
        with contextlib.suppress(Unsupported):
            path = self.path()
            return path if os.path.exists(path) else None
        return None

    def build(self, stop: Optional[threading.Event] = None) -> pathlib.Path:
        """Return the library's path; first compile it, at low priority, unless it exists.

        One process compiles at a time; others wait for it.

        Raises:
            Unsupported: there is no compiler.
            BuildFailed: the compiler failed or took too long, the cache cannot be written, or ``stop`` was set.
        """
        path = self.path()
        if os.path.exists(path):
            return path
        progress = Progress(self._build_text(), path.parent) if self.takes else contextlib.nullcontext()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with progress, _locked(path.parent / f"{self.name}.lock", stop):
                if not path.exists():
                    self._compile(path, stop, self.TUNINGS if self.processor else ((),))
        except OSError as error:
            remedy = f"set {places.CACHE} to a folder that can be written"
            raise BuildFailed(f"cannot build into {path.parent}: {error}", remedy=remedy) from error
        return path

    def problem(self) -> Optional[BuildFailed]:
        """Return why the library cannot be built here; None if its source compiles, which is recorded in the cache.

        Raises:
            Unsupported: no compiler.
        """
        tried = self.path().with_suffix(".tried")
        if os.path.exists(tried):
            return None
        try:
            command = [*self._compiler(), *self._flags()[0], "-fsyntax-only", str(self.source)]
            status, log = _run(command, TRIAL_S)
            if status:
                return self._failure(log)
            tried.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            tried.touch()
        except BuildFailed as error:
            return error
        except OSError as error:
            remedy = f"set {places.CACHE} to a folder that can be written"
            return BuildFailed(f"{tried.parent} cannot be written: {error.strerror}", remedy=remedy)
        return None

    def build_into(self, folder: pathlib.Path) -> None:
        """Compile into ``folder``, for a wheel: for any processor of this architecture.

        Raises:
            Unsupported: no compiler, or no torch.
            BuildFailed: the compiler failed.
        """
        self._compile(folder / self._prebuilt_name(), None, ((),))

    def _prebuilt_name(self) -> str:
        return f"{self.name}{f'-torch{torch_facts.torch_version()}' if self.torch else ''}{self._suffix()}"

    def _suffix(self) -> str:
        return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so") if self.extension else ".so"

    def _build_text(self) -> str:
        return f"{self.what} ({self.takes})" + (f" for torch {torch_facts.torch_version()}" if self.torch else "")

    def _compiler(self) -> List[str]:
        found = compiler(self.language)
        if found is None:
            variable, _, package = COMPILERS[self.language]
            cause = f"{self.what} needs a {self.language} compiler, and none is installed"
            raise Unsupported(cause, remedy=f"apt install {package}, or set {variable}")
        return found

    def _flags(self) -> Tuple[List[str], List[str]]:
        """Return the flags before and after the source on the command line."""
        before, after = torch_facts.flags_of_installed(self.extension) if self.torch else ([], [])
        headers = [f"-I{sysconfig.get_path('include')}"] if self.extension else []
        return [*self.flags, *before, *headers], after

    def _compile(
        self, path: pathlib.Path, stop: Optional[threading.Event], tunings: Sequence[Sequence[str]]
    ) -> None:  # fmt: skip
        """Compile into a temporary folder and move the result, so that no process loads half a library."""
        before, after = self._flags()
        log = ""
        with tempfile.TemporaryDirectory(dir=str(path.parent)) as folder:
            output = os.path.join(folder, path.name)
            for tuning in tunings:
                command = [*self._compiler(), *before, *tuning, "-shared", "-fPIC", str(self.source)]
                status, log = _run([*command, "-o", output, *after], stop=stop)
                if not status:
                    os.replace(output, path)
                    return
        raise self._failure(log)

    def _failure(self, log: str) -> BuildFailed:
        """Convert the compiler's error output to a cause and a remedy."""
        what = f"{self.what} cannot be built" + (f" for torch {torch_facts.torch_version()}" if self.torch else "")
        errors = [line for line in log.splitlines() if "error" in line]
        text = (" ".join(errors) or " ".join(log.split()))[:1500]
        if "Python.h" in log and "No such file" in log:
            remedy = f"apt install python3-dev (headers of this Python, {platform.python_version()})"
            return BuildFailed(f"{what}: Python.h is missing", remedy=remedy)
        if not self.torch:
            return BuildFailed(f"{what}: {text}", remedy=f"set {COMPILERS[self.language][0]} to another compiler")
        include = torch_facts.torch_directory() / "include"
        wanted = torch_facts.standard(include)
        if re.search(r"(unrecognized|unknown|invalid)[^\n]*std=", log) or (errors and str(include) in errors[0]):
            older = "" if wanted == "c++17" else "pip install 'torch<2.14' (C++17), or "
            done = subprocess.run([*self._compiler(), "--version"], capture_output=True, text=True, check=False)
            version = (done.stdout.splitlines() or self._compiler())[0]
            return BuildFailed(
                f"{what}: its headers want {wanted.upper()}, and {version} says: {text[:300]}",
                remedy=f"{older}install a newer compiler (apt install g++-12, then CXX=g++-12)",
            )
        return BuildFailed(f"{what}: {text}", remedy=_other_torch(torch_facts.torch_version()))


def _other_torch(version: str) -> str:
    """Return the remedy where the compiler is new enough, but torch's headers do not fit our sources."""
    release = tuple(map(int, re.findall(r"\d+", version)[:3]))
    for bound, sign in ((torch_facts.OLDEST, ">="), (torch_facts.NEWEST, "<=")):
        limit = tuple(map(int, bound.split(".")))
        if (release < limit) if sign == ">=" else (release > limit):
            return f"pip install 'torch{sign}{bound}'"
    return "set CXX to another C++ compiler (GCC 9 or newer)"


def _inputs(source: pathlib.Path) -> Dict[str, bytes]:
    """Return the bytes of a source and of all files in its folder that it includes, by name."""
    found: Dict[str, bytes] = {}
    todo: Set[str] = {source.name}
    while todo:
        name = todo.pop()
        found[name] = source.with_name(name).read_bytes()
        included = re.findall(rb'^\s*#\s*include\s+"([^"]+)"', found[name], re.MULTILINE)
        todo |= {text.decode() for text in included} - set(found)
    return found


def _processor() -> str:
    """Return the facts that -march=native depends on: machines with different processors may share a home folder."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    wanted = ("model name", "flags", "features", "cpu part", "cpu implementer")
    lines = {line.strip() for line in text.splitlines() if line.lower().startswith(wanted)}
    return "\n".join([platform.machine(), *sorted(lines)])


@contextlib.contextmanager
def _locked(path: pathlib.Path, stop: Optional[threading.Event]) -> Iterator[None]:
    """Hold a file lock that one process has at a time.

    Raises:
        BuildFailed: another process held it for :data:`COMPILE_S`, or ``stop`` was set.
    """
    deadline = time.monotonic() + COMPILE_S
    with path.open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the file closes
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    cause = f"another process has been building in {path.parent} for {COMPILE_S:.0f} s"
                    raise BuildFailed(cause, remedy="look what it is doing") from None
                if (stop or threading.Event()).wait(LOOK_S):
                    raise BuildFailed("the build was stopped") from None
        yield


def _run(command: Sequence[str], limit_s: float = COMPILE_S, stop: Optional[threading.Event] = None) -> Tuple[int, str]:
    """Run a compiler; return its exit status and standard error. An exception meanwhile also stops it.

    Raises:
        BuildFailed: it took longer than ``limit_s``, or ``stop`` was set.
    """
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    deadline = time.monotonic() + limit_s
    with subprocess.Popen(
        [*nice, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            while True:
                try:
                    log = process.communicate(timeout=LOOK_S)[1]
                    return process.returncode, log
                except subprocess.TimeoutExpired:
                    pass
                if stop is not None and stop.is_set():
                    raise BuildFailed("the build was stopped")
                if time.monotonic() > deadline:
                    raise BuildFailed(f"{command[0]} was not done within {limit_s:.0f} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
