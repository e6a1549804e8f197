"""A client of a served network: mode ``server`` of the product, gRPC or HTTP, with the same inputs.

Usage: python -m edge_offload_benchmarks.peers.served_robot WAY NETWORK ADDRESS INPUTS KEYS
"""

from __future__ import annotations

from edge_offload_benchmarks.peers.robot import Stages, answer_requests, take_output

stages = Stages()

import contextlib  # noqa: E402
import hashlib  # noqa: E402
import http.client  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
from typing import Callable, Dict, Sequence  # noqa: E402

import torch  # noqa: E402

stages.note("torch")

from edge_offload_benchmarks.peers.raw_tensors import pack_tensors, unpack_tensors  # noqa: E402

WAIT_S = 120.0
#: Results of an input.
Call = Callable[[torch.Tensor], Sequence[torch.Tensor]]


def open_product(network: str, address: str, keys: str, stack: contextlib.ExitStack) -> Call:
    """Mode ``server`` without hedging, as every peer computes: with no result of the robot's own."""
    from edge_offload.manager.lateness import TimeoutLimits
    from edge_offload.mode import Mode
    from edge_offload.models import registry
    from edge_offload.runtime.module import OffloadedModule
    from edge_offload_benchmarks.processes import patient_client, wait_open

    client = stack.enter_context(contextlib.closing(patient_client(f"tcp://{address}", keys)))
    patience = TimeoutLimits(first_s=60.0, floor_s=60.0, cap_s=60.0)
    module = OffloadedModule(network, registry.build_module(network), client, hedging=False, patience=patience)
    stack.enter_context(contextlib.closing(module))
    stages.note("built")
    client.start()
    client.wait_ready(WAIT_S)
    wait_open(module, Mode.SERVER, [torch.load(sys.argv[4])[0]], WAIT_S)

    def call(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        outputs, report = module.run_inference([tensor], Mode.SERVER)
        assert report.mode is Mode.SERVER, report.fallback_reason
        return outputs

    return call


def open_grpc(network: str, address: str, keys: str, stack: contextlib.ExitStack) -> Call:
    """Calls of raw bytes."""
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = stack.enter_context(grpc.insecure_channel(address, options=options))
    grpc.channel_ready_future(channel).result(WAIT_S)
    compute = channel.unary_unary("/network/compute")
    stages.note("built")
    return lambda tensor: unpack_tensors(compute(pack_tensors([tensor])))


def open_litserve(network: str, address: str, keys: str, stack: contextlib.ExitStack) -> Call:
    """Requests over one HTTP connection that stays."""
    host, _, port = address.partition(":")
    connection = stack.enter_context(contextlib.closing(http.client.HTTPConnection(host, int(port))))
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stages.note("built")

    def call(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        connection.request("POST", "/predict", pack_tensors([tensor]), {"Content-Type": "application/octet-stream"})
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body[:300]
        return unpack_tensors(body)

    return call


WAYS: Dict[str, Callable[[str, str, str, contextlib.ExitStack], Call]] = {
    "server": open_product,
    "grpc": open_grpc,
    "litserve": open_litserve,
}


def main() -> None:
    """Run inferences until standard input ends."""
    way, network, address, inputs_file, keys = sys.argv[1:]
    out = take_output()
    torch.set_num_threads(1)
    inputs = torch.load(inputs_file)
    with contextlib.ExitStack() as stack:
        call = WAYS[way](network, address, keys, stack)

        def infer(number: int) -> str:
            values = b"".join(tensor.numpy().tobytes() for tensor in call(inputs[number]))
            return hashlib.sha256(values).hexdigest()[:16]

        answer_requests(infer, stages, out)


if __name__ == "__main__":
    main()
