"""The machines of a pool: Ray's processes, begun and ended here by their ids, never without a token.

Ray listens on all interfaces, whatever address it is told, and runs code for whoever connects; with
``RAY_AUTH_MODE=token`` it asks for the token first. Off this machine a pool also needs TLS, or the token travels plain.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pathlib
import secrets
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from edge_offload import requirements
from edge_offload.errors import BadInput, Refused, Unsupported
from edge_offload.parent import with_parent
from edge_offload.server.pool.accelerators import CPU_LABEL, DEVICES
from edge_offload.server.pool.member import TABLE, TIMES

#: Releases of Ray before this one have no token, or not everywhere.
LEAST_RAY = (2, 52)
LEAST_PYTHON = (3, 10)
#: Bytes of one argument that travel with the call instead of through the object store.
INLINE_BYTES = 4 << 20
DEFAULT_PORT = 5790
LOOPBACK = "127.0.0.1"
#: Limit for a machine to join (seconds).
START_S = 90.0
#: A resource of Ray for each class of GPU.
RESOURCE = "edge_offload_"
#: The resource of Ray by which the head is known.
HEAD = "node:__internal_head__"
_STARTED = "Ray runtime started"


def unavailable_reason() -> str:
    """Explain why this Python can have no pool; empty if it can."""
    if sys.version_info < LEAST_PYTHON:
        running = ".".join(map(str, sys.version_info[:2]))
        return (
            f"a pool needs Python 3.10 or newer, and this is {running}: the last Ray for 3.8 is 2.10, which serves "
            "whoever connects"
        )
    from importlib import metadata

    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return f"a pool needs Ray, which is not installed: {requirements.install('pool')}"
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_RAY:
        return f"a pool needs Ray 2.52 or newer, and this is {version}: {requirements.install('pool')}"
    return ""


def check_available() -> None:
    """Check that a pool can run here.

    Raises:
        Unsupported: with :func:`unavailable_reason`.
    """
    why = unavailable_reason()
    if why:
        raise Unsupported(why, remedy="robots need no Ray: they reach a pool through a server")


def make_token(folder: pathlib.Path) -> None:
    """Make the pool's token, readable by this user only, if there is none."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        handle = os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(secrets.token_hex(32))


def make_environment(folder: pathlib.Path, base: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """Return the environment of every process of the pool.

    Raises:
        BadInput: there is no token, or others can read it.
    """
    token = folder / "token"
    try:
        mode = token.stat().st_mode
    except OSError:
        raise BadInput(
            f"there is no token of a pool in {folder}",
            remedy="on the head, 'edge-offload pool head' makes it; copy it from there, with mode 0600",
        ) from None
    if mode & 0o077:
        remedy = f"chmod 600 {shlex.quote(str(token))}, or make a new one: it may be known"
        raise BadInput(f"others can read {token}", remedy=remedy)
    env = dict(os.environ if base is None else base)
    env.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(token),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_max_direct_call_object_size=str(INLINE_BYTES),
        RAY_task_rpc_inlined_bytes_limit=str(10 * INLINE_BYTES),
        RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # members ask Ray for no GPU, and see those that 'pool join' sees
        RAY_gcs_rpc_server_reconnect_timeout_s="5",  # Ray's processes end after so long without a head (seconds)
    )
    env.pop("RAY_AUTH_TOKEN", None)
    env.pop("RAY_ADDRESS", None)
    if all((folder / name).exists() for name in ("tls.crt", "tls.key", "ca.crt")):
        env.update(
            RAY_USE_TLS="1",
            RAY_TLS_SERVER_CERT=str(folder / "tls.crt"),
            RAY_TLS_SERVER_KEY=str(folder / "tls.key"),
            RAY_TLS_CA_CERT=str(folder / "ca.crt"),
        )
    return env


@dataclass(frozen=True)
class Machine:
    """Resources that one machine brings in.

    Attributes:
        gpu: class; empty for a head without GPUs.
        gpus: number of GPUs.
        table: folder of the profile whose times it emulates; empty: it computes.
        times: factor by which these are dilated.
        store_mb: of its object store.
        devices: of each member, as torch names them.
        label: of these devices.
        shares: True if plans may divide them among members.
    """

    gpu: str = ""
    gpus: int = 0
    table: str = ""
    times: float = 1.0
    store_mb: int = 256
    devices: Tuple[str, ...] = (CPU_LABEL,)
    label: str = CPU_LABEL
    shares: bool = True


