"""Putting the virtual CUDA device into this process: load the guard, import torch, install kernels and surface.

Order matters: the guard must be in the process before torch is imported. :func:`preload` does that part and
:func:`install` the rest; the launcher (``edge-offload exec``) calls both around the program's own ``import torch``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any, List, Optional

from edge_offload.capture import build
from edge_offload.capture.connect import ENVIRONMENT
from edge_offload.errors import BadInput, EdgeOffloadError, LinkLost, Unsupported
from edge_offload.modes import Mode, parse_mode

MODES = (Mode.PER_OP, Mode.CACHED, Mode.LAZY, Mode.REPLAY)
_installed: Optional[Installed] = None


class Installed:
    """What :func:`install` made: the native module, the recorder, and the connection to the server."""

    def __init__(self, native: Any, recorder: Any, remote: Any) -> None:
        self.native = native
        self.recorder = recorder
        self.remote = remote

    def switch(self, mode: Mode) -> None:
        """Go on in another mode; what the device holds stays.

        Raises:
            BadInput: not one of :data:`MODES`.
        """
        _check_mode(mode)
        self.native.synchronize()
        self.native.expect(-1)
        self.native.per_call(mode in (Mode.PER_OP, Mode.CACHED))
        self.recorder.switch(mode)

    def write_tally(self, path: str) -> None:
        """Write what the program has cost so far as JSON."""
        counters = self.recorder.counters
        figures = {
            "round_trips": counters.round_trips, "rpcs": counters.messages, "segments": counters.segments,
            "ops": self.native.counters()["calls"], "bytes_up": self.remote.bytes_up,
            "bytes_down": self.remote.bytes_down,
        }  # fmt: skip
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(figures, stream)

    def reconnect(self, remote: Any) -> None:
        """Go on with another session. Tensors from before are lost: using one raises LinkLost."""
        for _ in range(2):  # what was pending is dropped with the first; the second only asks where numbers are
            with contextlib.suppress(EdgeOffloadError):
                self.native.synchronize()
        self.native.expect(-1)
        self.recorder.reconnect(remote)
        self.remote = remote


def preload() -> build.Libraries:
    """Load the guard library, building it first if need be.

    Raises:
        Unsupported: torch is imported already, is built with CUDA, or there is no compiler to build with.
    """
    if "torch" in sys.modules:
        raise Unsupported(
            "the virtual device must be set up before torch is imported",
            remedy="start the program with 'edge-offload exec'",
        )
    directory = build.torch_directory()
    if build.built_with_cuda():
        raise Unsupported(
            f"torch {build.torch_version()} in {directory} is built with CUDA and keeps that device",
            remedy="install the CPU build of torch on the robot: pip install torch --index-url of the CPU wheels",
        )
    libraries = build.build()
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(directory / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(libraries.guard), mode=ctypes.RTLD_GLOBAL)
    return libraries


def install(libraries: build.Libraries, remote: Any, mode: Mode) -> Installed:
    """Make ``cuda`` the virtual device in this process; torch must have been imported after :func:`preload`.

    Args:
        libraries: from :func:`preload`.
        remote: where operators run (:class:`~edge_offload.capture.remote.Remote`).
        mode: one of per_op, cached, lazy, replay.

    Raises:
        BadInput: another mode.
    """
    global _installed
    _check_mode(mode)
    from edge_offload.capture.recorder import Recorder
    from edge_offload.capture.surface import Surface

    loader = importlib.machinery.ExtensionFileLoader("edge_offload_device", str(libraries.device))
    spec = importlib.util.spec_from_file_location("edge_offload_device", str(libraries.device), loader=loader)
    assert spec is not None
    native = importlib.util.module_from_spec(spec)
    loader.exec_module(native)
    recorder = Recorder(native, remote, mode)
    native.install(recorder)
    native.trust(operators_with_exact_shapes())
    native.per_call(mode in (Mode.PER_OP, Mode.CACHED))
    Surface(native, recorder).apply()
    _installed = Installed(native, recorder, remote)
    atexit.register(lambda: _installed.remote.close() if _installed is not None else None)
    return _installed


def _check_mode(mode: Mode) -> None:
    if mode not in MODES:
        raise BadInput(
            f"mode {mode} does not run on the virtual device", remedy=f"use one of {', '.join(str(m) for m in MODES)}"
        )


def operators_with_exact_shapes() -> List[str]:
    """Operators whose metadata is worked out here: their meta kernel is generated from the same code as the CPU's.

    Those are the structured ones; meta kernels written in Python are approximations and not among them.
    """
    import torch

    names = []
    python_made = set(torch._meta_registrations._meta_lib_dont_use_me_use_register_meta._op_impls)
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        has = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, name)
        short = name[len("aten::") :]
        if (
            has("Meta")
            and has("CPU")
            and not has("CompositeExplicitAutograd")
            and f"aten/{short}/Meta" not in python_made
        ):
            names.append(name)
    return names


def installed() -> Optional[Installed]:
    """What :func:`install` made in this process, or None."""
    return _installed


def from_environment() -> Installed:
    """Install as the launcher asked for in the environment (called once torch has been imported)."""
    libraries = build.existing()
    if libraries is None:
        raise Unsupported("the native device has not been built", remedy="start the program with 'edge-offload exec'")
    mode = parse_mode(os.environ.get(f"{ENVIRONMENT}_MODE", "replay"))
    made = install(libraries, _remote(), mode)
    tally = os.environ.get(f"{ENVIRONMENT}_TALLY", "")
    if tally:
        atexit.register(made.write_tally, tally)  # runs before the connection is closed
    return made


def _remote() -> Any:
    """The server of the environment over the link, or an executor process of our own."""
    from edge_offload.capture import connect
    from edge_offload.capture.remote import AbsentRemote, WorkerRemote

    settings = connect.Settings.from_environment(os.environ)
    if settings.server and settings.absent == connect.LATER:
        return AbsentRemote()
    if settings.server:
        try:
            return connect.connect(settings)
        except LinkLost as error:
            if settings.absent != connect.LOCAL:
                raise
            print(f"edge_offload: {error.cause}: everything is computed on this machine", file=sys.stderr)
    return WorkerRemote(settings.device, settings.threads)
