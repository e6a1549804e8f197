"""Making ``cuda`` the virtual device of this process without native code."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, List, Optional

import torch

from edge_offload.capture.fallback import engine as engines
from edge_offload.capture.fallback.device import PythonDevice
from edge_offload.capture.fallback.guard import number_devices, set_guard
from edge_offload.capture.fallback.metadata import Metadata
from edge_offload.capture.fallback.operators import REMEDY, WHOLE
from edge_offload.capture.fallback.signature import generators
from edge_offload.capture.fallback.tensor import CUDA0
from edge_offload.capture.surface import LegacyType, Surface

_kept: List[Any] = []  # torch takes kernels back when their library is dropped
_LAST_RESORT = "edge_offload: this operator does not reach the virtual device without the native one"
#: Factories that grow their result in place, which a subclass cannot: (operator, its form with ``out``).
_RANGES = {
    "arange.start_step": "arange.start_out", "arange.start": "arange.start_out", "arange": "arange.start_out",
    "linspace": "linspace.out", "logspace": "logspace.out", "eye": "eye.m_out", "eye.m": "eye.m_out",
    "randperm": "randperm.generator_out", "randperm.generator": "randperm.generator_out",
}  # fmt: skip


def _address(generator: Any) -> int:
    return int(generator._cdata)


class PythonGenerator(torch._C.Generator):
    """``torch.Generator("cuda")``: a number; its state lives on the server."""

    count = 1

    def __new__(cls, device: Any = "cuda", number: Optional[int] = None) -> PythonGenerator:
        made: PythonGenerator = super().__new__(cls)
        return made

    def __init__(self, device: Any = "cuda", number: Optional[int] = None) -> None:
        if number is None:
            number, PythonGenerator.count = PythonGenerator.count, PythonGenerator.count + 1
        self.number = number
        generators[_address(self)] = number
        self._seed = 67280421310721  # torch's default seed

    def __del__(self) -> None:
        generators.pop(_address(self), None)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Of the tensors that it fills."""
        return CUDA0

    def manual_seed(self, seed: int) -> PythonGenerator:
        """Set the seed, an event of the recorded program."""
        self._seed = int(seed)
        engines.engine().device.seed(self.number, self._seed)
        return self

    def seed(self) -> int:
        """Set a seed that nobody chose."""
        self.manual_seed(torch.Generator().seed())
        return self._seed

    def initial_seed(self) -> int:
        """The seed that was set last."""
        return self._seed

    def get_state(self) -> torch.Tensor:
        """The state, from the server."""
        return engines.engine().device.generator_state(self.number)

    def set_state(self, new_state: torch.Tensor) -> PythonGenerator:
        """Put a state back."""
        engines.engine().device.restore(self.number, new_state)
        return self


