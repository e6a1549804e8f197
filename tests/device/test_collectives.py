"""``torch.distributed`` on the virtual device: a group of one computes as on the CPU, NCCL is refused by name."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "src"
EXEC = [sys.executable, "-m", "edge_offload.cli", "exec", "--threads", "1"]
GROUP = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2))
x = torch.rand(2, 3, 8, 8)
want = net(x).detach()
net.to("cuda")
y = net(x.to("cuda"))
"""
PROGRAM = (
    GROUP
    + """
z = y.detach().clone()
dist.all_reduce(z); dist.broadcast(z, 0); dist.reduce(z, 0)
parts = [torch.empty_like(z)]
dist.all_gather(parts, y)
whole = torch.empty_like(z)
dist.all_gather_into_tensor(whole, z)
work = dist.all_reduce(z, async_op=True)
work.wait()
dist.barrier()
for name, result in (("reduced", z), ("gathered", parts[0]), ("whole", whole)):
    print(name, result.device.type, torch.equal(result.cpu(), want))
y.sum().backward()  # what was gathered is as it was
wrapped = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0])
result = wrapped(x.to("cuda"))
print("wrapped", torch.equal(result.cpu(), want))
alone = [each.grad.clone() for each in net.parameters()]
net.zero_grad()
result.sum().backward()
print("gradients", all(torch.equal(a, b.grad) for a, b in zip(alone, net.parameters())))
try:
    dist.group.WORLD.send([z], 0, 0)
except RuntimeError as error:
    print("send", "tensor.cpu()" in str(error))
dist.destroy_process_group()  # a thread of gloo that still runs at the end of a process aborts it now and then
"""
)
NCCL = """
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl", init_method=sys.argv[1], rank=0, world_size=1)
"""


def run(program, *options):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    return subprocess.run(
        [*EXEC, *options, "--", sys.executable, "-c", program, address],
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("mode", ["local", pytest.param("lazy", marks=pytest.mark.release), "replay"])
def test_a_group_of_one_process_computes_what_the_cpu_does(mode):
    done = run(PROGRAM, "--mode", mode)
    lines = [
        "reduced cuda True",
        "gathered cuda True",
        "whole cuda True",
        "wrapped True",
        "gradients True",
        "send True",
    ]
    assert done.stdout.splitlines() == lines, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_nccl_is_refused_by_name():
    done = run(NCCL, "--mode", "lazy")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "NCCL" in last
    assert "use backend='gloo'" in last
