"""What becomes of what programs call in torch.cuda and around it: an answer, or one line. Needs the virtual device."""

import os
import pathlib
import sys
import tempfile
import warnings

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

warnings.simplefilter("ignore")
cuda = torch.cuda
x = torch.ones(3, device="cuda")

#: Call, and what it returns; a function is asked about it; ... is anything.
ANSWERED = [
    (lambda: "virtual device" in torch.__config__.show(), True),
    (lambda: torch.__config__.parallel_info(), ...),
    (lambda: cuda.is_bf16_supported(), True),
    (lambda: cuda.get_device_capability() >= (7, 0), True),
    (lambda: cuda.get_arch_list(), ["sm_80"]),
    (lambda: cuda.get_gencode_flags(), lambda flags: "sm_80" in flags),
    (lambda: cuda.get_device_properties(0).multi_processor_count > 0, True),
    (lambda: cuda.can_device_access_peer(0, 0), False),
    (lambda: cuda.get_allocator_backend(), "native"),
    (lambda: cuda.ipc_collect(), None),
    (lambda: cuda.empty_cache(), None),
    (lambda: cuda.init(), None),
    (lambda: cuda.is_current_stream_capturing(), False),
    (lambda: cuda.make_graphed_callables(len, ()), lambda graphed: graphed is len),
    (lambda: (cuda.set_sync_debug_mode("warn"), cuda.get_sync_debug_mode()), (None, 1)),
    (lambda: (cuda.set_sync_debug_mode(0), cuda.get_sync_debug_mode()), (None, 0)),
    (lambda: cuda.host_memory_stats(), ...) if hasattr(cuda, "host_memory_stats") else (lambda: 0, 0),
    (lambda: cuda.cudart().cudaProfilerStart(), 0),
    (lambda: cuda.cudart().cudaProfilerStop(), 0),
    (lambda: cuda.cudart().cudaHostRegister(x.data_ptr(), 12, 0), 0),
    (lambda: cuda.cudart().cudaMemGetInfo(0) == cuda.mem_get_info(0), True),
    (lambda: cuda.check_error(0), None),
    (lambda: cuda.profiler.start(), None),
    (lambda: cuda.profiler.stop(), None),
    (lambda: cuda.nvtx.range_push("a"), 0),
    (lambda: cuda.nvtx.range_pop(), 0),
    (lambda: cuda.nvtx.mark("a"), 0),
    (lambda: cuda.nccl.is_available([x]), False),
    (lambda: cuda.comm.broadcast(x, [0])[0].is_cuda, True),
    (lambda: cuda.comm.scatter(x, [0])[0].is_cuda, True),
    (lambda: cuda.comm.gather([x, x], 0).shape, (6,)),
    (lambda: cuda.comm.reduce_add([x], 0).is_cuda, True),
    (lambda: cuda.Stream().wait_stream(cuda.current_stream()), None),
    (lambda: cuda.Stream().query(), True),
    (lambda: cuda.Stream() == cuda.default_stream(), True),
    (lambda: cuda.ExternalStream(0).synchronize(), None),
    (lambda: cuda.Stream().record_event().query(), True),
    (lambda: cuda.set_stream(cuda.Stream()), None),
    (lambda: cuda.StreamContext(cuda.Stream()).__enter__(), None),
    (lambda: cuda.device(0).__enter__(), None),
    (lambda: cuda.device_of(x).__enter__(), None),
    (lambda: cuda.amp.autocast().fast_dtype, torch.float16),
    (lambda: torch.autocast("cuda")(lambda: 1)(), 1),
    (lambda: cuda.amp.GradScaler(enabled=False).scale(x) is x, True),
    (lambda: hasattr(cuda, "tunable") and cuda.tunable.is_enabled(), False),
    (lambda: torch.backends.cuda.is_built(), True),
    (lambda: torch.backends.cuda.cufft_plan_cache.size, 0),
    (lambda: torch.backends.cuda.cufft_plan_cache.clear(), None),
    (lambda: setattr(torch.backends.cuda.cufft_plan_cache, "max_size", 8), None),
    (lambda: torch.backends.cuda.cufft_plan_cache.max_size, 8),
    (lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", False), None),
    (lambda: torch.backends.cuda.enable_flash_sdp(True), None),
    (lambda: torch.backends.cudnn.version(), None),
    (lambda: setattr(torch.backends.cudnn, "benchmark", False), None),
    (lambda: setattr(torch.backends.cudnn, "deterministic", False), None),
    (lambda: torch.backends.cudnn.flags(enabled=True).__enter__(), None),
    (lambda: torch.autograd.profiler.emit_nvtx().__enter__().__exit__(None, None, None), ...),
    (lambda: hasattr(x, "__cuda_array_interface__"), False),
    (lambda: hasattr(torch.ones(1), "__cuda_array_interface__"), False),
    (lambda: torch.from_dlpack(np.ones(2, np.float32)).cuda().tolist(), [1, 1]),
    (lambda: torch.from_dlpack(x.cpu()).tolist(), [1, 1, 1]),
    (lambda: x.share_memory_() is x, True),
]
#: Call, what the line names, and what it advises.
REFUSED = [
    (lambda: cuda.CUDAGraph(), "torch.cuda.CUDAGraph", "leave it out"),
    (lambda: type("Own", (cuda.CUDAGraph,), {})(), "torch.cuda.CUDAGraph", "leave it out"),
    (lambda: cuda.graph(None), "torch.cuda.graph", "leave it out"),
    (lambda: cuda.graph_pool_handle(), "torch.cuda.graph_pool_handle", "leave it out"),
    (lambda: cuda.memory_snapshot(), "torch.cuda.memory_snapshot", "leave it out"),
    (lambda: cuda.memory._record_memory_history(), "_record_memory_history", "leave it out"),
    (lambda: cuda.caching_allocator_alloc(4), "torch.cuda.caching_allocator_alloc", "leave it out"),
    (lambda: cuda.CUDAPluggableAllocator("a.so", "b", "c"), "torch.cuda.CUDAPluggableAllocator", "leave it out"),
    (lambda: cuda.change_current_allocator(None), "torch.cuda.change_current_allocator", "leave it out"),
    (lambda: cuda.current_blas_handle(), "torch.cuda.current_blas_handle", "leave it out"),
    (lambda: cuda._sleep(1), "torch.cuda._sleep", "leave it out"),
    (lambda: cuda.utilization(), "torch.cuda.utilization", "server's machine"),
    (lambda: cuda.temperature(), "torch.cuda.temperature", "server's machine"),
    (lambda: cuda.power_draw(), "torch.cuda.power_draw", "server's machine"),
    (lambda: cuda.clock_rate(), "torch.cuda.clock_rate", "server's machine"),
    (lambda: cuda.memory_usage(), "torch.cuda.memory_usage", "server's machine"),
    (lambda: cuda.list_gpu_processes(), "torch.cuda.list_gpu_processes", "server's machine"),
    (lambda: cuda.nccl.version(), "torch.cuda.nccl.version", "leave it out"),
    (lambda: cuda.nccl.all_reduce([x]), "torch.cuda.nccl.all_reduce", "leave it out"),
    (lambda: cuda.tunable.enable(), "torch.cuda.tunable.enable", "leave it out"),
    (lambda: cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")(x), "jiterator", "leave it"),
    (lambda: cuda.cudart().cudaStreamCreate(0), "cudaStreamCreate", "leave it out"),
    (lambda: cuda.Event(interprocess=True).ipc_handle(), "torch.cuda.Event.ipc_handle", "leave it out"),
    (lambda: cuda.sparse.FloatTensor(), "torch.cuda.sparse.FloatTensor", "torch.sparse_coo_tensor"),
    (lambda: torch.utils.dlpack.to_dlpack(x), "DLPack", ".cpu()"),
    (lambda: torch.from_dlpack(x), "DLPack", ".cpu()"),
    (lambda: np.from_dlpack(x), "DLPack", ".cpu()"),
    (lambda: x.__cuda_array_interface__, "__cuda_array_interface__", ".cpu()"),
    (lambda: torch.multiprocessing.reductions.reduce_tensor(x), "another process", ".cpu()"),
    (lambda: x.untyped_storage()._share_cuda_(), "another process", ".cpu()"),
    (lambda: cuda.mem_get_info("cuda:1"), "invalid device ordinal", "cuda:0"),
    (lambda: cuda.memory_stats(1), "invalid device ordinal", "cuda:0"),
]
if hasattr(cuda, "MemPool"):
    REFUSED.append((lambda: cuda.MemPool(), "torch.cuda.MemPool", "leave it out"))
if hasattr(cuda, "gds"):
    REFUSED.append((lambda: cuda.gds.GdsFile("/nowhere", 0), "torch.cuda.gds.GdsFile", ".cuda()"))
if hasattr(torch, "accelerator"):
    ANSWERED += [
        (lambda: torch.accelerator.current_accelerator().type, "cuda"),
        (lambda: torch.accelerator.device_count(), 1),
        (lambda: torch.accelerator.synchronize(), None),
        (lambda: torch.accelerator.empty_cache(), None),
        (lambda: torch.accelerator.memory_allocated() == cuda.memory_allocated(), True),
        (lambda: torch.accelerator.max_memory_allocated() == cuda.max_memory_allocated(), True),
    ]

for call, expected in ANSWERED:
    returned = call()
    right = expected is ... or (expected(returned) if callable(expected) else returned == expected)
    assert right, (call.__code__.co_firstlineno, returned)
for call, name, remedy in REFUSED:
    message = None
    try:
        call()
    except (RuntimeError, AttributeError) as error:  # hasattr() has to say no: the one that is no RuntimeError
        message, kind = str(error), type(error)
    assert message is not None, call.__code__.co_firstlineno
    assert issubclass(kind, RuntimeError) or "__cuda_array_interface__" in message, message
    for text in (name, remedy):
        assert text in message, message
    assert "\n" not in message, message

# a profile that asks for the device as well: of the CPU's share, and nothing but the profile on stderr
with tempfile.TemporaryFile() as received:
    sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(received.fileno(), 2)
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as returned:
            y = nn.Linear(3, 3).cuda()(x)
            y.cpu()
    finally:
        os.dup2(stderr, 2)
    received.seek(0)
    message = received.read().decode().splitlines()
assert not [line for line in message if "frame #" in line or "Failed" in line], message[:5]
assert len(message) <= 5, message
rows = {row.key: row for row in returned.key_averages()}
assert rows["aten::addmm"].count == 1
assert rows["aten::addmm"].cpu_time_total > 0
assert "aten::addmm" in returned.key_averages().table(sort_by="self_cpu_time_total")
with tempfile.TemporaryDirectory() as folder:
    returned.export_chrome_trace(f"{folder}/trace.json")
    assert "aten::addmm" in pathlib.Path(folder, "trace.json").read_text()
print("calls ok")
