"""More memory than the device has, and what torch.cuda says of memory. Needs the virtual device."""

import functools
import gc

import torch

from edge_offload.device.installation import current_installation

cuda = torch.cuda
TIB = 1 << 40
x = torch.arange(3.0, device="cuda")
assert x.sum().item() == 3


def refused(make):
    """It is as on a GPU: the error of a GPU, at once, and nothing else has changed."""
    gc.collect()  # what programs before this one have left in circles
    allocated, ooms = cuda.memory_allocated(), cuda.memory_stats()["num_ooms"]
    message = ""
    try:
        make()
    except cuda.OutOfMemoryError as error:
        message = str(error)
    assert message.startswith("CUDA out of memory. "), message
    assert "\n" not in message
    gc.collect()  # an error and the frames of its traceback may hold each other
    assert cuda.memory_allocated() == allocated
    assert (x + 1).sum().item() == 6
    return message, cuda.memory_stats()["num_ooms"] - ooms


free, total = cuda.mem_get_info()
assert free == total - cuda.memory_allocated()
assert cuda.get_device_properties(0).total_memory == total
trips = current_installation().recorder.counters.round_trips
output = ""
try:
    torch.empty(TIB, device="cuda")
except cuda.OutOfMemoryError as error:
    output = str(error)
assert "4.00 TiB" in output
assert "free tensors" in output
assert issubclass(cuda.OutOfMemoryError, RuntimeError)
assert current_installation().recorder.counters.round_trips == trips, "it is known here"
column, row = torch.ones(1 << 21, 1, device="cuda"), torch.ones(1, 1 << 21, device="cuda")
for value in (
    lambda: torch.zeros(TIB, device="cuda"),
    lambda: torch.empty_strided((1 << 20, 1 << 20), (1 << 20, 1), device="cuda"),
    lambda: x.new_empty((TIB,)),
    lambda: torch.UntypedStorage(4 * TIB, device="cuda"),
    lambda: torch.empty(0, device="cuda").resize_(TIB),
    lambda: x[:1].expand(TIB).clone(),
    lambda: torch.empty(1 << 58, dtype=torch.float64, device="cuda"),
):
    assert refused(value)[1] == 1
for compute in (torch.add, torch.matmul, lambda a, b: torch.cdist(a, b.T)):
    for _ in range(2):  # the second time its result is known
        refused(functools.partial(compute, column, row))
del column, row

# as much as the device has may be had again and again, however the calls travel
most = int(total * 0.6)
reserved = torch.empty(most, dtype=torch.uint8, device="cuda")
refused(lambda: torch.empty(most, dtype=torch.uint8, device="cuda"))
for _ in range(4):
    some = reserved[:3].fill_(1).sum()
    del reserved
    reserved = torch.empty(most, dtype=torch.uint8, device="cuda")
    assert some.item() == 3
    del reserved
    reserved = torch.empty(most, dtype=torch.uint8, device="cuda")
del reserved

cuda.set_per_process_memory_fraction((cuda.memory_allocated() + (1 << 20)) / total)
refused(lambda: torch.empty(1 << 20, device="cuda"))
assert torch.empty(1 << 10, device="cuda").is_cuda
assert cuda.mem_get_info()[1] == total
assert not hasattr(cuda, "get_per_process_memory_fraction") or cuda.get_per_process_memory_fraction() < 1
cuda.set_per_process_memory_fraction(1.0)
del some

gc.collect()  # what errors have held of frames
cuda.reset_peak_memory_stats()
cuda.reset_accumulated_memory_stats()
before = cuda.memory_stats()
some = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
del some[0]
after = cuda.memory_stats()
mib = 1 << 20
units = {"allocated_bytes": mib, "reserved_bytes": mib, "active_bytes": mib, "requested_bytes": mib, "allocation": 1}
for name, unit in units.items():
    for pool in ("all", "large_pool"):
        keys = [f"{name}.{pool}.{key}" for key in ("current", "peak", "allocated", "freed")]
        assert [after[key] - before[key] for key in keys] == [2 * unit, 3 * unit, 3 * unit, unit], keys
assert after["allocated_bytes.all.current"] == cuda.memory_allocated() == cuda.memory_reserved()
assert after["allocated_bytes.all.peak"] == cuda.max_memory_allocated() == cuda.max_memory_reserved()
others = {"segment.all.current", "inactive_split_bytes.all.peak", "oversize_segments.freed", "num_alloc_retries"}
assert others <= after.keys()
assert after["num_ooms"] == 0
assert cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["freed"] == mib
assert "Allocated memory" in cuda.memory_summary()
del some
cuda.reset_peak_memory_stats()
assert cuda.max_memory_allocated() == cuda.memory_allocated() == before["allocated_bytes.all.current"]
print("memory ok")
