"""What a program of the corpus is, and which there are."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

#: Modules that hold programs.
FIELDS = ("vision", "text", "speech", "detection", "diffusion", "graphs", "policies", "loops")


@dataclass(frozen=True)
class Environment:
    """Packages that programs need, which ``bench programs --setup`` installs.

    Attributes:
        requirements: pinned. Without torch among them, the environment sees the packages of the one that runs the
            bench, its torch included; with torch it sees none of them, has this package as well and runs the bench.
    """

    requirements: Tuple[str, ...]

    @property
    def isolated(self) -> bool:
        """True if the environment has a torch of its own."""
        return any(item.startswith("torch==") for item in self.requirements)


#: By name. Programs say which they need; packages that exclude each other are in different ones.
MAIN = "main"
ENVIRONMENTS = {
    MAIN: Environment(
        (
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
            "facenet-pytorch==2.5.3",
        )
    ),
    "lerobot": Environment(("torch==2.10.0", "torchvision==0.25.0", "lerobot==0.4.4")),
}

#: Called with the number of an inference; gives what the program brings back to the host.
Infer = Callable[[int], Any]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: ``package/what``.
        make: builds it on a device, with seeded weights.
        varies: whether lengths, sizes or branches change from inference to inference.
        quick: whether it is one of the dozen that tests run, which need torch, torchvision and torchdiffeq at most.
        environment: the one of :data:`ENVIRONMENTS` that has its packages.
    """

    name: str
    make: Callable[[str], Infer]
    varies: bool
    quick: bool
    environment: str


_programs: Dict[str, Program] = {}


def add_program(name: str, varies: bool = False, quick: bool = False, environment: str = MAIN) -> Callable[[Any], Any]:
    """Decorator: a function from a device's name to an :data:`Infer` is a program."""

    def note(make: Callable[[str], Infer]) -> Callable[[str], Infer]:
        _programs[name] = Program(name, make, varies, quick, environment)
        return make

    return note


def load_catalogue() -> Dict[str, Program]:
    """All programs by name. Their packages are imported when one is made."""
    for field in FIELDS:
        importlib.import_module(f"edge_offload_benchmarks.programs.{field}")
    return dict(_programs)


def choose_programs(only: Sequence[str], environment: str) -> Tuple[str, ...]:
    """Names of an environment's programs that begin with one of ``only`` (all, if there are none), in order."""
    return tuple(
        name
        for name, item in load_catalogue().items()
        if item.environment == environment and (not only or any(name.startswith(start) for start in only))
    )


def list_packages(names: Iterable[str]) -> Dict[str, List[str]]:
    """List the packages of programs by environment; unlisted programs count for the first."""
    programs = load_catalogue()
    needed = {programs[name].environment if name in programs else MAIN for name in names}
    return {
        name: list(requirements_of.requirements) for name, requirements_of in ENVIRONMENTS.items() if name in needed
    }
