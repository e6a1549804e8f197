"""``torch.cuda`` as a program expects it: queries, streams, events, memory, seeds, answered for the virtual device."""

from __future__ import annotations

import abc
import importlib.util
import os
import time
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from edge_offload.device import lagging
from edge_offload.device.driver import VirtualDriver, in_place_of, public_modules, refusing
from edge_offload.device.visible import is_visible
from edge_offload.older_torch import RELEASE

_WITHOUT_EFFECT = ("init", "_lazy_init", "set_stream")


class Stream:
    """A stream. The device runs calls in the order in which they were made, so there is nothing to do."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.device_index = 0
        self.priority = priority
        self.cuda_stream = 0
        self.stream_id = 0

    def synchronize(self) -> None:
        """Wait for all calls."""
        torch.cuda.synchronize()

    def query(self) -> bool:
        """Calls run in order: it is done."""
        return True

    def wait_event(self, event: Any) -> None:
        """Calls run in order: the event is past."""

    def wait_stream(self, stream: Any) -> None:
        """Calls run in order: the stream is past."""

    def record_event(self, event: Optional[Event] = None) -> Event:
        """Record an event, made anew if none is given."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        """The stream needs no restoring."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class Event:
    """An event; its time is the host's when it was recorded (milliseconds, as torch has it)."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._time: Optional[float] = None

    def record(self, stream: Any = None) -> None:
        """Note the time of now."""
        self._time = time.monotonic()

    def wait(self, stream: Any = None) -> None:
        """Calls run in order: the event is past."""

    def query(self) -> bool:
        """Calls run in order: it is done."""
        return True

    def synchronize(self) -> None:
        """Wait for all calls."""
        torch.cuda.synchronize()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to a later event."""
        if self._time is None or end._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._time - self._time) * 1e3


