"""Names by which a server knows the measured networks; without torch, which takes over a second to import."""

from __future__ import annotations

from typing import Iterable, List

MODULE = "edge_offload_benchmarks.gpu.networks"
#: Networks of that module; others are of the library's registry.
BENCH_NETWORKS = ("resnet50", "resnet18", "mobilenet_v3_large", "vit_s", "tiny")


def wire_name(name: str) -> str:
    """The name by which a server knows a network."""
    return f"{MODULE}:{name}" if name in BENCH_NETWORKS else name


def allow_options(names: Iterable[str]) -> List[str]:
    """Options of ``serve`` for the networks of that module."""
    return [option for name in names if name in BENCH_NETWORKS for option in ("--allow", wire_name(name))]
