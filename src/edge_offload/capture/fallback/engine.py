"""Turning operator calls on device tensors into calls of :class:`PythonDevice`, and its answers into tensors."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from edge_offload.capture.entries import ALIAS, ARGUMENT, NEW, UNDEFINED
from edge_offload.capture.fallback.device import FLUSH_WORDS, PythonDevice, Slot
from edge_offload.capture.fallback.metadata import Metadata, meta_results
from edge_offload.capture.fallback.operators import MOVES, REMEDY, Operator, Route, has_mask
from edge_offload.capture.fallback.seen import Call, Out
from edge_offload.capture.fallback.signature import key_of, scan, tensor_item
from edge_offload.capture.fallback.tensor import CUDA0, RemoteTensor
from edge_offload.capture.handed import DYNAMIC, INFER
from edge_offload.capture.keys import DTYPES

_make = torch.Tensor._make_wrapper_subclass
_SAME_DEVICE = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


class Engine:
    """Turns operator calls into entries and results."""

    def __init__(self, device: PythonDevice) -> None:
        self.device = device
        device.on_forget = self._forget
        self._operators: Dict[int, Operator] = {}
        self._calls: Dict[Tuple[Any, ...], Call] = {}
        self._shapes: Dict[Tuple[Any, ...], Out] = {}
        self._layouts: List[Metadata] = []
        self._numbers: Dict[Metadata, int] = {}
        self._last = Call(0, False)
        self._local = {
            "copy_": self._copy_, "_to_copy": self._to_copy, "_local_scalar_dense": self._item, "clone": self._like,
            "empty_like": self._like, "new_empty": self._like, "new_empty_strided": self._like,
            "zeros_like": self._like, "ones_like": self._like, "full_like": self._like, "new_zeros": self._like,
            "new_ones": self._like, "new_full": self._like, "rand_like": self._like, "randn_like": self._like,
            "is_pinned": lambda operator, values, key: False,
            "detach_": lambda operator, values, key: values[0],
        }  # fmt: skip

    def _forget(self) -> None:
        self._calls.clear()
        self._shapes.clear()
        self._last = Call(0, False)

    # -- tensors

    def layout(self, metadata: Metadata) -> int:
        """The number of a layout."""
        found = self._numbers.get(metadata)
        if found is None:
            found = self._numbers[metadata] = len(self._layouts)
            self._layouts.append(metadata)
        return found

    def metadata(self, tensor: RemoteTensor) -> Metadata:
        """How ``tensor`` lies in its storage."""
        return self._layouts[tensor._layout]

    def tensor(self, slot: Slot, metadata: Metadata) -> RemoteTensor:
        """A tensor that looks into ``slot``."""
        return self._tensor(slot, self._out(NEW, 0, metadata))

    def _out(self, kind: int, ref: int, metadata: Metadata) -> Out:
        options: Dict[str, Any] = {"dtype": DTYPES[metadata.dtype], "device": CUDA0}
        if metadata.offset or torch.empty(metadata.sizes, device="meta").stride() != metadata.strides:
            options.update(strides=metadata.strides, storage_offset=metadata.offset)  # they cost time to read
        return Out(kind, ref, self.layout(metadata), metadata.sizes, options, metadata.nbytes)

    def _tensor(self, slot: Slot, out: Out) -> RemoteTensor:
        made = _make(RemoteTensor, out.sizes, **out.options)
        made._slot = slot
        made._layout = out.layout
        return made

    def empty(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> RemoteTensor:
        """An allocation."""
        meta = torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device="meta")
        metadata = Metadata.of(meta)
        with self.device.lock:
            return self.tensor(self.device.allocate(metadata.nbytes), metadata)

    # -- calls

    def dispatch(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        """What ``func`` returns. The way of a call that was seen before is the one that has to be short."""
        device = self.device
        with device.lock:
            call = self._last.next
            if call is None or call.func is not func or kwargs or device.busy or tuple(map(type, args)) != call.types:
                return self._looked_up(func, args, kwargs or {})
            slots: List[Slot] = []
            for i, layout in call.tensors:
                tensor = args[i]
                if tensor._layout != layout:
                    return self._looked_up(func, args, {})
                slots.append(tensor._slot)
            for i, value in call.plain:
                if args[i] != value:
                    return self._looked_up(func, args, {})
            count = len(slots)
            if (count == 2 and slots[0] is slots[1]) or (count > 2 and len(set(slots)) != count):
                return self._looked_up(func, args, {})
            self._last = call
            device.calls += 1
            device.hits += 1
            device.segment_calls += 1
            pending = device.pending  # device.append written out: the way of every call seen before
            if not pending:
                device.base = device.next_id
            pending.append(call.index)
            epoch = device.epoch
            for slot in slots:
                pending.append(slot.canonical if slot.epoch == epoch else device.canonical(slot))
            one: Any = call.one
            result = _make(RemoteTensor, one.sizes, **one.options)
            number, canonical = device.next_id, device.values
            device.next_id, device.values = number + 1, canonical + 1
            result._slot = Slot(number, one.nbytes, device, epoch, canonical, True)
            result._layout = one.layout
            if device.eager or len(pending) > FLUSH_WORDS:
                device.after_call()
            return result

    def _looked_up(self, func: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        """The same for a call that does not follow the one before it as it did the last time; the lock is held."""
        operator = self._operators.get(id(func)) or self._operator(func)
        key: List[Any] = [operator]
        tensors: List[RemoteTensor] = []
        hosts: List[Any] = []
        for value in args:
            if type(value) is not RemoteTensor:
                key, tensors = [operator], []
                scan(args, operator.tensors, key, tensors, hosts)
                break
            key.append(value._layout)
            tensors.append(value)
        for name, value in kwargs.items():
            key.append(name)
            scan((value,), operator.named[name], key, tensors, hosts)
        slots = [tensor._slot for tensor in tensors]
        count = len(slots)
        if count == 2:
            if slots[0] is slots[1]:
                key.append(0)
        elif count > 2 and len(set(slots)) != count:
            key.append(tuple([slots.index(slot) for slot in slots]))
        device = self.device
        call = self._calls.get(tuple(key))
        if call is None or device.busy:
            return self._first(operator, args, kwargs, tuple(key), tensors, slots, hosts)
        if call.func is not None:
            self._last.next = self._last = call
        if call.noted:
            device.calls += 1
            device.hits += 1
            device.append(call.index, slots)
            if hosts:
                device.numbers += hosts
        result = self._results(call, tensors, slots, True)
        if call.noted and (device.eager or len(device.pending) > FLUSH_WORDS):
            device.after_call()
        return result

    def _operator(self, func: Any) -> Operator:
        found = self._operators.get(id(func))
        if found is None:
            found = self._operators[id(func)] = Operator(func)
        return found

    def _results(self, call: Call, tensors: List[RemoteTensor], slots: List[Slot], in_segment: bool) -> Any:
        if len(call.outs) == 1 and call.outs[0] and not call.many[0]:
            out = call.outs[0][0]
            if out.kind == NEW:
                return self._tensor(self.device.new_slot(out.nbytes, in_segment), out)
            if out.kind == ARGUMENT:
                return tensors[out.ref]
        distinct = list(dict.fromkeys(slots))
        returned: List[Any] = []
        for outs, many, value in zip(call.outs, call.many, call.values):
            made: List[Any] = []
            for out in outs:
                if out.kind == NEW:
                    distinct.append(self.device.new_slot(out.nbytes, in_segment))
                    made.append(self._tensor(distinct[-1], out))
                elif out.kind == ALIAS:
                    made.append(self._tensor(distinct[out.ref], out))
                else:
                    made.append(tensors[out.ref] if out.kind == ARGUMENT else None)
            returned.append(made if many else made[0] if made else value)
        return returned[0] if len(returned) == 1 else tuple(returned) if returned else None

    # -- a call that has not been seen

    def _first(
        self,
        operator: Operator,
        args: Sequence[Any],
        kwargs: Dict[str, Any],
        key: Tuple[Any, ...],
        tensors: List[RemoteTensor],
        slots: List[Slot],
        hosts: List[Any],
    ) -> Any:
        device = self.device
        device.check()
        if torch._C._get_tracing_state() is not None:
            raise NotImplementedError(f"torch.jit.trace does not work on the device without the native one: {REMEDY}")
        values = operator.all_arguments(args, kwargs)
        local = self._local.get(operator.func._schema.name[len("aten::") :])
        if local is not None and operator.name.startswith("aten::"):
            return local(operator, values, key)
        if operator.route is Route.DECOMPOSED:
            return operator.func.decompose(*args, **kwargs)
        if operator.route is Route.REFUSED:
            raise NotImplementedError(f"operator {operator.name!r} is not there without the native device: {REMEDY}")
        if operator.name in device.refused:
            raise NotImplementedError(f"{device.refused[operator.name]} (edge_offload)")
        if operator.route is Route.VIEW:
            call = Call(0, False)
            self._fill(operator, call, meta_results(operator, values, self.metadata), tensors)
            if any(out.kind == NEW for outs in call.outs for out in outs):
                raise NotImplementedError(f"operator {operator.name!r} is not a view here: {REMEDY}")
            self._calls[key] = call
            return self._results(call, tensors, slots, True)
        device.forget_if_many()
        self._check_hosts(operator, values, hosts)
        payloads = [host for host in hosts if isinstance(host, torch.Tensor)]
        dynamic = operator.dynamic or (operator.masks and has_mask(values[1]))
        named = key_of(operator, values, slots, self.metadata)
        entry, results = device.known(operator.name, named), None
        static = not dynamic and not payloads
        if static and (entry is None or entry.results is None) and operator.name in device.trusted:
            results = meta_results(operator, values, self.metadata)  # raises what eager execution would raise
        entry = entry or device.intern(operator.name, named)
        if results is not None:
            entry.results, entry.claimed = results, True
        call = Call(entry.index, True)
        known = entry.results is not None and not dynamic
        if entry.results is not None and known:
            self._fill(operator, call, entry.results, tensors)
        device.calls += 1
        device.note(entry, slots, [host for host in hosts if type(host) is bytes], payloads)
        if not known:
            described = device.flush(DYNAMIC if dynamic else INFER)
            try:
                self._fill(operator, call, described, tensors)
            except NotImplementedError:
                for item in [each for kind, what in described for each in ([what] if kind == "t" else what)]:
                    if item[0] == NEW:
                        device.new_slot(item[7], False)  # the server made it, and is told to drop it
                raise
        result = self._results(call, tensors, slots, known)
        if known:
            device.after_call()
        elif not dynamic:
            entry.results = described
        if not dynamic and not payloads:
            self._calls[key] = call
            if not kwargs and not hosts:
                call.recognise(operator.func, args, slots)
        return result

    def _fill(self, operator: Operator, call: Call, described: Sequence[Any], tensors: List[RemoteTensor]) -> None:
        for kind, what in described:
            wire = [] if kind == "v" else [what] if kind == "t" else what
            outs = [
                Out(UNDEFINED, 0, 0, (), {}, 0) if item[0] == UNDEFINED else
                self._out(item[0], item[1], Metadata.from_wire(item)) for item in wire
            ]  # fmt: skip
            for item, out in zip(wire, outs):
                if item[0] != UNDEFINED and item[3]:
                    raise NotImplementedError(
                        f"operator {operator.name!r} returns a lazy conjugate or negative: {REMEDY}"
                    )
                if out.kind == ARGUMENT and out.layout != tensors[out.ref]._layout:
                    raise NotImplementedError(f"operator {operator.name!r} changes the shape of its operand: {REMEDY}")
            call.outs.append(outs)
            call.many.append(kind == "l")
            call.values.append(what if kind == "v" else None)
        if call.noted and call.many == [False] and call.outs[0] and call.outs[0][0].kind == NEW:
            call.one = call.outs[0][0]

    def _check_hosts(self, operator: Operator, values: Sequence[Any], hosts: Sequence[Any]) -> None:
        """As on a GPU: a host number may join device tensors; a host array only where torch itself moves it."""
        if any(isinstance(host, torch.Tensor) and host.dim() for host in hosts):
            name = operator.func._schema.name[len("aten::") :]
            if name not in MOVES or not isinstance(values[0], RemoteTensor):
                raise RuntimeError(f"{_SAME_DEVICE} (in {operator.name})")
        for argument, value in zip(operator.arguments, values):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, torch.Tensor) and not isinstance(value, RemoteTensor):
                raise RuntimeError(f"{_SAME_DEVICE} ({operator.name} cannot write {argument.name} on the host)")

    # -- answered here

    def copy(self, target: Any, source: Any) -> Any:
        """Copy between tensors of which at least one is on the device."""
        with self.device.lock:
            return self._copy_(None, (target, source))

    def _copy_(self, operator: Any, values: Sequence[Any], key: Tuple[Any, ...] = ()) -> Any:
        target, source = values[0], values[1]
        if isinstance(target, RemoteTensor) and isinstance(source, RemoteTensor):
            return self._noted(torch.ops.aten.copy_.default, (target, source))
        if isinstance(target, RemoteTensor):
            if target.numel():
                self.device.upload(target._slot, tensor_item(self.metadata(target), 0), source)
            return target
        return target.copy_(self.host(source))

    def host(self, source: RemoteTensor) -> torch.Tensor:
        """The contents of a device tensor."""
        metadata = self.metadata(source)
        if not source.numel():
            return torch.empty(metadata.sizes, dtype=source.dtype)
        return self.device.download(source._slot, tensor_item(self.metadata(source), 0))

    def _noted(self, func: Any, args: Sequence[Any]) -> Any:
        """An operator that is usually answered here, sent to the server."""
        operator = self._operator(func)
        tensors = [value for value in args if isinstance(value, RemoteTensor)]
        slots = [tensor._slot for tensor in tensors]
        entry = self.device.intern(
            operator.name, key_of(operator, operator.all_arguments(args, {}), slots, self.metadata)
        )
        self.device.calls += 1
        self.device.note(entry, slots)
        self.device.after_call()
        return args[0]

    def _item(self, operator: Operator, values: Sequence[Any], key: Tuple[Any, ...] = ()) -> Any:
        return self.host(values[0]).item()

    def _to_copy(self, operator: Operator, values: Sequence[Any], key: Tuple[Any, ...] = ()) -> Any:
        source = values[0]
        named = dict(zip([argument.name for argument in operator.arguments], values))
        device = torch.device(named["device"]) if named["device"] is not None else source.device
        if device.type == "cuda":
            return self._like(operator, values, key)
        if device.type != "cpu":
            raise RuntimeError(f"edge_offload: cannot copy from the virtual device to {device}")
        host = self.host(source)
        dtype = named["dtype"] if named["dtype"] is not None else host.dtype
        metadata = self.metadata(source)
        meta = torch.empty_strided(metadata.sizes, metadata.strides, dtype=dtype, device="meta")
        kept = torch.empty_like(meta, memory_format=named["memory_format"] or torch.preserve_format)
        made = torch.empty_strided(kept.shape, kept.stride(), dtype=dtype)
        return made.copy_(host)

    def _like(self, operator: Operator, values: Sequence[Any], key: Tuple[Any, ...] = ()) -> Any:
        """A new tensor in the likeness of another, and what is put into it."""
        if any(isinstance(value, torch.device) and value.type == "cpu" for value in values):
            host = [torch.empty_like(values[0], device="meta") if value is values[0] else value for value in values]
            positional, named = operator.split(host)
            return operator.func(*positional, **named)
        name = operator.func._schema.name[len("aten::") :]
        out = self._shapes.get(key)
        if out is None:
            shape = meta_results(operator, values, self.metadata)[0][1]
            out = self._shapes[key] = self._out(NEW, 0, Metadata.from_wire(shape))
        made = self._tensor(self.device.allocate(out.nbytes), out)
        if name in ("clone", "_to_copy"):
            return self._copy_(operator, (made, values[0]))
        if name in ("zeros_like", "new_zeros"):
            return made.zero_()
        if name in ("ones_like", "new_ones"):
            return made.fill_(1)
        if name in ("full_like", "new_full"):
            return made.fill_(values[1] if name == "full_like" else values[2])
        if name == "rand_like":
            return made.uniform_()
        return made.normal_() if name == "randn_like" else made


_engine: Optional[Engine] = None


def start(device: PythonDevice) -> Engine:
    """Make ``device`` the one that tensors of this process are on."""
    global _engine
    _engine = Engine(device)
    RemoteTensor.__torch_dispatch__ = staticmethod(_engine.dispatch)  # type: ignore[method-assign]
    return _engine


def engine() -> Engine:
    """What :func:`start` made."""
    assert _engine is not None
    return _engine
