"""What torch's own Python asks of CUDA (``torch._C._cuda_…``): answered for the virtual device, or refused by name.

``torch.cuda`` is Python over functions in C++ that a build without CUDA lacks, and that a build with CUDA would send to
a GPU of this machine. What is in no table below is refused when it is called; all names stay what they are: classes
classes, functions functions.
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
import re
import types
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import Unsupported

_UNKNOWN = {
    "name": "edge_offload virtual GPU", "total_memory": 8 << 30, "major": 8, "minor": 0, "multi_processor_count": 1,
}  # fmt: skip
_DECIDES = "leave it out: the server decides how it computes"
_MANAGES = "leave it out: the server manages its memory"
_ELSEWHERE = "look on the server's machine: the GPU is there"
_SHARED = "share what .cpu() returns, and call .cuda() in the other process"
_COPY = "call .cpu() first: the memory is another machine's"
#: Of a GPU in this machine, with no meaning for another machine's; and what to do.
_REFUSED: Dict[str, Tuple[str, ...]] = {
    _DECIDES: ("CUDAGraph", "graph", "green_contexts.GreenContext"),
    _MANAGES: ("MemPool", "CUDAPluggableAllocator", "memory_snapshot", "change_current_allocator"),
    _ELSEWHERE: ("list_gpu_processes", "utilization", "memory_usage", "temperature", "power_draw", "clock_rate"),
    "read the file on the host, and call .cuda()": ("gds.GdsFile",),
}
#: What changes nothing here: there is no cache, no other process, no page-locked pool, no stream to switch to.
_WITHOUT_EFFECT = (
    "_cuda_emptyCache", "_cuda_ipc_collect", "_cuda_cudaCachingAllocator_enable", "_cuda_resetPeakHostMemoryStats",
    "_cuda_resetAccumulatedHostMemoryStats", "_cuda_setStream", "_cuda_init", "_accelerator_emptyCache",
    "_accelerator_emptyHostCache",
)  # fmt: skip
_DRIVER_NAME = re.compile("_((cuda|nccl|gds)_[a-z]|graph_pool_handle)")
_Statistic = Dict[str, int]


def refusing(what: str, remedy: str = _DECIDES) -> Callable[..., Any]:
    """Makes a function that raises Unsupported."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(f"{what} is not there on the virtual device", remedy=f"{remedy} (edge_offload)")

    return refuse