#: Folder of Ray's sockets and logs, and their least room (bytes); folder of shared tensors.
SOCKETS, SOCKETS_BYTES, SHARED = "/tmp", 64 << 20, "/dev/shm"


def socket_folder(port: int) -> pathlib.Path:
    """Return the folder of sockets and logs of a head on ``port`` and its members."""
    return pathlib.Path(SOCKETS) / f"edge-offload-pool-{os.getuid()}-{port}"  # sockets have at most 107 characters


def check_room(store_mb: int) -> None:
    """Check that there is room for sockets, logs and the object store.

    Raises:
        BadInput: there is not.
    """
    if shutil.disk_usage(SOCKETS).free < SOCKETS_BYTES:
        raise BadInput(
            f"{SOCKETS} is full: Ray's sockets and logs need {SOCKETS_BYTES >> 20} MB there",
            remedy=f"make room in {SOCKETS}",
        )
    with contextlib.suppress(FileNotFoundError):
        free = shutil.disk_usage(SHARED).free >> 20
        if free < store_mb:
            raise BadInput(
                f"{SHARED} has room for {free} MB, and --store-mb says {store_mb}",
                remedy=f"take a smaller --store-mb, or enlarge {SHARED} (docker: --shm-size)",
            )


def explain_failure(error: BaseException) -> str:
    """Describe a member's failure in one line, with the remedy if there is one."""
    message = (str(error).strip().splitlines() or [""])[-1]
    text = f"{type(error).__name__} {error}"
    if "ObjectStoreFull" in text or "OutOfDisk" in text:
        disk = f" or make room in {SOCKETS}, which is full, too" if "OutOfDisk" in text else ""
        return f"the object store of a member is full: join with a larger --store-mb{disk} ({message})"[:300]
    return f"{type(error).__name__}: {message}"[:300]


