"""The native libraries of this package, by what a person knows them as.

They are built for the torch that is there by ``scripts/setup`` and the catkin build, else on first use or by
``edge-offload doctor --build``; never in a wheel, whose isolated build would compile against another torch.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from edge_offload.native.recipe import BuildFailed, Recipe, compiler

PACKAGE = pathlib.Path(__file__).parents[1]
CPP = PACKAGE / "native" / "cpp"
FLAGS = ("-O2", "-DNDEBUG", "-fno-plt", "-fvisibility=hidden", "-Wno-attributes")

GUARD = Recipe(
    "edge_offload_guard", "the virtual GPU's device guard", CPP / "guard.cpp", FLAGS, extension=False, torch=True
)
DEVICE = Recipe(
    "edge_offload_device", "the virtual GPU", CPP / "device.cpp",
    (*FLAGS, "-DTORCH_EXTENSION_NAME=edge_offload_device"), torch=True, takes="one to three minutes",
)  # fmt: skip
NODES = Recipe(
    "edge_offload_nodes", "the server's native program runner", CPP / "nodes.cpp", FLAGS, torch=True,
    takes="half a minute to two",
)  # fmt: skip
CODECS = Recipe(
    "edge_offload_kernels", "the codecs' native kernels", PACKAGE / "link" / "codecs" / "kernels" / "kernels.c",
    ("-O3", "-fno-strict-aliasing"), language="C", processor=True,
)  # fmt: skip
WINDOWS = Recipe(
    "edge_offload_windows", "the planner of promises", PACKAGE / "server" / "promises" / "windows" / "windows.c",
    ("-O2", "-ffp-contract=off"), language="C",
)  # fmt: skip

#: What can be asked for by name, and what a person calls it.
GROUPS: Dict[str, Tuple[str, Tuple[Recipe, ...]]] = {
    "device": ("virtual GPU", (GUARD, DEVICE)),
    "runner": ("server's steps", (NODES,)),
    "codecs": ("payload codecs", (CODECS,)),
    "promises": ("planner of promises", (WINDOWS,)),
}


@dataclass(frozen=True)
class VirtualDevice:
    """Paths of the virtual device's libraries: the guard (loaded before torch) and the device (a Python extension)."""

    guard: pathlib.Path
    device: pathlib.Path


def built_device() -> Optional[VirtualDevice]:
    """The virtual device's libraries, if they have been built."""
    guard, device = GUARD.built(), DEVICE.built()
    return VirtualDevice(guard, device) if guard and device else None


def build_device() -> VirtualDevice:
    """The virtual device's libraries, built if need be.

    Raises:
        Unsupported: no compiler.
        BuildFailed: the compiler failed; the text ends with its last lines.
    """
    return VirtualDevice(GUARD.build(), DEVICE.build())


def device_problem() -> Optional[BuildFailed]:
    """Why the virtual device cannot be built here; None if its sources compile, which takes a while the first time.

    Raises:
        Unsupported: no compiler.
    """
    return GUARD.problem() or DEVICE.problem()


def device_is_possible() -> bool:
    """Whether the virtual device is built, or there is a compiler to build it with."""
    return built_device() is not None or compiler() is not None