def in_place_of(old: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a function of its own that looks like ``old``; torch._dynamo tells functions apart."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    if isinstance(old, types.FunctionType):
        return functools.wraps(old)(call)
    call.__name__ = call.__qualname__ = name
    return call


class VirtualDriver:
    """Stands where CUDA's driver and runtime are.

    Args:
        native: the extension module.
        recorder: of the device; its remote says what there is.
        check_and_query: called for every query of the program, with the device that it names;
            RuntimeError if there is none.
    """

    def __init__(self, native: Any, recorder: Any, check_and_query: Callable[[Any], None]) -> None:
        self._native = native
        self._recorder = recorder
        self._check_and_query = check_and_query
        self._fraction = 1.0
        self._debug = 0
        self._since: Dict[str, int] = dict.fromkeys(("taken", "given", "storages_made", "storages_gone", "refused"), 0)

    def patch_torch(self) -> None:
        """Put it into torch; once per process."""
        torch.cuda._cudart = self._make_runtime()  # type: ignore[attr-defined]
        answers = self._replacements()
        cpp_names = {**{name: f"torch._C.{name}" for name in vars(torch._C)}, **_names_used_by_torch()}
        replaced = {
            name: answers.get(name) or refusing(what) for name, what in cpp_names.items() if _DRIVER_NAME.match(name)
        }
        replaced.update(answers)
        modules = public_modules()
        for name, function in replaced.items():
            old = getattr(torch._C, name, None)
            function = in_place_of(old, name, function)
            setattr(torch._C, name, function)
            for module in modules:  # they import some of it by name
                if old is not None and getattr(module, name, None) is old:
                    setattr(module, name, function)
        for remedy, names in _REFUSED.items():
            for name in names:
                _refuse_name(name, remedy)
        for name in ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "BFloat16"):
            refuse = staticmethod(refusing(f"torch.cuda.sparse.{name}Tensor", "call torch.sparse_coo_tensor(…)"))
            kind = type(f"{name}Tensor", (), {"__new__": refuse, "__module__": torch.cuda.sparse.__name__})
            setattr(torch.cuda.sparse, kind.__name__, kind)
        importlib.import_module("torch.cuda.nccl").is_available = lambda tensors: False  # type: ignore[attr-defined]
        _refuse_memory()
        self.limit_memory()

    def limit_memory(self) -> None:
        """Limits the program to the memory that the device has; also for a new device."""
        self._native.limit_memory(int(self._fraction * self.device_facts()["total_memory"]))

    def device_facts(self) -> Mapping[str, Any]:
        """Facts of the device (:func:`edge_offload.execute.devices.device_facts`)."""
        facts: Mapping[str, Any] = self._recorder.remote.facts or _UNKNOWN
        return facts

    def _replacements(self) -> Dict[str, Callable[..., Any]]:
        return {
            **dict.fromkeys(_WITHOUT_EFFECT, lambda *_, **__: None),
            "_cuda_memoryStats": self._memory_stats,
            "_cuda_hostMemoryStats": dict,
            "_cuda_resetPeakMemoryStats": self._reset_peak,
            "_cuda_resetAccumulatedMemoryStats": self._reset_accumulated,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_getMemoryFraction": self._get_fraction,
            "_cuda_set_sync_debug_mode": lambda mode: setattr(self, "_debug", mode),
            "_cuda_get_sync_debug_mode": lambda: self._debug,
            "_cuda_getCurrentRawStream": lambda device: 0,
            "_cuda_isCurrentStreamCapturing": lambda: False,
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_getDeviceStats": self._memory_stats,
            "_accelerator_resetPeakStats": self._reset_peak,
            "_accelerator_resetAccumulatedStats": self._reset_accumulated,
            "_accelerator_getMemoryInfo": lambda device: torch.cuda.mem_get_info(device),
            "_broadcast": lambda tensor, devices: [tensor.to("cuda") for _ in devices],
            "_broadcast_coalesced": lambda tensors, devices, _: [[each.to("cuda") for each in tensors]] * len(devices),
            "_scatter": lambda tensor, *_: [tensor.to("cuda")],
            "_gather": _gather,
            "_cuda_tunableop_is_enabled": lambda: False,
            "_cuda_tunableop_tuning_is_enabled": lambda: False,
        }

    def _make_runtime(self) -> types.SimpleNamespace:
        """``torch.cuda.cudart()``: page-locked memory is ordinary memory here, and there is no profiler of a GPU."""

        def done(*_: Any) -> int:
            return 0

        return types.SimpleNamespace(
            cudaError=enum.IntEnum("cudaError", {"success": 0}),
            cudaGetErrorString=str,
            cudaMemGetInfo=lambda device: torch.cuda.mem_get_info(device),
            **dict.fromkeys(("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"), done),
            **{name: refusing(f"torch.cuda.cudart().{name}") for name in ("cudaStreamCreate", "cudaStreamDestroy")},
        )

    # -- memory

    def _counters(self) -> Dict[str, int]:
        counters: Dict[str, int] = self._native.counters()
        return {**counters, "storages_gone": counters["storages_made"] - counters["storages"]}

    def _memory_stats(self, device: Any = None) -> Dict[str, Any]:
        """Nests statistics as torch does. The device has one pool and no cache: what is allocated is reserved."""
        self._check_and_query(device)
        now = self._counters()
        since = {name: now[name] - before for name, before in self._since.items()}
        nbytes = _statistic_of(now["allocated"], now["peak"], since["taken"], since["given"])
        # so many there were when most bytes were held
        count = _statistic_of(now["storages"], now["storages_peak"], since["storages_made"], since["storages_gone"])
        none = _statistic_of(0, 0, 0, 0)

        def pools(statistic: _Statistic) -> Dict[str, _Statistic]:
            return {"all": dict(statistic), "large_pool": dict(statistic), "small_pool": dict(none)}

        return {
            **{f"{name}_bytes": pools(nbytes) for name in ("allocated", "reserved", "active", "requested")},
            **{name: pools(count) for name in ("allocation", "segment", "active")},
            **{name: pools(none) for name in ("inactive_split", "inactive_split_bytes")},
            **{name: dict(none) for name in ("oversize_allocations", "oversize_segments")},
            "num_alloc_retries": 0, "num_ooms": since["refused"], "num_sync_all_streams": 0, "max_split_size": -1,
            "num_device_alloc": since["storages_made"], "num_device_free": since["storages_gone"],
        }  # fmt: skip

    def _reset_peak(self, device: Any = None) -> None:
        self._check_and_query(device)
        self._native.reset_peak()

    def _reset_accumulated(self, device: Any = None) -> None:
        self._check_and_query(device)
        now = self._counters()
        self._since = {name: now[name] for name in self._since}

    def _set_fraction(self, fraction: float, device: Any = None) -> None:
        self._check_and_query(device)
        self._fraction = fraction
        self.limit_memory()

    def _get_fraction(self, device: Any = None) -> float:
        self._check_and_query(device)
        return self._fraction


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: Optional[int]) -> torch.Tensor:
    """Several devices are one here; ``destination`` -1 is the host."""
    return torch.cat(list(tensors), dim).to("cpu" if destination == -1 else "cuda")


