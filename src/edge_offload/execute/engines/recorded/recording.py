"""Records a function on tensors of this process as calls that a session can run.

The function runs once, on tensors whose data Python cannot read. A function that reads values in Python (``.item()``,
``.tolist()``, NumPy) cannot be recorded. Nor can one whose sizes depend on data, or one that draws random numbers.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from edge_offload.errors import Unsupported
from edge_offload.ir.trace.writing import write_call

Function = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
#: Operator whose output sizes depend on data only if an index is a mask; dtypes of masks.
_INDEX = "aten::index"
_MASK_DTYPES = (torch.bool, torch.uint8)


class RecordedCall(NamedTuple):
    """A call, with the addresses of its storages.

    Attributes:
        name, key, numbers: see :class:`~edge_offload.ir.trace.writing.WrittenCall`.
        operands: addresses of its tensors' storages, in order.
        made: addresses of the storages that it allocates, in order.
    """

    name: str
    key: bytes
    numbers: bytes
    operands: Tuple[int, ...]
    made: Tuple[int, ...]


class Recording(NamedTuple):
    """Record of one run of a function.

    Attributes:
        calls: in order, without those that only return views.
        graph: all calls; it takes ``constants``, then ``inputs``, and returns ``outputs``.
        constants: tensors that existed before the run, in the order of their first use.
        inputs, outputs: of the function; inputs are contiguous copies.
        addresses: weak references to new storages: an address is not reused while one exists, though its memory is
            freed.
    """

    calls: List[RecordedCall]
    graph: torch.fx.Graph
    constants: List[torch.Tensor]
    inputs: List[torch.Tensor]
    outputs: List[torch.Tensor]
    addresses: List[StorageWeakRef]

    def existing_storages(self) -> Dict[int, torch.Tensor]:
        """Return a tensor of each storage that existed before the run, by :func:`address_of` it."""
        return {address_of(tensor): tensor for tensor in (*self.constants, *self.inputs)}


def record_calls(run: Function, inputs: Sequence[torch.Tensor]) -> Recording:
    """Record what ``run`` computes from ``inputs``.

    Raises:
        Unsupported: a call cannot be recorded; the message names it.
        Exception: whatever ``run`` raises where it reads values in Python.
    """
    # outside inference mode, torch decomposes composite operators before the dispatch mode gets them
    with torch.inference_mode(False), torch.no_grad():
        copies = [tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs]
        graph = _GraphWriter(copies)
        recorder = _Recorder(graph)
        with recorder:
            outputs = [_unwrap(output) for output in run([_Opaque(tensor) for tensor in copies])]
    graph.write_outputs(outputs)
    return Recording(recorder.calls, graph.graph, graph.constants, copies, outputs, recorder.addresses)


class _Opaque(torch.Tensor):
    """Wrapper of a tensor (``content``) whose data Python cannot read.

    A network may keep one after the recording: operators on it still run on ``content``.
    """

    content: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> _Opaque:
        wrapper: _Opaque = torch.Tensor._make_wrapper_subclass(
            cls, real.shape, strides=real.stride(), storage_offset=real.storage_offset(), dtype=real.dtype,
            device=real.device, requires_grad=False,
        )  # fmt: skip
        wrapper.content = real
        return wrapper

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*_unwrap_all(args), **_unwrap_all(kwargs or {}))


class _GraphWriter:
    """Writes calls to an FX graph in which each tensor has one node."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self.graph = torch.fx.Graph()
        self.constants: List[torch.Tensor] = []
        self._nodes: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for number, one in enumerate(inputs):
            self._nodes[one] = self.graph.placeholder(f"input_{number}")
        self._first_input = next(iter(self.graph.nodes), None)

    def write_call(self, func: Any, args: Any, kwargs: Any, returned: Any) -> None:
        """Add a node for a call, and nodes for the tensors that it returned."""
        node = self.graph.call_function(func, self._node_of(args), self._node_of(kwargs))
        if isinstance(returned, torch.Tensor):
            self._nodes[returned] = node
        for number, one in enumerate(returned if isinstance(returned, (list, tuple)) else ()):
            if isinstance(one, torch.Tensor):
                self._nodes[one] = self.graph.call_function(operator.getitem, (node, number))

    def write_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """End the graph."""
        self.graph.output(self._node_of(tuple(outputs)))

    def _node_of(self, values: Any) -> Any:
        return map_aggregate(values, lambda one: self._tensor_node(one) if isinstance(one, torch.Tensor) else one)

    def _tensor_node(self, tensor: torch.Tensor) -> torch.fx.Node:
        node: Optional[torch.fx.Node] = self._nodes.get(tensor)
        if node is None:
            with self.graph.inserting_before(self._first_input):
                node = self._nodes[tensor] = self.graph.placeholder(f"constant_{len(self.constants)}")
            self.constants.append(tensor)
        return node


