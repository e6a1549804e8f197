"""A network behind gRPC: calls of bytes, without a schema. Usage: python -m … NETWORK PORT."""

from __future__ import annotations

import sys
from concurrent import futures

import grpc

from edge_offload_benchmarks.peers.served_network import ServedNetwork

#: Calls that are in the server at once.
CALLS = 10
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def main() -> None:
    """Serve until the process is ended."""
    network = ServedNetwork(sys.argv[1])
    handler = grpc.unary_unary_rpc_method_handler(lambda message, _: network.compute(message))
    server = grpc.server(futures.ThreadPoolExecutor(CALLS), options=OPTIONS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("network", {"compute": handler})])
    server.add_insecure_port(f"127.0.0.1:{sys.argv[2]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
