"""Cuts the connection at one message boundary after the other while a program with state in place runs.

Started by ``edge-offload exec --absent later``: the first argument is the server's address, then the key directory,
the mode, and every how many boundaries one is cut. Prints a JSON line: whether each run gave what the CPU gives, how
often the link was cut between two parts of an answer, and how often the first was there before the answer was complete.
"""

import json
import sys
import time

import torch

from edge_offload.device.installation import current_installation
from edge_offload.device.remotes.link import LinkRemote
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client, Timings
from edge_offload.mode import Mode
from edge_offload_research.emulate.emulator import Emulator
from edge_offload_research.emulate.trace import Link, Trace

address, keys, mode, step = sys.argv[1], sys.argv[2], Mode(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)


weight = torch.randn(256, 256, generator=torch.Generator().manual_seed(1)) / 16


def program(device):
    """Reads twice in an inference, in mode replay with something slow in between."""
    slow = weight.to(device)
    generator = torch.Generator().manual_seed(0)
    state = torch.zeros(3, 4, device=device)
    count = torch.zeros((), dtype=torch.int64, device=device)
    lines = []
    for i in range(5):
        x = torch.randn(3, 4, generator=generator).to(device)
        state.mul_(0.5).add_(x)
        count += 1
        if i == 3:
            state[1].neg_()
        first = (state.sum(0) * count).cpu().tolist()
        early.append(device == "cuda" and bool(current_installation().remote.unanswered))
        for _ in range(8 if mode is Mode.REPLAY else 0):
            slow = slow @ slow / 4
        lines.append((first, int(count + slow[0, 0].isnan())))
    return lines


class Cutting(LinkRemote):
    """Cuts the link before or after the message that it is told of has been given to it."""

    sent = 0
    cut_at = -1
    after = False
    cut_at_part = -1

    def _receive_part(self, *args):
        super()._receive_part(*args)
        if self.parts == Cutting.cut_at_part:
            emulator.cut("reset")

    def _transmit_message(self, sent):
        Cutting.sent += 1
        mine = Cutting.sent == Cutting.cut_at
        if mine and not Cutting.after:
            emulator.cut("reset")
        super()._transmit_message(sent)
        if mine and Cutting.after:
            before = emulator.stats()["bytes_up"]
            ends = time.monotonic() + 0.008
            while emulator.stats()["bytes_up"] == before and time.monotonic() < ends:
                time.sleep(0.001)
            emulator.cut("reset")


early = []
expected = program("cpu")
trace = Trace.constant_trace(1e9)
# the way down takes 10 ms: what is cut after sending is often executed and unanswered
with Emulator("127.0.0.1:0", address, Link("cut", trace, trace, 0.0, 0.01)) as emulator:
    device = current_installation()
    device.switch_mode(mode)
    verdicts, cuts, boundaries = [], 0, 0
    # a cut is noticed at once; a busy machine is no cut
    timings = Timings(connect_s=10.0, handshake_s=30.0, silence_s=30.0)
    client = Client(emulator.address, keys=KeyStore(keys), timings=timings).start()
    client.wait_ready(60.0)
    remote = Cutting(client, resume_s=60.0)
    device.reconnect(remote)
    for after in (False, True):
        Cutting.sent, Cutting.cut_at, Cutting.after = 0, -1, after
        verdicts.append(program("cuda") == expected)
        boundaries = Cutting.sent
        for boundary in range(1, boundaries + 1, step):
            Cutting.sent, Cutting.cut_at = 0, boundary
            verdicts.append(program("cuda") == expected)
            cuts += Cutting.sent >= boundary
    cuts_at_part, Cutting.cut_at = 0, -1
    for part in range(3 if mode is Mode.REPLAY else 0):
        Cutting.cut_at_part = remote.parts + 1 + part
        verdicts.append(program("cuda") == expected)
        cuts_at_part += remote.parts >= Cutting.cut_at_part
    resumed = remote.resumed
    remote.close()
outcome = {"verdicts": verdicts, "cuts": cuts, "resumed": resumed, "boundaries": boundaries}
print(json.dumps({**outcome, "cuts_at_part": cuts_at_part, "early": sum(early)}))