class RayProcesses:
    """Ray's processes of one machine, started here.

    Args:
        options: of ``ray start``.
        machine: its resources.
        folder: with the token.

    Raises:
        Unsupported: no Ray, or too old a Python.
        BadInput: no token, or Ray did not start; with its last error.
    """

    def __init__(self, options: List[str], machine: Machine, folder: pathlib.Path) -> None:
        check_available()
        check_room(machine.store_mb)
        env = make_environment(folder)
        labels = [f"{name}={value}" for name, value in list_versions().items()]
        if machine.table:
            env[TABLE], env[TIMES] = str(pathlib.Path(machine.table).resolve()), repr(machine.times)
            labels += [f"emulated={machine.times:g}"]
        else:
            env.pop(TABLE, None)
            env[DEVICES] = ",".join(machine.devices)
            labels += [f"device={machine.label}", f"shares={machine.shares:d}"]
        resources = f'{{"{RESOURCE}{machine.gpu}": {machine.gpus}}}' if machine.gpus else "{}"
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block", "--num-cpus", "0",
            "--num-gpus", "0", "--object-store-memory", str(machine.store_mb << 20), "--resources", resources,
            "--labels", ",".join(labels), "--disable-usage-stats", "--include-log-monitor", "false",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True,
            preexec_fn=with_parent(),
        )  # fmt: skip
        self._output: List[str] = []
        end_s = time.monotonic() + START_S
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        while not any(_STARTED in line for line in self._output):
            line = self._process.stdout.readline()
            if line:
                self._output.append(line.strip())
            elif self._process.poll() is not None or time.monotonic() > end_s:
                self.close()
                raise BadInput(
                    f"Ray did not start: {self._explain_exit()}", remedy="see that the port is free, the head reached"
                )
            else:
                time.sleep(0.05)

    @property
    def pid(self) -> int:
        """Id of the process whose children the others are."""
        return self._process.pid

    def wait(self, timeout_s: float) -> bool:
        """Wait, read its output, and return True if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        assert self._process.stdout is not None
        while self._process.stdout.readline():
            pass
        return self._process.poll() is None

    def close(self) -> None:
        """End the processes that were started here, by their ids; other clusters of the machine go on."""
        import psutil

        children = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        for process in (*children, self._process):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self._process.wait()

    def _explain_exit(self) -> str:
        errors = [
            line
            for line in self._output
            if any(keyword in line for keyword in ("rror", "fail", "refus", "nable", "oken"))
        ]
        return (errors or self._output or ["it said nothing"])[-1][:300]


def start_head(port: int, machine: Machine, folder: pathlib.Path, host: str = LOOPBACK) -> RayProcesses:
    """Start a pool on this machine; off loopback with TLS.

    Raises:
        BadInput: the port is taken, ``host`` is no address of this machine, or as :class:`RayProcesses`.
        Unsupported: as :class:`RayProcesses`, or no library for certificates.
    """
    import psutil

    from edge_offload.server.pool import certificates

    if host not in certificates.list_addresses():
        raise BadInput(f"--host {host} is no address of this machine", remedy="give the one that members reach")

    if any(
        connection.laddr.port == port
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ):
        raise BadInput(f"port {port} is in use: there may be a head already", remedy="join that one, or take --port")
    make_token(folder)
    if host != LOOPBACK:
        certificates.prepare_certificates(folder, True)
    options = ["--head", "--port", str(port), "--include-dashboard", "false", "--no-monitor"]
    options += ["--temp-dir", str(socket_folder(port))]
    return RayProcesses([*options, "--node-ip-address", host], machine, folder)


def start_member(address: str, machine: Machine, folder: pathlib.Path) -> RayProcesses:
    """Join this machine to the pool of ``address``.

    Raises:
        BadInput: no head, the head is elsewhere and there are no certificates, or as :class:`RayProcesses`.
        Unsupported: as :class:`RayProcesses`.
    """
    check_keys(address, folder)
    host, port = parse_address(address)
    _check_listener(host, port, folder)
    options = ["--address", f"{host}:{port}"]
    # one after the other: two that begin at once on one machine may take the same socket, and one of them fails
    with open(folder / "start.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return RayProcesses(options, machine, folder)
        except BadInput as slow:
            if "timed out during startup" not in str(slow):
                raise
            return RayProcesses(options, machine, folder)  # Ray itself waits 30 s, which a busy machine may need


def check_keys(address: str, folder: pathlib.Path) -> None:
    """Check the credentials for the pool of ``address``: the token, and off loopback this machine's certificate.

    Raises:
        BadInput: there is no token, others can read it, or it would travel in the clear.
        Unsupported: no library for certificates.
    """
    host, _ = parse_address(address)
    make_environment(folder)
    if host not in (LOOPBACK, "localhost"):
        from edge_offload.server.pool import certificates

        certificates.prepare_certificates(folder, False)


def _check_listener(host: str, port: int, folder: pathlib.Path) -> None:
    """Check that a head listens with a certificate of the known authority: Ray itself just aborts.

    Raises:
        BadInput: nothing listens there, or with another certificate.
    """
    secured = "RAY_USE_TLS" in make_environment(folder, {})
    try:
        with socket.create_connection((host, port), 5.0) as connection:  # limit for a head to answer (seconds)
            if secured:
                context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT
                context.check_hostname = False  # Ray, too, asks for the authority alone
                context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
                context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        raise BadInput(
            f"no pool at {host}:{port} with certificates like those in {folder}: {error.reason or error}",
            remedy="copy the head's folder here; a pool on loopback has none: take --pool-keys of its own",
        ) from error
    except OSError as error:
        raise BadInput(
            f"no pool at {host}:{port}: {error}", remedy="begin it there with 'edge-offload pool head'"
        ) from error


def parse_address(text: str) -> Tuple[str, int]:
    """Split ``host[:port]`` into host and port.

    Raises:
        BadInput: it is neither.
    """
    host, colon, port = text.partition(":")
    if not host or (colon and not port.isdigit()) or int(port or DEFAULT_PORT) > 65535:
        raise BadInput(
            f"{text!r} is no address of a pool", remedy="write HOST:PORT as 'edge-offload pool head' prints it"
        )
    return host, int(port or DEFAULT_PORT)


def write_status(folder: pathlib.Path, status: Mapping[str, Any]) -> None:
    """Write a server's state to the file that ``pool status`` of this machine reads."""
    path = folder / f"server-{os.getpid()}.json"
    with contextlib.suppress(OSError):
        path.with_suffix(".new").write_text(json.dumps(status), encoding="utf-8")
        path.with_suffix(".new").replace(path)


def read_statuses(folder: pathlib.Path, address: str) -> List[Dict[str, Any]]:
    """Return recent states of servers of this machine for the pool at ``address``."""
    statuses = []
    for path in sorted(folder.glob("server-*.json")):
        with contextlib.suppress(OSError, ValueError):
            if time.time() - path.stat().st_mtime < 10.0:  # age up to which a server's status counts (seconds)
                statuses.append(json.loads(path.read_text(encoding="utf-8")))
            else:
                path.unlink()
    return [status for status in statuses if parse_address(status["address"]) == parse_address(address)]


