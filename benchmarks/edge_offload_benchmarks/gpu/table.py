"""The phases of ``scripts/gpu run``: seconds that each may take, and what runs at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Tuple


@dataclass(frozen=True)
class Entry:
    """One phase.

    Attributes:
        seconds: that it may take on a machine with a GPU.
        tiny_s: that it may take in a tiny rehearsal.
        what: it finds, in words.
        parts: phases that run at once in its place.
        module: of :mod:`edge_offload_benchmarks.gpu.phases`; empty: the phase's name.
    """

    seconds: float
    tiny_s: float
    what: str
    parts: Tuple[str, ...] = ()
    module: str = ""


PHASES: Dict[str, Entry] = {
    "install": Entry(60, 60, "unpacks what is carried"),
    "facts": Entry(40, 120, "the machine, and floors of launches, copies and graphs"),
    "native": Entry(150, 240, "places our libraries, builds those that are missing"),
    "doctor": Entry(30, 120, "edge-offload doctor"),
    "correct": Entry(150, 200, "all four at once", ("bits", "conformance", "modules", "build")),
    "bits": Entry(125, 200, "programs and networks in every mode, against plain torch on the device"),
    "conformance": Entry(130, 200, "samples of op_db through a server, against plain torch on the device"),
    "modules": Entry(130, 200, "OffloadedModule in local, server and split"),
    "build": Entry(150, 200, "the product's own build of its libraries, in a cache of its own"),
    "speed": Entry(190, 200, "eager, CUDA graph, and every mode by a robot without a GPU"),
    "batches": Entry(45, 120, "latencies and exactness of batches, by torch and as CUDA graphs"),
    "faults": Entry(90, 200, "no memory, a broken context, a server that is killed"),
    "engines": Entry(90, 60, "engines against eager, and buffers of pycuda"),
    "robots": Entry(100, 90, "robots that share the device, one by one and in batches of promises"),
    "tests": Entry(240, 200, "the suites of scripts/test --gpu that need no ROS", module="suites"),
    "shapes": Entry(100, 200, "operators whose shapes a client works out as the device does"),
    "peers": Entry(85, 90, "remoting peers of other projects, if .gpu/peers has them, beside replay and lazy"),
    "papers": Entry(240, 90, "the papers' table: networks, links and modes of a slow robot without a GPU"),
    "pool": Entry(50, 60, "whether members of a pool take a device"),
}

DEFAULT = ("install", "facts", "native", "doctor", "correct", "speed", "batches", "faults", "peers")
#: The same where times do not count.
TINY_DEFAULT = ("install", "facts+native+doctor", "correct", "speed+batches+faults", "peers")


def entry_of(name: str) -> Entry:
    """The entry of a phase, or of phases that run at once: names joined by ``+``; ``:90`` behind them: 90 s at most.

    Raises:
        KeyError: there is no such phase.
        ValueError: what stands behind a colon is no number.
    """
    name, colon, most = name.partition(":")
    if colon:
        entry = entry_of(name)
        return replace(entry, seconds=min(entry.seconds, float(most)), parts=list_members(name))
    if "+" not in name:
        return PHASES[name]
    parts = tuple(part for one in name.split("+") for part in list_members(one))
    seconds, tiny_s = (max(getattr(PHASES[part], field) for part in parts) for field in ("seconds", "tiny_s"))
    return Entry(seconds, tiny_s, "at once", parts)


def list_members(name: str) -> Tuple[str, ...]:
    """The phases that have files: a phase's parts, or itself."""
    return entry_of(name).parts or (name,)
