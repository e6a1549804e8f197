"""The program of ``bench start``: imports torch, puts a network on "cuda", if there is one, and runs it once.

It knows nothing of edge_offload. Its line of JSON has ``times``, monotonic seconds at which Python ran, torch was
imported, the weights were on the device and the first result was read, and ``digest`` of that result.
"""

from __future__ import annotations

import sys
import time

times = {"python": time.monotonic()}

import torch  # noqa: E402
from torch import nn  # noqa: E402

times["torch"] = time.monotonic()


def make_network(blocks: int) -> nn.Module:
    """Convolutions with 2.4 MB of weights each, behind one that makes the input small."""
    torch.manual_seed(0)
    middle = [layer for _ in range(blocks) for layer in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 256, 16, stride=16), *middle, nn.AdaptiveAvgPool2d(1)).eval()


def main() -> None:
    """Run once: ``BLOCKS`` of the network, and the file with its weights."""
    import hashlib
    import json

    network = make_network(int(sys.argv[1]))
    network.load_state_dict(torch.load(sys.argv[2]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    times["built"] = time.monotonic()
    network.to(device)
    if device == "cuda":
        torch.cuda.synchronize()
    times["weights"] = time.monotonic()
    with torch.inference_mode():
        result = network(torch.ones(1, 3, 224, 224).to(device)).cpu()
    times["result"] = time.monotonic()
    digest = hashlib.sha256(result.numpy().tobytes()).hexdigest()
    print(json.dumps({"times": times, "digest": digest}), flush=True)


if __name__ == "__main__":
    main()
