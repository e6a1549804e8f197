"""Ways from a client to a server that computes for it: the product's, and those of peers."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

from edge_offload_benchmarks.peers.environments import RGPU, SERVING, SKYTORCH, Environment
from edge_offload_benchmarks.processes import edge_offload

PACKAGE = "edge_offload_benchmarks.peers"
#: Files of the bench: the inputs, and the key store of a server and of clients that are alone.
INPUTS_FILE, KEYS = "inputs.pt", "server"
DEVICE, SERVED = "device", "served"


@dataclass(frozen=True)
class Way:
    """A way to a server.

    Attributes:
        name: in records.
        kind: ``device`` for programs that compute on a device of it, ``served`` for networks that the server has.
        server: its command, by network, port and folder of the bench.
        client: its command, by network, address and key store, which lies in the folder of the bench.
        variables: of a client, by address.
        environment: None: the product's.
    """

    name: str
    kind: str
    server: Callable[[str, int, pathlib.Path], List[str]]
    client: Callable[[str, str, pathlib.Path], List[str]]
    variables: Callable[[str], Dict[str, str]] = lambda address: {}
    environment: Optional[Environment] = None

    @property
    def own(self) -> bool:
        """True for the product."""
        return self.environment is None


def serve_product(network: str, port: int, folder: pathlib.Path) -> List[str]:
    """The product's server."""
    options = ["--keys", str(folder / KEYS), "--weights-cache", str(folder / "weights")]
    return edge_offload("serve", "--bind", f"tcp://127.0.0.1:{port}", "--threads", "1", *options)


def start_replay(network: str, address: str, keys: pathlib.Path) -> List[str]:
    """A program under ``exec``, with the mode that is its default."""
    options = ["--server", f"tcp://{address}", "--keys", str(keys), "--wait", "120"]
    return [*edge_offload("exec", *options, "--"), sys.executable, "-m", f"{PACKAGE}.program", network, "cuda"]


def _run_module(environment: Optional[Environment], module: str, *arguments: str) -> List[str]:
    return [sys.executable if environment is None else str(environment.python), "-m", module, *arguments]


def _make_served(name: str, environment: Optional[Environment]) -> Way:
    def serve(network: str, port: int, folder: pathlib.Path) -> List[str]:
        return _run_module(environment, f"{PACKAGE}.{name}_server", network, str(port))

    def call(network: str, address: str, keys: pathlib.Path) -> List[str]:
        ends = [address, str(keys.with_name(INPUTS_FILE)), str(keys)]
        return _run_module(environment, f"{PACKAGE}.served_robot", name, network, *ends)

    return Way(name, SERVED, serve_product if environment is None else serve, call, environment=environment)


def _make_rgpu(name: str, device: str) -> Way:
    return Way(
        name, DEVICE,
        lambda network, port, folder: _run_module(RGPU, "rgpu.server", "--device", "cpu", "--port", str(port)),
        lambda network, address, keys: _run_module(RGPU, f"{PACKAGE}.program", network, device),
        lambda address: {"RGPU_OPSERVER": address},
        RGPU,
    )  # fmt: skip


#: The product's come first: in each kind, peers are compared with that one.
WAYS: Tuple[Way, ...] = (
    Way("replay", DEVICE, serve_product, start_replay),
    _make_rgpu("rgpu", "rgpu"),
    _make_rgpu("rgpu graphs", "rgpu_graphs"),
    Way(
        "skytorch", DEVICE,
        lambda network, port, folder: _run_module(
            SKYTORCH, "skytorch.torch.server", "--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR"
        ),
        lambda network, address, keys: _run_module(SKYTORCH, f"{PACKAGE}.program", network, f"sky@{address}"),
        environment=SKYTORCH,
    ),
    _make_served("server", None),
    _make_served("grpc", SERVING),
    _make_served("litserve", SERVING),
)  # fmt: skip