def release_version() -> str:
    """Return the release of edge_offload, which all members share."""
    from importlib import metadata

    try:
        return metadata.version("edge_offload")
    except metadata.PackageNotFoundError:
        return "unknown"


def list_versions() -> Dict[str, str]:
    """Return the versions that all members share, as labels of Ray."""
    import platform
    from importlib import metadata

    return {"edge_offload": release_version(), "python": platform.python_version(), "ray": metadata.version("ray")}


def explain_difference(theirs: Mapping[str, str]) -> str:
    """Explain how a member's versions differ from this machine's; empty if they do not."""
    for name, ours in list_versions().items():
        if theirs.get(name) != ours:
            return f"it has {name} {theirs.get(name, 'of another release')}, and here is {ours}"
    return ""


def check_head(address: str, folder: pathlib.Path) -> None:
    """Compare this machine's versions with the head's, from a separate process.

    Raises:
        Refused: they differ.
        BadInput: the head does not answer.
    """
    program = (
        "import json, sys, pathlib; from edge_offload.server.pool import cluster; "
        "ray = cluster.connect_ray(sys.argv[1], pathlib.Path(sys.argv[2])); "
        "print(json.dumps([n['Labels'] for n in ray.nodes() if n['Alive'] and cluster.HEAD in n['Resources']]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, address, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )
    try:
        (labels,) = json.loads(process.stdout)
    except ValueError as error:
        raise BadInput(f"the head does not answer: {process.stderr[-300:]}") from error
    reason = explain_difference(labels)
    if reason:
        raise Refused(f"the head of {address} is another release: {reason}", remedy="install the same on all machines")


@dataclass(frozen=True)
class PoolNode:
    """A member in the head's list.

    Attributes:
        name: Ray's id.
        gpu, gpus: class and number of its GPUs; none for a head alone.
        times: dilation if it is emulated; 0: it computes.
        problem: the reason if it is not used; otherwise empty.
        device: label of its device.
        shares: True if plans may divide its GPUs among members.
    """

    name: str
    gpu: str
    gpus: int
    times: float
    problem: str = ""
    device: str = CPU_LABEL
    shares: bool = True


def connect_ray(address: str, folder: pathlib.Path) -> Any:
    """Connect this process to the pool through Ray; it is to do nothing else.

    Raises:
        Unsupported, BadInput: no Ray, no token, no pool there, or another token.
    """
    check_available()
    check_keys(address, folder)
    os.environ.update(make_environment(folder))
    host, port = parse_address(address)
    _check_listener(host, port, folder)
    import ray

    try:
        ray.init(
            address=f"{host}:{port}", namespace="edge_offload", log_to_driver=False, logging_level=logging.ERROR,
            configure_logging=False,
        )  # fmt: skip
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(
            f"no pool at {address}: {lines[0][:300]}", remedy="see that 'edge-offload pool head' runs there, same token"
        ) from error
    return ray


def list_nodes(ray: Any) -> List[PoolNode]:
    """Return members that Ray reports alive, in a stable order."""
    members = []
    for raw in ray.nodes():
        classes = {
            name[len(RESOURCE) :]: count for name, count in raw["Resources"].items() if name.startswith(RESOURCE)
        }
        if not raw["Alive"] or not classes:
            continue
        ((gpu, gpus),) = list(classes.items())[:1]
        labels = raw.get("Labels", {})
        members.append(
            PoolNode(
                raw["NodeID"], gpu, int(gpus), float(labels.get("emulated", 0)), explain_difference(labels),
                labels.get("device", CPU_LABEL), labels.get("shares", "1") != "0",
            )
        )  # fmt: skip
    return sorted(members, key=lambda node: (node.gpu, node.name))


#: Prefix of the keys in the head's store under which drivers report their beats.
_DRIVERS = "edge_offload/driver/"


def exchange_beats(name: str, beat: int) -> Dict[str, bytes]:
    """Report this driver's beat, and return the latest beats of all drivers by name."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(_DRIVERS + name, str(beat), overwrite=True)
    beats = {}
    for key in internal_kv._internal_kv_list(_DRIVERS):
        beats[key.decode()[len(_DRIVERS) :]] = internal_kv._internal_kv_get(key) or b""
    return beats


def remove_driver(name: str) -> None:
    """Remove a driver from the head's store."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(_DRIVERS + name)
