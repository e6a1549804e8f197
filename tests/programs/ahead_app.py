"""A node's network in mode replay, whose inputs go to the server ahead of their turn; see ``test_ahead``.

Started by ``exec --absent later``. Arguments: the server's address, the key directory. Prints a line of JSON.
"""

import json
import sys
import threading
import time
from concurrent.futures import Future

import torch
from torch import nn

from edge_offload.device.installation import current_installation
from edge_offload.errors import ProtocolError
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.modes.device import DeviceModule, DeviceRunner
from edge_offload.protocol.remote import AHEAD
from edge_offload.runtime.module import OffloadedModule

SMALL, SIZE, LARGE = 64, 96, 1000
address, keys = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(1)
client = Client(address, keys=KeyStore(keys))
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
device = current_installation()
limits = TimeoutLimits(floor_s=30.0, cap_s=60.0, first_s=60.0)
module = OffloadedModule("small", network, client, patience=limits, hedging=False, in_flight=2)


class Runner(DeviceRunner):
    """Records how much of the way of the latest attempt passed before its turn."""

    ahead_s = 0.0

    def attempt_inference(self, *arguments):
        attempt = super().attempt_inference(*arguments)
        self.ahead_s = attempt.ahead_s
        return attempt


runner = Runner(Mode.REPLAY, DeviceModule(device, network, client))
module.add_runner(runner)


def image(size=SIZE):
    return torch.rand(1, 3, size, size)


def infer(picture):
    """Whether the result has the bits of the CPU, and seconds of its way that passed before its turn."""
    with torch.no_grad():
        expected = network(picture.clone())
    (output,), report = module.run_inference([picture], Mode.REPLAY)
    return [torch.equal(output, expected), report.fallback_reason, runner.ahead_s]


def infer_after(picture, change=lambda picture: None):
    """An inference whose inputs were sent ahead; ``change`` is what the robot does to them meanwhile."""
    runner.send_ahead([picture])
    change(picture)
    time.sleep(0.05)
    return infer(picture)


def answer_request(kind, *arguments, **options):
    """A server of a release that does not have such requests."""
    if kind == AHEAD:
        refused = Future()
        refused.set_exception(ProtocolError("unknown request"))
        return refused
    return request(kind, *arguments, **options)


client.start()
ends = time.monotonic() + 200.0
for size in (SMALL, SIZE, LARGE):
    while module.unavailable_reason(Mode.REPLAY, [image(size)]):
        assert time.monotonic() < ends, module.state()
        time.sleep(0.02)
lines = {
    "equal": [infer_after(image()) for _ in range(8)],
    "changed": [infer_after(image(), lambda picture: picture.mul_(0.5)) for _ in range(2)],
    "another": [(runner.send_ahead([image()]), infer(image()))[1] for _ in range(2)],
    "other_size": [infer_after(image(SMALL)) for _ in range(3)],
    "too_large": [infer_after(image(LARGE)) for _ in range(2)],
}
together = []
threads = [threading.Thread(target=lambda: together.extend(infer(image()) for _ in range(10))) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
request, client.request = client.request, answer_request
lines["refused"] = [infer_after(image()) for _ in range(3)]
exact = all(equal and not reason for equal, reason, _ in together)
used = any(ahead_s > 0 for _, _, ahead_s in together)
print(json.dumps({**lines, "exact_together": exact, "used_together": used}), flush=True)
module.close()
client.close()