def _statistic_of(current: int, peak: int, allocated: int, freed: int) -> _Statistic:
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def public_modules() -> List[types.ModuleType]:
    """``torch.cuda`` and its public modules."""
    names = [info.name for info in pkgutil.iter_modules(torch.cuda.__path__) if not info.name.startswith("_")]
    return [torch.cuda, *(importlib.import_module(f"torch.cuda.{name}") for name in names)]


def _names_used_by_torch() -> Dict[str, str]:
    """Names of C++ functions that ``torch.cuda`` uses, each with the name of a function that does."""
    users: Dict[str, str] = {}
    for module in public_modules():
        for owner, holder in [(module.__name__, module), *_classes_of(module)]:
            for name, value in vars(holder).items():
                if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                    shorter = f"torch.cuda.{name}"
                    public = shorter if getattr(torch.cuda, name, None) is value else f"{owner}.{name}"
                    used = (each for each in _names_in(value.__code__) if _DRIVER_NAME.match(each))
                    users.update({each: public for each in used if _is_of_torch(module, each)})
    return users


def _is_of_torch(module: types.ModuleType, name: str) -> bool:
    """True if the name stands for the C++ function, and not for something else of the module's own."""
    return not hasattr(module, name) or getattr(module, name) is getattr(torch._C, name, module)


def _classes_of(module: types.ModuleType) -> Iterator[Tuple[str, type]]:
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield f"{module.__name__}.{name}", value


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)


def _refuse_name(name: str, remedy: str) -> None:
    """Have ``torch.cuda.<name>`` refuse when it is called; a class can be named and inherited from as before."""
    path, _, last = name.rpartition(".")
    owner = getattr(torch.cuda, path, None) if path else torch.cuda
    original = getattr(owner, last, None)
    refuse = refusing(f"torch.cuda.{name}", remedy)
    if isinstance(original, type):
        made = [member for member, value in vars(original).items() if isinstance(value, (staticmethod, classmethod))]
        for member in ["__new__", *made]:
            setattr(original, member, staticmethod(refuse))
    elif original is not None:
        refuse = in_place_of(original, last, refuse)
        setattr(owner, last, refuse)
        defined = importlib.import_module(original.__module__)
        if getattr(defined, last, None) is original:
            setattr(defined, last, refuse)


def _refuse_memory() -> None:
    """Refuses the export of addresses of device tensors: their memory is not on this machine."""
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        export = getattr(torch._C, name, None)
        if export is None:
            continue
        checked = _checked_export(export)
        setattr(torch._C, name, checked)
        for module in (torch, torch.utils.dlpack):
            if getattr(module, "to_dlpack", None) is export:
                setattr(module, "to_dlpack", checked)  # noqa: B010 (not every torch has it in both)
    described = torch.Tensor.__cuda_array_interface__

    def interface(tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:  # hasattr() has to say no
            raise AttributeError(f"the virtual device has no __cuda_array_interface__; {_COPY} (edge_offload)")
        return described.__get__(tensor)

    torch.Tensor.__cuda_array_interface__ = property(interface)  # type: ignore[assignment,method-assign]
    share = refusing("sharing a tensor with another process", _SHARED)
    torch.UntypedStorage._share_cuda_ = share  # type: ignore[method-assign]
    torch.UntypedStorage._new_shared_cuda = share  # type: ignore[method-assign]


def _checked_export(export: Callable[..., Any]) -> Callable[..., Any]:
    def checked(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("dl_device")
        # 1: the CPU, as DLPack numbers devices
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda and (target is None or int(target[0]) != 1):
            cause = "a tensor of the virtual device cannot be exported by DLPack"
            raise Unsupported(cause, remedy=f"{_COPY} (edge_offload)")
        return export(tensor, *args, **kwargs)

    return checked
