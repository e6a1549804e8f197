"""A program that computes on a device, the same for the product and for peers that bring a device of their own.

Usage: python -m edge_offload_benchmarks.peers.program NETWORK DEVICE, where the device is ``cpu``, ``cuda``, ``rgpu``,
``rgpu_graphs`` (its compiler, which ships whole graphs that the server runs as they are) or ``sky@HOST:PORT``.
"""

from __future__ import annotations

from edge_offload_benchmarks.peers.robot import INPUTS, Stages, answer_requests, take_output

stages = Stages()

import asyncio  # noqa: E402
import contextlib  # noqa: E402
import functools  # noqa: E402
import hashlib  # noqa: E402
import importlib  # noqa: E402
import sys  # noqa: E402
from typing import Any, Callable, Iterator, List, Tuple  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

stages.note("torch")

from edge_offload_benchmarks.gpu.networks import build_network, make_inputs  # noqa: E402
from edge_offload_benchmarks.gpu.peers_client import WIDTH, Decoder  # noqa: E402
from edge_offload_benchmarks.gpu.programs import draw_numbers, make_seeded  # noqa: E402

#: What is called in a network's place.
Wrap = Callable[[nn.Module], Callable[..., Any]]


def build_program(name: str) -> Tuple[nn.Module, List[torch.Tensor]]:
    """A network and its inputs, on the host."""
    if name == "transformer":
        return make_seeded(lambda: Decoder().layers), [draw_numbers(number, 1, 32, WIDTH) for number in range(INPUTS)]
    return build_network(name), [tensor for (tensor,) in make_inputs(name, INPUTS)]


@contextlib.contextmanager
def open_device(name: str) -> Iterator[Tuple[torch.device, Wrap]]:
    """A device by its name, and what is made of a network on it."""
    if name.startswith("rgpu"):
        rgpu = importlib.import_module("rgpu")
        backend = rgpu.compile_backend(compiler="eager")
        ship = functools.partial(torch.compile, backend=backend, dynamic=False)
        yield torch.device("rgpu"), ship if name.endswith("graphs") else keep_network
    elif name.startswith("sky@"):
        compute = importlib.import_module("skytorch.torch.server.compute").Compute(name[len("sky@") :])
        loop = asyncio.new_event_loop()
        loop.run_until_complete(compute.__aenter__())
        yield compute.device("cpu"), keep_network
        loop.run_until_complete(compute.__aexit__(None, None, None))
    else:
        yield torch.device(name), keep_network


def keep_network(network: nn.Module) -> nn.Module:
    """The network as it is."""
    return network


def main() -> None:
    """Run inferences until standard input ends."""
    out = take_output()
    torch.set_num_threads(1)
    network, inputs = build_program(sys.argv[1])
    stages.note("built")
    with open_device(sys.argv[2]) as (at, wrap), torch.no_grad():
        network.to(at)
        float(next(network.parameters()).flatten()[0].cpu())  # the upload has ended when a weight has come back
        call = wrap(network)

        def infer(number: int) -> str:
            result = call(inputs[number].to(at)).cpu()
            return hashlib.sha256(result.numpy().tobytes()).hexdigest()[:16]

        answer_requests(infer, stages, out)


if __name__ == "__main__":
    main()
