"""Short trainings on the device: prints, per case, a digest of what was learnt and the round trips of each step.

usage: training.py [CASE...] [--steps N] [--memory]
"""

import argparse
import copy
import hashlib
import json
import os
import random
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adamw_single": lambda p: torch.optim.AdamW(p, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
}
WAYS = ["clip", "autocast", "scaler", "checkpoint", "workers", "ema", "scheduler"]


class Attention(nn.Module):
    """Self-attention over words."""

    def __init__(self):
        super().__init__()
        self.mixed = nn.Linear(32, 96)

    def forward(self, x):
        heads = self.mixed(x).reshape(len(x), -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape)


class Recurrent(nn.Module):
    """A recurrent network's outputs alone."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)[0]


MIDDLES = {
    "linear": lambda: nn.ReLU(),
    "norm": lambda: nn.Sequential(nn.LayerNorm(32), nn.GELU()),
    "attention": lambda: nn.Sequential(nn.LayerNorm(32), Attention(), nn.Dropout(0.1), nn.GELU()),
    "convolution": lambda: nn.Sequential(nn.Conv1d(9, 9, 3, padding=1), nn.BatchNorm1d(9), nn.SiLU()),
    "lstm": lambda: Recurrent(nn.LSTM(32, 32, num_layers=2, batch_first=True)),
    "gru": lambda: Recurrent(nn.GRU(32, 32, batch_first=True)),
}
CASES = [f"attention {name}" for name in OPTIMIZERS] + [f"{name} sgd" for name in MIDDLES if name != "attention"]
CASES += [f"norm adamw {way}" for way in WAYS]


def trips():
    """Round trips so far."""
    module = sys.modules.get("edge_offload.device.installation")
    recorder = (
        module.current_installation().recorder
        if module is not None and module.current_installation() is not None
        else None
    )
    return recorder.counters.round_trips if recorder is not None else 0


def batches(steps, way):
    """As many batches as there are steps, the same in every process."""
    draws = torch.Generator().manual_seed(1)
    x, y = torch.randn(6 * steps, 9, 16, generator=draws), torch.randint(0, 4, (6 * steps, 9), generator=draws)
    return DataLoader(TensorDataset(x, y), batch_size=6, num_workers=int(way == "workers"))


def train(case, steps, watch):
    """Train; returns the parameters, the round trips of every step and, if that is wanted, the memory ten times."""
    middle, optimizer, way = (*case.split(), "")[:3]
    random.seed(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), MIDDLES[middle](), nn.Linear(32, 4)).to("cuda")
    average = copy.deepcopy(net)
    optimize = OPTIMIZERS[optimizer](net.parameters())
    scaler = torch.cuda.amp.GradScaler(enabled=way == "scaler", init_scale=128.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimize, steps) if way == "scheduler" else None
    counts, memory = [], []
    for step, (x, y) in enumerate(batches(steps, way)):
        before = trips()
        x, y = x.to("cuda"), y.to("cuda")
        optimize.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=way == "autocast"):
            made = checkpoint(net, x, use_reentrant=False) if way == "checkpoint" else net(x)
            loss = functional.cross_entropy(made.float().flatten(0, 1), y.flatten())
        scaler.scale(loss).backward()
        if way == "clip":
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimize)
        scaler.update()
        if schedule is not None:
            schedule.step()
        if way == "ema":
            with torch.no_grad():
                for ours, theirs in zip(average.parameters(), net.parameters()):
                    ours.lerp_(theirs, 0.1)
        counts.append(trips() - before)
        if watch and not (step + 1) % max(1, steps // 10):
            memory.append(round(resident()))
    return [*net.state_dict().values(), *average.state_dict().values()], counts, memory


def resident():
    """Memory of this process and of those that it started, in MB."""
    total = 0
    for folder in os.listdir("/proc"):
        try:
            with open(f"/proc/{folder}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            mine = folder == str(os.getpid()) or fields[1] in (str(os.getpid()), str(os.getppid()))
            with open(f"/proc/{folder}/statm") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") if mine else 0
        except (OSError, ValueError, IndexError):
            continue
    return total / 1e6


def main():
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for case in given.cases:
        weights, counts, memory = train(case, given.steps, given.memory)
        data = b"".join(tensor.cpu().numpy().tobytes() for tensor in weights)
        digest = hashlib.sha256(data).hexdigest()[:16]
        print(json.dumps({"case": case, "digest": digest, "trips": counts[-4:], "memory_mb": memory}), flush=True)


if __name__ == "__main__":
    main()