class CudaSurface:
    """Patches of what a torch without CUDA lacks. ``recorder.query()`` is called for every query of the program."""

    def __init__(self, native: Any, recorder: Any) -> None:
        self._native = native
        self._recorder = recorder
        self._generators: List[torch.Generator] = []
        self._visible: Optional[bool] = None
        self.driver = VirtualDriver(native, recorder, self._check_and_query)

    def patch_torch(self) -> None:
        """Patch :mod:`torch.cuda` and what depends on it; once per process."""
        cuda = torch.cuda
        replaced = {}
        for name, function in self._cuda_functions().items():
            old = getattr(cuda, name, None)
            replaced[old] = in_place_of(old, name, function)
            setattr(cuda, name, replaced[old])
        replaced.pop(None, None)
        for module in public_modules():  # they import some of it by name
            for name, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType) and value in replaced:
                    setattr(module, name, replaced[value])
        stream, event = (lagging.LaggingStream, lagging.LaggingEvent) if lagging.is_lagging() else (Stream, Event)
        kind: Any
        for name, kind in (("Stream", stream), ("Event", event), ("ExternalStream", stream)):
            for member in dir(getattr(cuda, name)):
                if not member.startswith("_") and not hasattr(kind, member):
                    setattr(kind, member, staticmethod(refusing(f"torch.cuda.{name}.{member}")))
            setattr(cuda, name, kind)
            setattr(cuda.streams, name, kind)
        self._as_bases()
        cuda._initialized = True
        cuda.default_generators = (self._default_generator(),)
        self._legacy_types()
        self._patch_storages()
        self._patch_tensors()
        self._patch_helpers()
        self._leave_cudnn_out()
        self._make_generators()
        self.driver.patch_torch()
        torch._C._jit_set_texpr_fuser_enabled(False)
        if RELEASE < (2, 2):  # later ones have none, and warn
            torch._C._jit_set_nvfuser_enabled(False)
        torch._C._jit_override_can_fuse_on_gpu(False)

    def _as_bases(self) -> None:
        """Torch up to 2.4 asks that streams and events have its abstract bases."""
        bases = importlib.import_module("torch._streambase") if importlib.util.find_spec("torch._streambase") else None
        for name, ours in (("_StreamBase", torch.cuda.Stream), ("_EventBase", torch.cuda.Event)):
            base = getattr(bases, name, None)
            if isinstance(base, abc.ABCMeta):
                base.register(ours)

    def _cuda_functions(self) -> Dict[str, Callable[..., Any]]:
        return {
            **dict.fromkeys(_WITHOUT_EFFECT, lambda *_, **__: None),
            "is_available": lambda: bool(self._count_devices()),
            "is_initialized": lambda: True,
            "device_count": self._count_devices,
            "_device_count_nvml": lambda: int(is_visible(os.environ)),
            "current_device": self._constant_answer(0),
            "set_device": self._check_and_query,
            "_exchange_device": self._exchange_device,
            "_maybe_exchange_device": lambda device: self._exchange_device(device),  # dynamo wants two functions
            "get_device_name": self._device_name,
            "get_device_capability": self._device_capability,
            "get_device_properties": self._device_properties,
            "get_arch_list": lambda: ["sm_80"],
            "synchronize": self._wait_for_calls,
            "current_stream": lambda device=None: Stream(),
            "default_stream": lambda device=None: Stream(),
            "stream": lambda stream: stream if stream is not None else Stream(),
            "mem_get_info": self._memory_info,
            **{name: torch.cuda.memory_allocated for name in ("device_memory_used",) if hasattr(torch.cuda, name)},
            "make_graphed_callables": lambda callables, *_, **__: callables,  # a graph is the server's business
            "manual_seed": self._manual_seed,
            "manual_seed_all": self._manual_seed,
            "seed": self._seed_generator,
            "seed_all": self._seed_generator,
            "initial_seed": lambda: self._default_generator().initial_seed(),
            "get_rng_state": lambda device="cuda": self._default_generator().get_state(),
            "set_rng_state": lambda new_state, device="cuda": self._default_generator().set_state(new_state),
            "_lazy_call": lambda function, **_: function(),
            "is_bf16_supported": lambda including_emulation=True: True,
            "can_device_access_peer": lambda device, peer: False,
            "_is_compiled": lambda: True,
            **(lagging.cuda_functions() if lagging.is_lagging() else {}),
        }

    def _constant_answer(self, value: Any) -> Callable[..., Any]:
        def answer(*_: Any, **__: Any) -> Any:
            self._recorder.query()
            return value

        return answer

    def _count_devices(self) -> int:
        """Counts the GPUs that the program sees; as in CUDA, its variable is read on the first query."""
        self._recorder.query()
        if self._visible is None:
            self._visible = is_visible(os.environ)
        return int(self._visible)

    def _check_device(self, device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index if device is not None else 0
        if index not in (None, 0, -1):
            raise RuntimeError(
                "CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)",
            )

    def _check_and_query(self, device: Any = None) -> None:
        """Checks the device that a query names, and reports the query.

        That is a round trip where every call is one; elsewhere calls wait for the next host read, when it matters.
        """
        self._check_device(device)
        self._recorder.query()

    def _wait_for_calls(self, device: Any = None) -> None:
        self._check_and_query(device)
        if lagging.is_lagging():
            self._native.synchronize()

    def _exchange_device(self, device: Any) -> int:
        self._check_device(device)
        return 0

    def _device_properties(self, device: Any = None) -> Any:
        self._check_and_query(device)
        return types.SimpleNamespace(
            **self.driver.device_facts(), is_integrated=0, is_multi_gpu_board=0, warp_size=32, gcnArchName="",
            max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, L2_cache_size=1 << 22,
            uuid="edge_offload",
        )  # fmt: skip

    def _memory_info(self, device: Any = None) -> Tuple[int, int]:
        total = self._device_properties(device).total_memory
        return (max(0, total - int(self._native.counters()["allocated"])), total)

    def _device_name(self, device: Any = None) -> str:
        name: str = self._device_properties(device).name
        return name

    def _device_capability(self, device: Any = None) -> Tuple[int, int]:
        properties = self._device_properties(device)
        return (properties.major, properties.minor)

    def _default_generator(self) -> torch.Generator:
        return self.generators()[0]

    def generators(self) -> List[torch.Generator]:
        """The default generator of the device, in a list as ``torch.cuda.default_generators``."""
        if not self._generators:
            self._generators.append(self._native.default_generator())
        return self._generators

    def _manual_seed(self, seed: int) -> None:
        self._default_generator().manual_seed(int(seed))

    def _seed_generator(self) -> None:
        self._default_generator().seed()

    def _legacy_types(self) -> None:
        """``torch.cuda.FloatTensor(2, 3)`` and its siblings, as a default too."""
        kinds = {
            "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
            "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16, "CharTensor": torch.int8,
            "ByteTensor": torch.uint8, "BoolTensor": torch.bool, "BFloat16Tensor": torch.bfloat16,
        }  # fmt: skip
        for name, dtype in kinds.items():
            setattr(torch.cuda, name, LegacyType(f"torch.cuda.{name}", (), {"dtype": dtype}))
        set_default = torch.set_default_tensor_type

        def set_default_tensor_type(kind: Any) -> None:
            if isinstance(kind, str) and kind.startswith("torch.cuda."):
                kind = getattr(torch.cuda, kind.rpartition(".")[2])
            if isinstance(kind, LegacyType):
                torch.set_default_dtype(kind.dtype)
                torch.set_default_device("cuda")
            else:
                torch.set_default_device(None)
                set_default(kind)

        torch.set_default_tensor_type = set_default_tensor_type

    def _patch_tensors(self) -> None:
        """Patches functions that need a stream of torch's own kind, or memory that torch can read."""
        write, read = torch.UntypedStorage._write_file, torch.UntypedStorage._set_from_file

        def write_file(storage: Any, *args: Any) -> Any:
            return write(storage.cpu() if storage.device.type == "cuda" else storage, *args)  # type: ignore[no-untyped-call]

        def set_from_file(storage: Any, *args: Any) -> Any:
            if storage.device.type != "cuda":
                return read(storage, *args)  # type: ignore[no-untyped-call]
            return storage.copy_(read(torch.UntypedStorage(storage.nbytes()), *args))  # type: ignore[no-untyped-call]

        cross = self._native.cross if lagging.is_lagging() else _return_zero
        torch.Tensor.record_stream = lambda tensor, stream: cross(tensor)  # type: ignore[method-assign,assignment]
        torch.UntypedStorage._write_file = write_file  # type: ignore[method-assign]
        torch.UntypedStorage._set_from_file = set_from_file  # type: ignore[method-assign]

    def _patch_helpers(self) -> None:
        """Profiler ranges, what a build says of itself, and compiling: the program runs as it is."""
        nvtx = torch.cuda.nvtx
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            setattr(nvtx, name, in_place_of(getattr(nvtx, name), name, _return_zero))
        torch.backends.cuda.is_built = in_place_of(torch.backends.cuda.is_built, "is_built", lambda: True)
        torch.compile = _skip_compile

    def _leave_cudnn_out(self) -> None:
        """A torch that is built with cuDNN answers as one that is not: the device has none to ask for its version."""
        torch._C._has_cudnn = False
        torch._C.has_cudnn = False  # type: ignore[attr-defined]  # its name up to 2.0
        torch.backends.cudnn.version.__globals__["_init"] = lambda: False

    def _patch_storages(self) -> None:
        """``torch.UntypedStorage(n, device="cuda")``, which loading and copying use; torch's knows no such device."""
        make, resize = torch.UntypedStorage.__new__, torch.UntypedStorage.resize_

        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            if device is None or torch.device(device).type != "cuda":
                return make(cls, *args, **kwargs)
            return torch.empty(args[0] if args else 0, dtype=torch.uint8, device=device).untyped_storage()

        def resize_(self: Any, size: int) -> Any:
            if self.device.type != "cuda":
                return resize(self, size)
            torch.empty(0, dtype=torch.uint8, device="cuda").set_(self).resize_(size)
            return self

        torch.UntypedStorage.__new__ = new  # type: ignore[method-assign]
        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]

    def _make_generators(self) -> None:
        """``torch.Generator("cuda")``: torch up to 2.4 makes its own kind, where it is built with CUDA."""
        real, native = torch._C.Generator, self._native

        class GeneratorType(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, real)

            def __call__(cls, device: Any = "cpu") -> Any:
                return native.new_generator() if torch.device(device).type == "cuda" else real(device=device)

        torch.Generator = GeneratorType("Generator", (), {"__doc__": real.__doc__})  # type: ignore[misc,assignment]


class LegacyType(type):
    """The type of ``torch.cuda.FloatTensor``."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        """A tensor of this type on the device."""
        if len(args) == 1 and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(args, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def _return_zero(*_: Any, **__: Any) -> int:
    return 0


def _skip_compile(model: Any = None, **_: Any) -> Any:
    """Compiling is the server's business: the model stays as it is."""
    return model if model is not None else lambda function: function
