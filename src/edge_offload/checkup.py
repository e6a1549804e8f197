"""What works on this machine: one finding per part, each with a remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import stat
import statistics
import time
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

from edge_offload.errors import EdgeOffloadError

OK, WARN, MISSING = "ok", "warn", "missing"


@dataclass(frozen=True)
class Finding:
    """One line of the report: ``level`` is ok, warn or missing."""

    level: str
    what: str
    detail: str
    remedy: str = ""


def check(server: Optional[str] = None, keys: Optional[str] = None, build: bool = False) -> List[Finding]:
    """Look at everything; with ``server``, connect to it; with ``build``, first build all that is built on first use.

    Never raises for what it finds.
    """
    checks: Tuple[Callable[[], List[Finding]], ...] = (
        _python,
        _torch,
        _packages,
        _devices,
        _compiler,
        _virtual_device,
        _executor,
        _codecs,
        _ros,
        _npm,
        lambda: _keys(keys),
        _cache,
        lambda: _link(server, keys),
    )
    findings: List[Finding] = []
    if build:
        checks = (_built, *checks)
    for one in checks:
        try:
            findings += one()
        except EdgeOffloadError as error:
            findings.append(Finding(WARN, "check", error.cause, error.remedy))
    return findings


def _python() -> List[Finding]:
    return [Finding(OK, "python", f"{platform.python_version()} on {platform.machine()}")]


def _torch() -> List[Finding]:
    try:
        import torch
    except ImportError as error:
        return [Finding(MISSING, "torch", str(error), "install torch (on a Jetson, NVIDIA's build)")]
    from edge_offload.execute.fingerprint import fingerprint

    facts = fingerprint("cpu")
    return [
        Finding(OK, "torch", f"{torch.__version__}, {facts['threads']} threads, {facts['cpu_capability']}"),
    ]


def _packages() -> List[Finding]:
    absent = []
    for name in ("numpy", "scipy", "pyzmq", "msgpack", "safetensors", "jsonschema", "lz4", "zstandard", "psutil"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    if absent:
        return [Finding(MISSING, "packages", f"not installed: {', '.join(absent)}", "pip install edge_offload")]
    return [Finding(OK, "packages", "all that the library needs")]


def _devices() -> List[Finding]:
    try:
        from edge_offload.execute.devices import backends
    except ImportError:
        return []
    return [
        Finding(OK if backend.present else WARN, f"device {backend.name}", backend.detail, backend.remedy)
        for backend in backends()
    ]


def _compiler() -> List[Finding]:
    named = os.environ.get("CXX")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if not found:
        return [
            Finding(
                WARN,
                "compiler",
                "no C++ compiler: payload codecs are slower, and there is no virtual GPU",
                "apt install g++",
            )
        ]
    return [Finding(OK, "compiler", found)]


def _virtual_device() -> List[Finding]:
    """Whether ``edge-offload exec`` and the modes on the virtual device work here."""
    from edge_offload.device import installation
    from edge_offload.native import libraries, torch_facts
    from edge_offload.native.recipe import compiler

    what, version = "virtual GPU", torch_facts.torch_version()
    installation.check_choice()
    kernels = ", whose own CUDA kernels it replaces in the program" if torch_facts.built_with_cuda() else ""
    if libraries.built_device() is not None:
        return [Finding(OK, what, f"built for torch {version}{kernels}")]
    if compiler() is None:
        detail = "cannot be built (no C++ compiler): no 'edge-offload exec', no mode replay"
        return [Finding(WARN, what, detail, "apt install g++")]
    wrong = libraries.DEVICE.problem()
    if wrong is not None:
        return [Finding(WARN, what, f"{wrong.cause}: no 'edge-offload exec', no mode replay", wrong.remedy)]
    detail = f"not built yet for torch {version}{kernels}, a test compile works"
    return [Finding(OK, what, f"{detail}; the first 'edge-offload exec' builds it, or 'edge-offload doctor --build'")]


def _executor() -> List[Finding]:
    """How a server runs the steps of programs whose sizes depend on data."""
    from edge_offload.execute.heap import jemalloc
    from edge_offload.native.libraries import NODES
    from edge_offload.native.recipe import compiler

    heap = "with jemalloc" if jemalloc() is not None else "with glibc's allocator (faster: apt install libjemalloc2)"
    what = "server's steps"
    if compiler() is None:
        detail = f"of data-dependent sizes run in Python, {heap}: no C++ compiler"
        return [Finding(WARN, what, detail, "apt install g++")]
    when = "built" if NODES.built() else "not built yet; the first 'edge-offload serve' does it"
    return [Finding(OK, what, f"of data-dependent sizes run in C++, {when}, {heap}")]


def _built() -> List[Finding]:
    """Build all that is built on first use; findings for what could not be."""
    from edge_offload.native.libraries import GROUPS

    findings = []
    for what, recipes in GROUPS.values():
        try:
            for recipe in recipes:
                recipe.build()
        except EdgeOffloadError as error:
            findings.append(
                Finding(MISSING, f"{what}, built", error.cause, error.remedy or "set CXX to another C++ compiler")
            )
    return findings


def _codecs() -> List[Finding]:
    try:
        from edge_offload.link import codecs
    except ImportError:
        return []
    line = codecs.prepare()
    if line.startswith("numpy"):
        return [Finding(WARN, "payload codecs", line, "apt install g++ python3-dev")]
    return [Finding(OK, "payload codecs", line)]


def _ros() -> List[Finding]:
    distribution = os.environ.get("ROS_DISTRO", "")
    for module in ("rospy", "edge_offload_msgs"):
        try:
            __import__(module)
        except ImportError as error:
            remedy = (
                "source devel/setup.bash" if module == "edge_offload_msgs" else "not needed on a server without ROS"
            )
            return [Finding(WARN, "ROS", f"{module} cannot be imported: {error}", remedy)]
    return [Finding(OK, "ROS", f"rospy is there {distribution}".strip())]


def _npm() -> List[Finding]:
    found = shutil.which("npm")
    if not found:
        return [Finding(WARN, "npm", "absent", "only needed once, to fetch MoveNet's weights: apt install npm")]
    return [Finding(OK, "npm", found)]


def _keys(directory: Optional[str]) -> List[Finding]:
    from edge_offload.link.security.keys import ROLES, KeyStore

    store = KeyStore(directory)
    findings = []
    for role in ROLES:
        pair = store.pair(role)
        if pair is None:
            detail, remedy = "none yet (made on first use on loopback)", "for a network: edge-offload keys new"
            findings.append(Finding(WARN, f"{role} key", detail, remedy))
        else:
            made = "made on first use, good for loopback only" if pair.automatic else "made on purpose"
            findings.append(Finding(OK, f"{role} key", f"{pair.public} ({made})"))
    if store.directory.exists() and stat.S_IMODE(store.directory.stat().st_mode) & 0o077:
        findings.append(
            Finding(WARN, "key directory", f"others can read {store.directory}", f"chmod -R go= {store.directory}")
        )
    findings.append(Finding(OK, "allow-list", f"{len(store.clients())} robots, {len(store.servers())} servers known"))
    return findings


def _cache() -> List[Finding]:
    from edge_offload.models import cache

    directory = cache.cache_dir()
    place = directory
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        return [
            Finding(MISSING, "cache", f"{place} cannot be written", "set EDGE_OFFLOAD_CACHE to a directory of yours")
        ]
    free = shutil.disk_usage(place).free
    if free < 1 << 30:
        return [Finding(WARN, "cache", f"{directory}: {free / 1e9:.1f} GB free", "make room for weights and builds")]
    return [Finding(OK, "cache", f"{directory}, {free / 1e9:.0f} GB free")]


def _link(server: Optional[str], keys: Optional[str]) -> List[Finding]:
    if not server:
        return [Finding(WARN, "link", "not tried", "name a server: --server tcp://host:5700")]
    from edge_offload.execute.fingerprint import differences, fingerprint, two_torches
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.server.status import ServerStatus

    try:
        with Client(server, keys=KeyStore(keys)) as client:
            welcome = client.wait_ready(5.0)
            trips = []
            status = None
            for _ in range(10):
                began = time.monotonic()
                status = ServerStatus.from_dict(client.request("status").result(5.0).body)
                trips.append(time.monotonic() - began)
            clock = client.clock
    except EdgeOffloadError as error:
        return [Finding(MISSING, "link", error.cause, error.remedy)]
    findings = [
        Finding(OK, "link", f"{server}: request and answer in {statistics.median(trips) * 1e3:.2f} ms (median)")
    ]
    if status is not None:
        findings.append(
            Finding(OK, "server", f"device {status.device}, load {status.load:.0%}, {status.sessions} robots connected")
        )
    detail = f"wall clocks differ by {abs(clock.wall_offset_s) * 1e3:.1f} ms, known to {clock.error_s * 1e3:.2f} ms"
    findings.append(Finding(WARN if clock.warning else OK, "clocks", clock.warning or detail))
    theirs = welcome.get("fingerprint")
    found = (
        differences(fingerprint("cpu"), theirs) if isinstance(theirs, dict) else ["the server states no fingerprint"]
    )
    if found:
        remedy = two_torches(fingerprint("cpu"), theirs) or "results differ in the last digits; see --threads"
        findings.append(Finding(WARN, "bit equality", "; ".join(found), remedy))
    else:
        findings.append(Finding(OK, "bit equality", "server and robot compute the same bits"))
    return findings