class PythonNative(PythonDevice):
    """The device with what :mod:`edge_offload.capture.device` and the surface ask of the native module."""

    def __init__(self) -> None:
        super().__init__()
        self._default: Optional[PythonGenerator] = None

    def install(self, handler: Any) -> None:
        """Put the kernels of the CUDA key in place; ``handler`` is told of every segment."""
        self.handler = handler
        engine = engines.start(self)
        if set_guard():
            number_devices()
        library = torch.library.Library("aten", "IMPL", "CUDA")
        _kept.append(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is being replaced
            for name, kernel in _kernels(engine).items():
                library.impl(name, kernel)
            for name in WHOLE:
                operator, _, overload = name.partition(".")
                packet = getattr(torch.ops.aten, operator, None)
                if packet is not None and (overload or "default") in packet.overloads():
                    library.impl(name, _unreachable)

    def trust(self, names: List[str]) -> None:
        """Operators whose meta kernels are the CPU's own shape functions."""
        self.trusted.update(names)

    def default_generator(self) -> PythonGenerator:
        """The generator of the device that operators use when none is named."""
        if self._default is None:
            self._default = PythonGenerator(number=0)
        return self._default

    def new_generator(self) -> PythonGenerator:
        """Another one."""
        return PythonGenerator()


def _unreachable(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(f"{_LAST_RESORT}: {REMEDY}")


def _kernels(engine: engines.Engine) -> Dict[str, Callable[..., Any]]:
    """Kernels for calls with no device tensor among their operands: those that make one."""

    def check(layout: Any, device: Any, pin_memory: Any) -> None:
        if device is not None and torch.device(device).index not in (None, 0):
            raise RuntimeError("CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)")
        if layout not in (None, torch.strided):
            raise RuntimeError(f"edge_offload: layout {layout} is not supported on the device")
        if pin_memory:
            raise RuntimeError("Only dense CPU tensors can be pinned")

    def empty(
        size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Any:  # fmt: skip
        check(layout, device, pin_memory)
        meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
        return engine.empty(meta.shape, meta.stride(), meta.dtype)

    def empty_strided(
        size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> Any:
        check(layout, device, pin_memory)
        return engine.empty(size, stride, dtype or torch.get_default_dtype())

    def overload_of(name: str) -> str:
        return name.partition(".")[2]

    def ranged(name: str, into: str) -> Callable[..., Any]:
        operator, _, overload = name.partition(".")
        make = getattr(getattr(torch.ops.aten, operator), overload or "default")
        operator, _, overload = into.partition(".")
        fill = getattr(getattr(torch.ops.aten, operator), overload)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            check(kwargs.get("layout"), kwargs.get("device"), kwargs.get("pin_memory"))
            generator = kwargs.pop("generator", None)
            named = {"generator": None} if overload_of(name) == "generator" else {}
            meta = make(*args, **{**kwargs, **named, "device": torch.device("meta"), "pin_memory": None})
            out = engine.empty(meta.shape, meta.stride(), meta.dtype)
            values = list(args)
            if operator == "arange":
                values = [0, *values] if len(values) == 1 else values
            if operator == "eye" and len(values) == 1:
                values = [values[0], values[0]]
            more = {"generator": generator} if operator == "randperm" else {}
            return fill(*values, **more, out=out)

        return kernel

    def copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
        """Where torch looks past subclasses: ``torch.tensor(…, device="cuda")``."""
        return engine.copy(target, source)

    kernels: Dict[str, Callable[..., Any]] = {
        "empty.memory_format": empty, "empty_strided": empty_strided, "copy_": copy_,
    }  # fmt: skip
    for name, into in _RANGES.items():
        kernels[name] = ranged(name, into)
    return kernels


class PythonSurface(Surface):
    """What a program asks of ``torch.cuda`` and of saving and loading, without storages."""

    def apply(self) -> None:
        """Patch; once per process."""
        super().apply()
        torch._C._set_cudnn_enabled(False)  # or a build with CUDA would issue operators that only cuDNN has
        self._pinned()
        if hasattr(torch, "__future__") and hasattr(torch.__future__, "set_swap_module_params_on_conversion"):
            torch.__future__.set_swap_module_params_on_conversion(True)
        else:
            torch.__future__.set_overwrite_module_params_on_conversion(True)
        self._scripted()

    def _scripted(self) -> None:
        move, load = torch.jit.RecursiveScriptModule._apply, torch.jit.load
        refused = f"a TorchScript module cannot be moved to the device without the native one: {REMEDY}"

        def load_module(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if map_location is not None and torch.device(map_location).type == "cuda":
                raise NotImplementedError(refused)
            return load(f, map_location, *args, **kwargs)

        def apply(module: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return move(module, function, *args, **kwargs)
            except RuntimeError as error:
                raise NotImplementedError(refused) from error

        torch.jit.load = load_module
        torch.jit.RecursiveScriptModule._apply = apply  # type: ignore[method-assign,assignment]

    def _storages(self) -> None:
        """Loading puts a storage on the device whole, once, and makes the tensors that look into it."""
        rebuild = torch._utils._rebuild_tensor

        def deserialize(storage: Any, location: str) -> Any:
            if not str(location).startswith("cuda"):
                return None
            plain = getattr(storage, "_untyped_storage", storage)
            plain._edge_offload = True
            return storage

        def rebuild_tensor(storage: Any, storage_offset: Any, size: Any, stride: Any) -> Any:
            plain = getattr(storage, "_untyped_storage", storage)
            host = rebuild(storage, storage_offset, size, stride)
            if not getattr(plain, "_edge_offload", False):
                return host
            whole: Any = getattr(plain, "_edge_offload_tensor", None)
            if whole is None:
                flat = torch.empty(0, dtype=torch.uint8).set_(plain)
                whole = plain._edge_offload_tensor = flat.to("cuda")
            engine = engines.engine()
            metadata = Metadata.of(host)._replace(nbytes=whole._slot.nbytes)
            return engine.tensor(whole._slot, metadata)

        def tag(storage: Any) -> Any:
            plain = getattr(storage, "_untyped_storage", storage)
            return "cuda:0" if getattr(plain, "_edge_offload_saved", False) else None

        torch.serialization.register_package(5, tag, deserialize)
        torch._utils._rebuild_tensor = rebuild_tensor

    def _pinned(self) -> None:
        def pin_memory(tensor: Any, device: Any = None) -> Any:
            pinned = tensor.clone()
            pinned._edge_offload_pinned = True
            return pinned

        real_type = torch.Tensor.type

        def legacy_type(tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
                dtype = getattr(torch.cuda, dtype.rpartition(".")[2])
            if isinstance(dtype, LegacyType):
                return tensor.to(CUDA0, dtype.dtype)
            return real_type(tensor, dtype, *args, **kwargs) if dtype is not None else real_type(tensor)

        torch.Tensor.type = legacy_type  # type: ignore[method-assign,assignment]
        torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign,assignment]
        torch.Tensor.is_pinned = lambda tensor, device=None: hasattr(tensor, "_edge_offload_pinned")  # type: ignore[method-assign,assignment]
