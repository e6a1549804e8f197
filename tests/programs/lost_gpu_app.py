"""A node's network in mode replay; started by ``exec --absent later``. Prints a JSON line for each of its frames.

Arguments: the server's address, the key directory, the file that makes its executor fail.
"""

import json
import pathlib
import sys
import time

import torch
from torch import nn

from edge_offload.device.installation import current_installation
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.modes.device import DeviceModule, DeviceRunner
from edge_offload.runtime.module import OffloadedModule

address, keys, mark = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
torch.set_num_threads(1)
client = Client(address, keys=KeyStore(keys))
limits = TimeoutLimits(floor_s=30.0, cap_s=60.0, first_s=60.0)
network = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()).eval()
module = OffloadedModule("small", network, client, patience=limits, hedging=False)
module.add_runner(DeviceRunner(Mode.REPLAY, DeviceModule(current_installation(), network, client)))
client.start()
for number in range(6):
    if number == 3:
        mark.touch()
    picture = [torch.full((2, 4), float(number))]
    ends = time.monotonic() + 200.0
    while module.unavailable_reason(Mode.REPLAY, picture):
        assert time.monotonic() < ends, module.state()
        time.sleep(0.02)
    with torch.no_grad():
        expected = network(picture[0])
    (output,), report = module.run_inference(picture, Mode.REPLAY)
    print(json.dumps([torch.equal(output, expected), report.mode.value, report.fallback_reason]), flush=True)
client.close()
