"""Putting the virtual CUDA device into this process: load the guard, import torch, install kernels and surface.

Order matters: the guard must be in the process before torch is imported. :func:`preload_guard` does that part and
:func:`install` the rest; the launcher (``edge-offload exec``) calls both around the program's own ``import torch``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from edge_offload.device import connect, shape_functions
from edge_offload.device.shapes import trust_shapes
from edge_offload.errors import BadInput, EdgeOffloadError, LinkLost, Unsupported
from edge_offload.mode import Mode, parse_mode
from edge_offload.native import torch_facts
from edge_offload.native.libraries import VirtualDevice, build_device, built_device
from edge_offload.native.loader import load_extension
from edge_offload.outputs import write_text

if TYPE_CHECKING:
    from edge_offload.replay.recorder import StandIn

#: Environment variable of releases that had a second device, in pure Python; ``native`` is what there is now.
CHOICE, NATIVE = "EDGE_OFFLOAD_DEVICE", "native"
MODES = (Mode.PER_OP, Mode.CACHED, Mode.LAZY, Mode.REPLAY)
#: From the native module, the remote and the mode: who is called by the device, and the recorder.
MakeRecorder = Callable[[Any, Any, Mode], Tuple[Any, Any]]
_installed: Optional[Installed] = None


class Installed:
    """Installation of the virtual device: the native module, the recorder, and the connection to the server."""

    def __init__(self, native: Any, recorder: Any, remote: Any, limit: Callable[[], None]) -> None:
        self.native = native
        self.recorder = recorder
        self.remote = remote
        self._limit = limit

    def switch_mode(self, mode: Mode) -> None:
        """Switches to another mode; what the device holds stays.

        Raises:
            BadInput: not one of :data:`MODES`, or the device is computed in this process.
        """
        if self.recorder.mode is Mode.LOCAL:
            raise BadInput(f"mode {mode}: this process computes the device", remedy="start the program with --server")
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
        torches = getattr(self.remote, "torches", "")
        write_tally_file(path, {**figures, **({"two_torches": torches} if torches else {})})

    def reconnect(self, remote: Any) -> None:
        """Go on with another session. Tensors from before are lost: using one raises LinkLost."""
        for _ in range(2):  # what was pending is dropped with the first; the second only asks where numbers are
            with contextlib.suppress(EdgeOffloadError):
                self.native.synchronize()
        self.native.expect(-1)
        self.native.read_alone()
        self.recorder.reconnect(remote)
        self.native.refuse(dict(remote.refused))
        trust_shapes(self.native, remote)
        self.remote = remote
        self._limit()


def write_tally_file(path: str, figures: Dict[str, Any]) -> None:
    """Write what a program has cost; it ends while this runs, so that a full disk costs a line with the figures."""
    text = json.dumps(figures)
    try:
        write_text(path, text)
    except BadInput as error:
        print(f"edge-offload exec: {error}; the tally is {text}", file=sys.stderr)


def check_choice() -> None:
    """Refuse a device that does not exist.

    Raises:
        BadInput: the environment asks for one.
    """
    choice = os.environ.get(CHOICE, NATIVE)
    if choice not in ("", NATIVE):
        raise BadInput(
            f"{CHOICE}={choice}: the virtual device is C++ only",
            remedy=f"unset {CHOICE}; where there is no compiler: apt install g++",
        )


def preload_guard() -> VirtualDevice:
    """Load the guard library, building it first if need be.

    Raises:
        BadInput: the environment asks for a device that does not exist.
        Unsupported: torch is imported already or cannot be loaded, or there is no compiler to build with.
    """
    check_choice()
    if "torch" in sys.modules:
        raise Unsupported(
            "the virtual device must be set up before torch is imported",
            remedy="start the program with 'edge-offload exec'",
        )
    libraries = build_device()
    torch_facts.load_torch()
    ctypes.CDLL(str(libraries.guard), mode=ctypes.RTLD_GLOBAL)
    return libraries


def install_device(
    libraries: VirtualDevice,
    remote: Any,
    mode: Mode,
    make: Optional[MakeRecorder] = None,
    stand_in: Optional[StandIn] = None,
) -> Installed:
    """Make ``cuda`` the virtual device in this process; torch must have been imported after :func:`preload_guard`.

    Args:
        libraries: from :func:`preload_guard`.
        remote: where operators run (:class:`~edge_offload.protocol.remote.Remote`).
        mode: one of per_op, cached, lazy, replay; with ``make`` the one that its recorder knows.
        make: makes the device's handler and the recorder; by default a :class:`Recorder`.
        stand_in: takes the place of ``remote`` while that is lost.

    Raises:
        BadInput: another mode.
    """
    from edge_offload.replay.recorder import Recorder

    if make is None:
        _check_mode(mode)
    native = _load_native(libraries)
    if make is None:
        handler = recorder = Recorder(native, remote, mode, stand_in=stand_in)
    else:
        handler, recorder = make(native, remote, mode)
    native.install(handler)
    shape_functions.bypass_compiler()
    trust_shapes(native, remote)
    native.per_call(mode in (Mode.PER_OP, Mode.CACHED))
    return _finish_installation(native, recorder, remote)


def install_local(libraries: VirtualDevice, threads: int = 0) -> Installed:
    """Make ``cuda`` a device that this process computes by itself (mode ``local``).

    Args:
        libraries: from :func:`preload_guard`.
        threads: torch's threads; 0 leaves them.
    """
    import torch

    from edge_offload.device import lagging
    from edge_offload.device.in_process import NoRecorder, NoRemote
    from edge_offload.execute.heap import retain_freed_memory

    retain_freed_memory()  # as the executor process does that would compute otherwise
    if threads:
        torch.set_num_threads(threads)
    native, remote = _load_native(libraries), NoRemote()
    recorder = NoRecorder(native, remote)
    native.compute_here(False)
    lagging.start_lagging(native)
    native.install(recorder)
    return _finish_installation(native, recorder, remote)


def _finish_installation(native: Any, recorder: Any, remote: Any) -> Installed:
    from edge_offload.device import collectives
    from edge_offload.device.surface import CudaSurface
    from edge_offload.execute.devices import Virtual

    global _installed
    Virtual.tested = recorder.mode is Mode.LOCAL
    Virtual.owner = "this process on the CPU" if Virtual.tested else "whoever computes for this program"
    native.refuse(dict(remote.refused))
    if torch_facts.built_with_cuda():
        _watch_extensions(native)
    surface = CudaSurface(native, recorder)
    surface.patch_torch()
    collectives.register_collectives()
    _installed = Installed(native, recorder, remote, surface.driver.limit_memory)
    atexit.register(_close_sessions)
    return _installed


def _close_sessions() -> None:
    """End the sessions: that of the server, and that of what stands in for it."""
    if _installed is not None:
        for remote in {_installed.remote, _installed.recorder.remote}:
            remote.close()


def _load_native(libraries: VirtualDevice) -> Any:
    native = load_extension("edge_offload_device", libraries.device)
    importlib.import_module("edge_offload.ir.trace.composed")  # defines the operator that the device calls
    return native


def _watch_extensions(native: Any) -> None:
    """Adopts the CUDA kernels of libraries that are loaded later (torchvision): these must not run either."""
    import torch

    load, create = torch.ops.load_library, importlib.machinery.ExtensionFileLoader.create_module

    def load_library(path: Any) -> Any:
        loaded = load(path)  # type: ignore[no-untyped-call]
        native.adopt()
        return loaded

    def create_module(self: Any, spec: Any) -> Any:
        module = create(self, spec)
        native.adopt()
        return module

    torch.ops.load_library = load_library  # type: ignore[method-assign]
    importlib.machinery.ExtensionFileLoader.create_module = create_module  # type: ignore[method-assign]


def _check_mode(mode: Mode) -> None:
    if mode not in MODES:
        raise BadInput(
            f"mode {mode} does not run on the virtual device", remedy=f"use one of {', '.join(str(m) for m in MODES)}"
        )


def current_installation() -> Optional[Installed]:
    """Installation in this process, or None."""
    return _installed


def from_environment() -> Installed:
    """Install as the launcher asked for in the environment (called once torch has been imported)."""
    libraries = built_libraries()
    settings = connect.ExecSettings.from_environment(os.environ)
    made = _install_with(libraries, settings, parse_mode(settings.mode))
    if settings.tally:
        atexit.register(made.write_tally, settings.tally)  # runs before the connection is closed
    return made


def built_libraries() -> VirtualDevice:
    """Libraries that the launcher built.

    Raises:
        Unsupported: it built nothing.
    """
    libraries = built_device()
    if libraries is None:
        raise Unsupported("the native device has not been built", remedy="start the program with 'edge-offload exec'")
    return libraries


def _install_with(libraries: VirtualDevice, settings: connect.ExecSettings, mode: Mode) -> Installed:
    """Installs with the server of the settings, or with what this machine computes."""
    from edge_offload.device.remotes.executor import WorkerRemote
    from edge_offload.protocol.remote import Remote

    on_robot = mode is Mode.LOCAL
    if settings.server and not on_robot:
        if settings.absent == connect.LATER:
            return install_device(libraries, Remote(), mode)
        try:
            remote = connect.connect(settings)
        except LinkLost as error:
            if settings.absent != connect.LOCAL:
                raise
            print(f"edge_offload: {error.cause}: everything is computed on this machine", file=sys.stderr)
            on_robot = True
        else:
            stand_in = None
            if settings.lost == connect.LOCAL:
                from edge_offload.device.remotes.executor import ExecutorHere

                stand_in = ExecutorHere(settings.device, settings.threads)
            return install_device(libraries, remote, mode, stand_in=stand_in)
    if on_robot and settings.device == "cpu":
        return install_local(libraries, settings.threads)
    worker = WorkerRemote(settings.device, settings.threads)
    return install_device(libraries, worker, Mode.LAZY if mode is Mode.LOCAL else mode)
