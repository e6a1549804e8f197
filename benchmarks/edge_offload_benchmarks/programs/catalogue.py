"""What a program of the corpus is, and which there are."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Sequence, Tuple

#: Modules that hold programs.
FIELDS = ("vision", "text", "speech", "detection", "diffusion", "graphs", "policies", "loops")
#: What the corpus needs beside torch, torchvision and this package, in an environment of its own.
REQUIREMENTS = (
    "timm==1.0.31",
    "transformers==5.23.0",
    "diffusers==0.42.1",
    "ultralytics==8.4.190",
    "torch_geometric==2.8.1",
    "stable-baselines3==2.9.2",
    "segment-anything==1.0",
    "kornia==0.9.0",
    "silero-vad==6.2.3",
    "openai-whisper==20250625",
    "monai==1.6.1",
    "torchdiffeq==0.2.5",
)

#: Called with the number of an inference; gives what the program brings back to the host.
Infer = Callable[[int], Any]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: ``package/what``.
        make: builds it on a device, with seeded weights.
        varies: whether lengths, sizes or branches change from inference to inference.
        quick: whether it is one of the small ones that tests run.
    """

    name: str
    make: Callable[[str], Infer]
    varies: bool
    quick: bool


_found: Dict[str, Program] = {}


def program(name: str, varies: bool = False, quick: bool = False) -> Callable[[Any], Any]:
    """Decorator: a function from a device's name to an :data:`Infer` is a program."""

    def note(make: Callable[[str], Infer]) -> Callable[[str], Infer]:
        _found[name] = Program(name, make, varies, quick)
        return make

    return note


def catalogue() -> Dict[str, Program]:
    """All programs by name. Their packages are imported when one is made."""
    for field in FIELDS:
        importlib.import_module(f"edge_offload_benchmarks.programs.{field}")
    return dict(_found)


def chosen(only: Sequence[str]) -> Tuple[str, ...]:
    """Names that begin with one of ``only`` (all, if there are none), in order."""
    return tuple(name for name in catalogue() if not only or any(name.startswith(start) for start in only))
