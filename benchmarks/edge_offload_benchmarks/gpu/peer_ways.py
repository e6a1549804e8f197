"""Ways to a GPU that are compared: our own modes, and remoting peers of other projects with their servers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Tuple

from edge_offload_benchmarks.gpu.peers_client import LUPINE_STATS
from edge_offload_benchmarks.gpu.processes import BLIND, Process, Server
from edge_offload_benchmarks.gpu.results import Phase
from edge_offload_benchmarks.gpu.settings import CARRIED

FOLDER = CARRIED / "peers"
LUPINE_CLIENT, LUPINE_SERVER = FOLDER / "lupine/client/libcuda.so.1", FOLDER / "lupine/server/lupine_driver_server"
RGPU = FOLDER / "site/rgpu/__init__.py"
#: Seconds in which a peer's server listens.
START_S = 20.0
#: A server of rgpu whose kernels are chosen as ours are.
RGPU_SERVER = """
import sys
from edge_offload_benchmarks.gpu.networks import fix_numerics
from rgpu.server.__main__ import main
fix_numerics()
main(sys.argv[1:])
"""


@dataclass
class Way:
    """A way to the GPU.

    Attributes:
        name: of the records.
        address: host:port of its server; empty: none.
        command: of a client up to the program, by the address that it shall use.
        variables: of a client, by that address.
        options: of the program.
        server: a peer's, and what its log says when it listens.
    """

    name: str
    address: str = ""
    command: Callable[[str], List[str]] = lambda address: []
    variables: Callable[[str], Dict[str, str]] = lambda address: {}
    options: List[str] = field(default_factory=lambda: ["--device", "cuda"])
    server: Optional[Tuple[Process, str]] = None

    def await_server(self, timeout_s: float) -> None:
        """Wait until the server's log says that it listens.

        Raises:
            RuntimeError: it does not say so.
        """
        ends = time.monotonic() + timeout_s
        process, ready = self.server or (None, "")
        while process is not None and ready not in process.read_tail(1 << 16):
            if process.process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{self.name}'s server does not listen: {process.read_tail()}")
            time.sleep(0.05)


def why_absent(phase: Phase, name: str) -> str:
    """Why a peer cannot be measured; empty if it can."""
    needed = {"lupine": (LUPINE_CLIENT, LUPINE_SERVER), "rgpu": (RGPU,)}[name]
    absent = [path for path in needed if not path.exists()]
    if absent:
        return f"no {absent[0].relative_to(CARRIED.parent)}; build it as docs/how-to/gpu.md says"
    return "no GPU" if name == "lupine" and not phase.settings.cuda else ""


def own_way(server: Server, mode: str) -> Way:
    """A mode of ``exec``."""
    address = server.address.replace("tcp://", "")
    return Way(
        mode,
        address,
        lambda address: server.exec_command("--mode", mode, address=f"tcp://{address}"),
        lambda address: dict(BLIND),
    )


def start_lupine(phase: Phase, stack: contextlib.ExitStack) -> Way:
    """Start Lupine's server. Its client takes the driver's place."""
    port = find_free_port()
    variables = {"LUPINE_PORT": str(port), **search_first(LUPINE_SERVER.parent)}
    server = Process(phase.settings, "lupine_server", [str(LUPINE_SERVER)], phase.settings.server_cores, **variables)
    stack.enter_context(server)
    stats = phase.settings.folder / "lupine_stats"

    def client_variables(address: str) -> Dict[str, str]:
        return {
            "LUPINE_SERVER": address,
            "LUPINE_DISABLE_LOCAL": "1",
            LUPINE_STATS: f"{stats}.{address.rpartition(':')[2]}",
            "LD_PRELOAD": str(LUPINE_CLIENT),
            "OMP_NUM_THREADS": "1",
            **search_first(LUPINE_CLIENT.parent),
        }

    return Way("lupine", f"127.0.0.1:{port}", variables=client_variables, server=(server, "listening on port"))


def start_rgpu(phase: Phase, stack: contextlib.ExitStack) -> Way:
    """Start rgpu's server. Its client is a device of torch's."""
    port = find_free_port()
    path = {"PYTHONPATH": os.pathsep.join([str(RGPU.parent.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", RGPU_SERVER, "--device", phase.settings.device, "--port", str(port)]
    server = stack.enter_context(Process(phase.settings, "rgpu_server", command, phase.settings.server_cores, **path))
    return Way(
        "rgpu",
        f"127.0.0.1:{port}",
        variables=lambda address: {**BLIND, **path, "RGPU_OPSERVER": address},
        options=["--device", "rgpu", "--needs", "rgpu"],
        server=(server, "serving"),
    )


def find_free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def search_first(folder: pathlib.Path) -> Dict[str, str]:
    """The variable that has libraries of a folder loaded before others."""
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]))}


#: Peers, and what starts the server of each.
PEERS = {"lupine": start_lupine, "rgpu": start_rgpu}