class _Recorder(TorchDispatchMode):
    """Dispatch mode that runs each call on unwrapped tensors, records it and wraps its results."""

    def __init__(self, graph: _GraphWriter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = graph
        self.calls: List[RecordedCall] = []
        self.addresses: List[StorageWeakRef] = []
        self._made: Set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        opaque = {id(one.content): one for one in tree_flatten((args, kwargs))[0] if isinstance(one, _Opaque)}
        args, kwargs = _unwrap_all(args), _unwrap_all(kwargs or {})
        _check_static(func, args)
        call = write_call(func, args, kwargs)
        self._check_written(func, args, kwargs)
        returned = func(*args, **kwargs)
        # fused attention returns sizes, too
        results = [one for one in tree_flatten(returned)[0] if one is not None and type(one) is not int]
        if not all(isinstance(one, torch.Tensor) for one in results):
            raise Unsupported(f"it looks at values in Python ({call.name})")
        operands = tuple([address_of(one) for one in call.operands])
        made = {address_of(one): one for one in results if address_of(one) not in operands}
        self._graph.write_call(func, args, kwargs, returned)
        if made or func._schema.is_mutable:
            self.calls.append(RecordedCall(call.name, call.key, call.numbers, operands, tuple(made)))
            self._made.update(made)
            self.addresses += [StorageWeakRef(one.untyped_storage()) for one in made.values()]
        for wrapper in opaque.values():
            if wrapper.content.shape != wrapper.shape or wrapper.content.stride() != wrapper.stride():
                raise Unsupported(f"it changes the shape of a tensor in place ({call.name})")
        return tree_map_only(torch.Tensor, lambda one: opaque[id(one)] if id(one) in opaque else _Opaque(one), returned)

    def _check_written(self, func: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        """Raise Unsupported if a call writes to a storage that existed before the run."""
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            for one in tree_flatten(given)[0]:
                if isinstance(one, torch.Tensor) and address_of(one) not in self._made:
                    raise Unsupported(f"it writes to its inputs or its own state ({func})")


def _check_static(func: Any, args: Sequence[Any]) -> None:
    """Raise Unsupported for an operator that is not torch's, or whose output or sizes Python reads from data."""
    name = func._schema.name
    if func.namespace != "aten":
        raise Unsupported(f"{name} is no operator of torch")
    if torch.Tag.data_dependent_output in func.tags:
        raise Unsupported(f"it looks at values in Python ({name})")
    if torch.Tag.dynamic_output_shape in func.tags:
        masks = any(one is not None and one.dtype in _MASK_DTYPES for one in args[1]) if name == _INDEX else True
        if masks:
            raise Unsupported(f"its sizes depend on data ({name})")


def _unwrap(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.content if isinstance(tensor, _Opaque) else tensor


def _unwrap_all(values: Any) -> Any:
    return tree_map_only(_Opaque, _unwrap, values)


def address_of(tensor: torch.Tensor) -> int:
    """Return the address that identifies the storage of ``tensor`` among those that exist."""
    address: int = tensor.untyped_storage()._cdata
    return address
