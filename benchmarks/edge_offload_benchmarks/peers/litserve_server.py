"""A network behind LitServe, whose requests and responses are raw bytes. Usage: python -m … NETWORK PORT."""
# LitServe reads annotations as objects: none of them is put off.

import sys

import litserve
from fastapi import Depends, Request, Response
from typing_extensions import Annotated

from edge_offload_benchmarks.peers.served_network import ServedNetwork


async def read_body(request: Request) -> bytes:
    """The body as it came."""
    body: bytes = await request.body()
    return body


class NetworkApi(litserve.LitAPI):  # type: ignore[misc]
    """One network in LitServe's worker."""

    def setup(self, device: str) -> None:
        """Build it."""
        self.network = ServedNetwork(sys.argv[1])

    def decode_request(self, request: Annotated[bytes, Depends(read_body)]) -> bytes:
        """Leave it to :meth:`predict`."""
        return request

    def predict(self, message: bytes) -> bytes:
        """Compute."""
        return self.network.compute(message)

    def encode_response(self, output: bytes) -> Response:
        """Send bytes."""
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    litserve.LitServer(NetworkApi(), accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning", timeout_keep_alive=600
    )
