"""Sequences from modules at hand: ``torch.export`` for an ``nn.Module``, any ATen ``torch.fx`` graph for the rest.

Up to torch 2.3 ``torch.export`` decomposes, has no weights in its graph, or is not there: ``make_fx`` traces instead.

Nothing is decomposed further than functionalisation asks for, so that the kernels, and with them the bits, are those
of eager execution. One known exception is torch's own: ``nn.MultiheadAttention`` takes a fused path in eager
inference that no graph contains; switch it off (``torch.backends.mha.set_fastpath_enabled(False)``) to compare bits.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import operator as python_operator
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.ir.device_guard import keep_device_guard
from edge_offload.ir.operators import Arg, Operator, Ref, Symbol
from edge_offload.ir.sequence import OperatorSequence
from edge_offload.ir.values import DYNAMIC, Kind, Value, content_digest, contiguous_strides
from edge_offload.memory import flat_bytes
from edge_offload.older_torch import RELEASE

_ATTENTION = "aten._native_multi_head_attention.default"
"""Gives no weights unless ``need_weights``; on tensors without data it gives some nevertheless."""
_PURE_CHECKS = ("aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten._assert_async.msg")


@dataclass(frozen=True)
class TracedProgram:
    """A recorded inference: its sequence, and the tensors behind its constants.

    Attributes:
        sequence: what is computed.
        constants: tensor by content digest; shared with the module, not copied.
    """

    sequence: OperatorSequence
    constants: Mapping[str, torch.Tensor]


def from_module(module: nn.Module, inputs: Sequence[torch.Tensor]) -> TracedProgram:
    """Traces the sequence that ``module(*inputs)`` runs, for inputs of these very shapes and dtypes.

    Buffers that the forward pass overwrites become state inputs behind the user's, with a rebind each.

    Raises:
        Unsupported: the forward pass branches on data or has sizes that depend on data; the message says where.
    """
    keep_device_guard()
    try:
        # torch prints the whole graph to stderr where it stops at data; the exception says all that matters of it
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            if not can_export():
                return from_graph_module(_by_proxies(module, inputs))
            with _process_state_unchanged():
                exported = torch.export.export(module, tuple(inputs)).run_decompositions({})
    except Unsupported:
        raise
    except Exception as error:  # torch.export raises many unrelated types for one reason: it cannot trace this
        raise Unsupported(
            f"{type(module).__name__} cannot be traced: {type(error).__name__}: {str(error).strip().splitlines()[0]}",
            remedy="trace the part with static shapes, or capture the running program",
        ) from error
    return from_exported(exported)


def can_export() -> bool:
    """True if this torch's ``torch.export`` gives graphs that can be read here: from 2.4 on."""
    return RELEASE >= (2, 4)


def _by_proxies(module: nn.Module, inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The graph of ``module`` by ``make_fx``, its weights as attributes.

    Raises:
        Unsupported: it changes its own buffers.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    # what a call changes it changes while it is traced, too: copies, and in their place in the graph the buffers
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    function = torch.func.functionalize(
        lambda *given: torch.func.functional_call(module, buffers, given), remove="mutations"
    )
    traced = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    for node in traced.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise Unsupported(
                f"{type(module).__name__} changes its own buffers in an inference ({node.target})",
                remedy="use another mode",
            )
    originals = {id(buffers[name]): buffer for name, buffer in module.named_buffers()}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            tensor = getattr(traced, node.target)
            setattr(traced, node.target, originals.get(id(tensor), tensor))
        elif "val" not in node.meta:  # torch 2.0 describes outputs one by one if not all of them are tensors
            node.meta["val"] = [each.meta.get("val") for each in node.users if each.target is python_operator.getitem]
    return traced


@contextlib.contextmanager
def _process_state_unchanged() -> Iterator[None]:
    """Keeps torch from changing the state of the whole process while it traces.

    It would switch oneDNN, NNPACK and cuDNN off, so that inferences on other threads take other kernels: with other
    bits, and slower. And it would read the random state of a GPU, put it back at the end and thereby lose what other
    threads have drawn meanwhile; on a virtual device that means requests to a server in the midst of an inference.
    """
    with contextlib.ExitStack() as stack:
        for place, name in (("torch.export._trace", "_ignore_backend_decomps"),
                            ("torch._functorch.aot_autograd", "preserve_rng_state")):  # fmt: skip
            module = importlib.import_module(place)
            if hasattr(module, name):
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, contextlib.nullcontext)
        yield


