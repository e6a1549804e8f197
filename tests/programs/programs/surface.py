"""What programs ask of torch.cuda. Needs the virtual device; prints nothing that differs between runs."""

import copy
import io

import torch
from torch import nn


def raises(error, function, text=""):
    try:
        function()
    except error as caught:
        if text not in str(caught):
            raise
        return
    raise AssertionError(f"no {error.__name__}")


assert torch.cuda.is_available()
assert torch.cuda.device_count() == 1
assert torch.cuda.current_device() == 0
assert torch.cuda.get_device_name(0)
assert torch.cuda.get_device_properties("cuda").total_memory > 0
assert torch.cuda.get_device_capability()[0] >= 7
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() >= 0
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with torch.cuda.stream(torch.cuda.Stream()):
    x = torch.ones(2, device="cuda")
end.record()
torch.cuda.current_stream().synchronize()
assert start.elapsed_time(end) >= 0
assert x.device == torch.device("cuda:0")
assert x.is_cuda
pinned = torch.ones(3).pin_memory()
assert pinned.is_pinned()
assert not torch.ones(3).is_pinned()
assert pinned.to("cuda", non_blocking=True).cpu().tolist() == [1, 1, 1]
torch.manual_seed(7)
a = torch.rand(4, device="cuda").cpu()
torch.manual_seed(7)
assert torch.equal(a, torch.rand(4, device="cuda").cpu())
generator = torch.Generator("cuda").manual_seed(3)
b = torch.randn(3, device="cuda", generator=generator).cpu()
assert torch.equal(b, torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(3)).cpu())
assert torch.cuda.FloatTensor([1, 2]).dtype == torch.float32
module = copy.deepcopy(nn.Linear(4, 2).cuda())
assert isinstance(module.weight, nn.Parameter)
with torch.autocast("cuda", dtype=torch.bfloat16):  # torch up to 2.1 multiplies no matrices in float16 on a CPU
    assert module(torch.randn(3, 4, device="cuda")).dtype == torch.bfloat16
raises(RuntimeError, lambda: torch.ones(2, device="cuda") + torch.ones(2), "same device")
raises(RuntimeError, lambda: torch.ones(2).add_(torch.ones(2, device="cuda")), "same device")
assert (torch.ones(2, device="cuda") + torch.tensor(1.5)).cpu().tolist() == [2.5, 2.5]
raises(RuntimeError, lambda: torch.ones(2, device="cuda") @ torch.ones(3, device="cuda"))
raises(RuntimeError, lambda: torch.ones(2, device="cuda:1"), "invalid device ordinal")
raises(TypeError, lambda: torch.ones(2, device="cuda").numpy())
module(torch.ones(1, 4, device="cuda")).sum().backward()
assert next(module.parameters()).grad.is_cuda
module.zero_grad()
raises(
    NotImplementedError, lambda: torch.quantize_per_tensor(torch.ones(2, device="cuda"), 0.1, 0, torch.quint8), "aten::"
)
raises(IndexError, lambda: torch.ones(3, device="cuda")[torch.tensor([5], device="cuda")].cpu())
assert torch.ones(3, device="cuda").sum().item() == 3
scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())).cuda()
assert scripted(torch.ones(1, 4, device="cuda")).shape == (1, 4)
assert "cuda:0" in repr(torch.ones(2, device="cuda"))
torch.cuda.reset_peak_memory_stats()
allocated = torch.cuda.memory_allocated()
large = torch.empty(1 << 20, device="cuda")
assert torch.cuda.memory_allocated() - allocated == 4 << 20
del large
assert torch.cuda.memory_allocated() == allocated
assert torch.cuda.max_memory_allocated() - allocated >= 4 << 20
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
x.record_stream(torch.cuda.Stream())
assert isinstance(torch.ones(1).type(torch.cuda.DoubleTensor), torch.cuda.DoubleTensor)
assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
torch.set_default_tensor_type(torch.cuda.FloatTensor)
on_device = torch.ones(2).is_cuda
torch.set_default_tensor_type(torch.FloatTensor)
assert on_device
assert not torch.ones(2).is_cuda
with torch.cuda.nvtx.range("all"):
    assert nn.DataParallel(nn.Linear(2, 2)).cuda()(torch.ones(1, 2)).is_cuda
assert torch.compile(nn.ReLU())(-torch.ones(2, device="cuda")).tolist() == [0, 0]
raises(Exception, torch.cuda.CUDAGraph, "virtual device")
assert torch.equal(torch.cuda.get_rng_state_all()[0], torch.cuda.get_rng_state())
old, new = io.BytesIO(), io.BytesIO()
torch.save(torch.arange(3.0, device="cuda"), old, _use_new_zipfile_serialization=False)
torch.save(torch.arange(3.0, device="cuda"), new)
for stream in (old, new):
    stream.seek(0)
    loaded = torch.load(stream, weights_only=True)
    assert loaded.is_cuda
    assert loaded.tolist() == [0, 1, 2]
frozen = torch.jit.freeze(torch.jit.script(nn.Linear(4, 4).eval()).cuda())
assert frozen(torch.ones(1, 4, device="cuda")).is_cuda
assert (torch.backends.cudnn.is_available(), torch.backends.cudnn.version()) == (False, None)
print("surface ok")