def from_exported(exported: Any) -> TracedProgram:
    """Reads the sequence of a functionalised ``torch.export.ExportedProgram``."""
    signature = exported.graph_signature
    named: Dict[str, torch.Tensor] = {**exported.state_dict, **exported.constants}
    source = {**signature.inputs_to_parameters, **signature.inputs_to_buffers,
              **signature.inputs_to_lifted_tensor_constants}  # fmt: skip
    written = set(signature.buffers_to_mutate.values()) | set(getattr(signature, "user_inputs_to_mutate", {}).values())
    builder = _Builder()
    user: List[str] = list(signature.user_inputs)
    state: List[str] = [name for name, target in source.items() if target in written]
    for node in exported.graph.nodes:
        if node.op != "placeholder" or node.name not in source or node.name in state:
            continue
        builder.add_constant(node, named[source[node.name]])
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    for name in (*user, *state):
        builder.add_input(placeholders[name])
    builder.add_calls(exported.graph)
    by_target = {target: name for name, target in source.items()}
    outputs: List[int] = []
    rebinds: List[Tuple[int, int]] = []
    for spec in signature.output_specs:
        number = builder.numbers[spec.arg.name]
        if spec.kind.name == "USER_OUTPUT":
            outputs.append(number)
        elif spec.kind.name in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
            rebinds.append((builder.numbers[by_target.get(spec.target, spec.target)], number))
        else:
            raise Unsupported(f"an output of kind {spec.kind.name} in an exported program")
    return builder.finish(outputs, rebinds)


def from_graph_module(graph_module: torch.fx.GraphModule) -> TracedProgram:
    """Reads the sequence of an ATen graph made by ``torch.fx.experimental.proxy_tensor.make_fx``.

    Args:
        graph_module: every node carries ``meta["val"]``; attributes are constants.
    """
    builder = _Builder()
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            builder.add_input(node)
        elif node.op == "get_attr":
            builder.add_constant(node, getattr(graph_module, str(node.target)))
    builder.add_calls(graph_module.graph)
    (output,) = [node for node in graph_module.graph.nodes if node.op == "output"]
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    return builder.finish([builder.numbers[node.name] for node in results], [])


def tensor_digest(tensor: torch.Tensor) -> str:
    """Content digest of a tensor, independent of device, strides and whether it is part of a larger storage."""
    return content_digest(_dtype_name(tensor), tuple(tensor.shape), flat_bytes(tensor).numpy().data)


class _Builder:
    """Collects values and operators while a graph is read front to back."""

    def __init__(self) -> None:
        self.values: Dict[int, Value] = {}
        self.numbers: Dict[str, int] = {}
        self.inputs: List[int] = []
        self.constants: Dict[int, str] = {}
        self.tensors: Dict[str, torch.Tensor] = {}
        self.operators: List[Operator] = []
        self.outputs_of: Dict[str, Tuple[Optional[int], ...]] = {}

    def add_input(self, node: torch.fx.Node) -> None:
        self.inputs.append(self._add_value(node.name, node.meta["val"], Kind.INPUT))

    def add_constant(self, node: torch.fx.Node, tensor: torch.Tensor) -> None:
        digest = tensor_digest(tensor)
        self.tensors.setdefault(digest, tensor.detach())
        self.constants[self._add_value(node.name, tensor, Kind.CONSTANT)] = digest

    def add_calls(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                self._add_call(node)
            elif node.op not in ("placeholder", "output", "get_attr"):
                raise Unsupported(f"graph node {node.name} is {node.op}, not an ATen call")

    def finish(self, outputs: Sequence[int], rebinds: Sequence[Tuple[int, int]]) -> TracedProgram:
        sequence = OperatorSequence(
            self.values, tuple(self.inputs), self.constants, tuple(self.operators), tuple(outputs), (), tuple(rebinds)
        )
        sequence = sequence.validate().without_dead_code()
        used_digests = set(sequence.constants.values())
        return TracedProgram(
            sequence, {digest: tensor for digest, tensor in self.tensors.items() if digest in used_digests}
        )

    def _add_value(self, name: str, val: Any, kind: Kind, storage: Optional[int] = None) -> int:
        number = len(self.values)
        shape = tuple(size if isinstance(size, int) else DYNAMIC for size in val.shape)
        strides: Optional[Tuple[int, ...]] = None
        if DYNAMIC not in shape and val.layout == torch.strided:
            strides = tuple(int(stride) for stride in val.stride())
            strides = None if strides == contiguous_strides(shape) else strides
        self.values[number] = Value(number, _dtype_name(val), shape, kind, strides, 0, storage)
        if name:
            self.numbers[name] = number
        return number

    def _add_call(self, node: torch.fx.Node) -> None:
        if node.target is python_operator.getitem:
            source, position = node.args
            assert isinstance(source, torch.fx.Node)
            assert isinstance(position, int)
            number = self.outputs_of[source.name][position]
            if number is None:
                if not node.users:
                    return
                raise Unsupported(f"{node.name} takes an output that {source.name} does not have")
            self.numbers[node.name] = number
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unsupported(f"{node.name} calls {node.target}, which is not an operator overload")
        name = str(node.target)
        if name in _PURE_CHECKS:
            return
        schema = node.target._schema
        bound = _bind_arguments(schema, node.args, node.kwargs)
        mutates = _refs_where(self, schema, bound, lambda info: info.is_write)
        val = node.meta.get("val")
        vals = [] if val is None else list(val) if isinstance(val, (tuple, list)) else [val]
        if name == _ATTENTION and not bound.get("need_weights", True):
            vals[1] = None
        shared = [self._aliased_argument(schema, bound, position, len(vals)) for position in range(len(vals))]
        outputs: List[Optional[int]] = []
        for position, item in enumerate(vals):
            if item is None or type(item) is int:  # fused attention gives sizes, too
                outputs.append(None)
                continue
            if not isinstance(item, torch.Tensor):
                raise Unsupported(f"{name} gives a {type(item).__name__} that depends on data",
                                  remedy="trace the part with static shapes")  # fmt: skip
            base = shared[position]
            storage = None if base is None else self._shared_storage(base)
            single = node.name if not isinstance(val, (tuple, list)) else ""
            outputs.append(self._add_value(single, item, Kind.INTERMEDIATE, storage))
        self.outputs_of[node.name] = tuple(outputs)
        self.operators.append(
            Operator(
                name,
                tuple(self._convert_argument(arg, node) for arg in node.args),
                tuple(sorted((key, self._convert_argument(arg, node)) for key, arg in node.kwargs.items())),
                tuple(outputs),
                mutates,
                tuple((position, base) for position, base in enumerate(shared) if base is not None),
                _module_path(node),
            )
        )

    def _aliased_argument(self, schema: Any, bound: Mapping[str, Any], position: int, count: int) -> Optional[int]:
        """Number of the argument value that output ``position`` may share its storage with."""
        returns = schema.returns
        if not returns:
            return None
        info = returns[position if len(returns) == count else 0].alias_info
        if info is None:
            return None
        for argument in schema.arguments:
            given = bound.get(argument.name)
            matching = argument.alias_info is not None and argument.alias_info.before_set & info.before_set
            if matching and isinstance(given, torch.fx.Node):
                return self.numbers[given.name]
        return None

    def _shared_storage(self, number: int) -> int:
        value = self.values[number]
        if value.storage is None:
            self.values[number] = Value(value.id, value.dtype, value.shape, value.kind, value.strides, 0, number)
        storage = self.values[number].storage
        assert storage is not None
        return storage

    def _convert_argument(self, arg: Any, node: torch.fx.Node) -> Arg:
        if isinstance(arg, torch.fx.Node):
            return Ref(self.numbers[arg.name])
        if isinstance(arg, (tuple, list)):
            return tuple(self._convert_argument(item, node) for item in arg)
        for kind, torch_type in (
            ("dtype", torch.dtype),
            ("layout", torch.layout),
            ("memory_format", torch.memory_format),
        ):
            if isinstance(arg, torch_type):
                return Symbol(kind, str(arg).split(".")[-1])
        if isinstance(arg, torch.device):
            return Symbol("device", str(arg))
        if arg is None or isinstance(arg, (bool, int, float, complex, str)):
            return arg
        raise Unsupported(f"{node.name} has an argument of type {type(arg).__name__}")


def _bind_arguments(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
    return {**{argument.name: value for argument, value in zip(schema.arguments, args)}, **kwargs}


def _refs_where(builder: _Builder, schema: Any, bound: Mapping[str, Any], test: Any) -> Tuple[int, ...]:
    numbers: List[int] = []
    for argument in schema.arguments:
        given = bound.get(argument.name)
        if argument.alias_info is not None and test(argument.alias_info):
            for item in given if isinstance(given, (tuple, list)) else (given,):
                if isinstance(item, torch.fx.Node):
                    numbers.append(builder.numbers[item.name])
    return tuple(numbers)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).split(".")[-1]


def _module_path(node: torch.fx.Node) -> str:
    """Innermost module that issued the call, as its path in the model."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, (tuple, list)) and entry]
    return str(paths[-1])[:200] if paths else ""
