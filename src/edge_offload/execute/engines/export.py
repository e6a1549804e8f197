"""A module as ONNX with static shapes, and what tells two modules apart without exporting them."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import io
import json
import pathlib
import re
import sys
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
from unittest import mock

import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.execute.tensors import Specs
from edge_offload.memory import flat_bytes

OPSET = 17
#: Where Python branches on sizes alone: torch's functions and its assertions, and our own networks.
_SIZE_CHECKS = (
    torch.nn.functional.__file__,
    torch.__file__,
    str(pathlib.Path(__file__).parents[2] / "models"),
)
_INPUT = "input"
#: Names that :func:`input_position` takes.
NAMED = re.compile(rf"{_INPUT}\d+")
_PLAIN = (bool, int, float, str, type(None))


def input_position(name: str) -> int:
    """The position among the network's inputs of the one that the graph calls ``name``."""
    return int(name[len(_INPUT) :])


class _CastFirst(nn.Module):
    """``network`` with every uint8 input cast to float32 first: TensorRT takes uint8 into a cast and nothing else.

    With ``typed``, inputs of floating-point numbers are cast to that type, and outputs back to float32.
    """

    def __init__(self, network: nn.Module, typed: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.network = network if typed is None else copy.deepcopy(network).to(typed)
        self._typed = typed

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Runs the network."""
        given = [one.to(torch.float32) if one.dtype is torch.uint8 else one for one in inputs]
        if self._typed is None:
            return self.network(*given)
        result = self.network(*(one.to(self._typed) if one.is_floating_point() else one for one in given))
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        return tuple(one.to(torch.float32) if one.is_floating_point() else one for one in outputs)


def export_onnx(
    network: nn.Module, inputs: Sequence[torch.Tensor], typed: Optional[torch.dtype] = None, dynamo: bool = False
) -> bytes:
    """``network`` as ONNX for inputs of these shapes, its weights and arithmetic of type ``typed`` where one is given.

    It is traced: what depends on the values of a tensor in Python would be frozen, so that is refused.

    Args:
        network: what is traced.
        inputs: what it is traced on; their values do not matter.
        typed: another type than float32.
        dynamo: by torch.export, which patches ``nn.Module`` for all threads while it traces: only in a process that
            computes nothing meanwhile. Else by TorchScript, which does not, and takes a fraction of the time.

    Raises:
        Unsupported: it cannot be exported; the message says why.
    """
    # tensors made in inference mode cannot be traced
    given = tuple(torch.from_numpy(one.cpu().numpy().copy()).to(one.device) for one in inputs)
    try:
        with warnings.catch_warnings(record=True) as caught, torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("always")
            document = (_by_dynamo if dynamo else _by_script)(_CastFirst(network, typed).eval(), given)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise Unsupported(f"it cannot be exported to ONNX: {type(error).__name__}: {lines[0][:300]}") from error
    for warning in caught:
        if warning.filename.startswith(_SIZE_CHECKS) or _formats_a_number(warning):
            continue  # these look at sizes, which are fixed here, and not at values
        if issubclass(warning.category, torch.jit.TracerWarning):  # type: ignore[attr-defined]
            text = str(warning.message).split(". ")[0][:200]
            raise Unsupported(
                f"it cannot be exported to ONNX: it may depend on the values of a tensor in Python: {text}"
            )
    return document


def _formats_a_number(warning: warnings.WarningMessage) -> bool:
    """True if a tensor became a number for a text, such as that of an assertion."""
    lines, first = inspect.getsourcelines(torch.Tensor.__format__)
    return warning.filename == torch._tensor.__file__ and first <= warning.lineno < first + len(lines)


def _by_script(network: nn.Module, inputs: Tuple[torch.Tensor, ...]) -> bytes:
    if any(isinstance(module, nn.MultiheadAttention) for module in network.modules()):
        # with gradients, attention is made of operators that ONNX has instead of one that it has not
        network = copy.deepcopy(network).requires_grad_(True)
        with torch.enable_grad():
            return _export_script(network, inputs)
    return _export_script(network, inputs)


def _export_script(network: nn.Module, inputs: Tuple[torch.Tensor, ...]) -> bytes:
    stream = io.BytesIO()
    options: Dict[str, Any] = {"opset_version": OPSET, "input_names": _input_names(inputs)}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False
    # what cannot be exported would be printed whole, thousands of lines of it
    with mock.patch.object(torch._C, "_jit_onnx_log", create=True, return_value=None):
        torch.onnx.export(network, inputs, stream, **options)  # type: ignore[arg-type]
    return stream.getvalue()


def _by_dynamo(network: nn.Module, inputs: Tuple[torch.Tensor, ...]) -> bytes:
    # torch.export knows no lower opset
    program: Any = torch.onnx.export(
        # parameters stand for something else while it is traced
        copy.deepcopy(network), inputs, dynamo=True, verbose=False, opset_version=18,
        input_names=_input_names(inputs),
    )  # fmt: skip
    document: bytes = program.model_proto.SerializeToString()
    return document


def _input_names(inputs: Sequence[torch.Tensor]) -> List[str]:
    return [f"{_INPUT}{number}" for number in range(len(inputs))]


def network_identity(network: nn.Module, specs: Specs) -> Optional[str]:
    """Hex sha256 of all that decides what :func:`export` gives: code, plain attributes, weights, shapes, versions.

    None where a part of the module holds something that this cannot see into.
    """
    digest = hashlib.sha256(f"{OPSET} {torch.__version__} {[str(spec) for spec in specs]}".encode())
    for name, module in network.named_modules():
        attributes = _plain_attributes(module)
        if attributes is None:
            return None
        kind = type(module)
        digest.update(json.dumps([name, kind.__module__, kind.__qualname__, _source_digest(kind), attributes]).encode())
    with torch.no_grad():
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            if tensor.numel():
                digest.update(flat_bytes(tensor).numpy().data)
    return digest.hexdigest()


def _source_digest(kind: type) -> str:
    """Digest of the file that holds the class; torch's own are told by its version."""
    if kind.__module__.startswith("torch."):
        return ""
    try:
        return hashlib.sha256(inspect.getsource(sys.modules[kind.__module__]).encode()).hexdigest()
    except (OSError, TypeError, KeyError):
        return "?"


def _plain_attributes(module: nn.Module) -> Optional[List[Tuple[str, str]]]:
    """Attributes of a module beside its tensors and parts, as text; None if one has no plain form."""
    if _source_digest(type(module)) == "?" or _has_hooks(module):
        return None
    attributes: List[Tuple[str, str]] = []
    for key, value in sorted(vars(module).items()):
        if key in _OF_ALL:
            continue
        text = _plain_text(value)
        if text is None:
            return None
        attributes.append((key, text))
    return attributes


def _plain_text(value: Any) -> Optional[str]:
    if isinstance(value, (*_PLAIN, torch.dtype, torch.Size)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        parts = [_plain_text(one) for one in value]
        return None if None in parts else f"{type(value).__name__}{parts}"
    if isinstance(value, dict):
        return _plain_text([(key, one) for key, one in value.items()])
    if isinstance(value, functools.partial):
        return _plain_text((value.func, value.args, value.keywords))
    if isinstance(value, type):
        source = _source_digest(value)
        return None if source == "?" else f"{value.__module__}.{value.__qualname__} {source}"
    return None


def _has_hooks(module: nn.Module) -> bool:
    hooks: Sequence[Callable[..., Any]] = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return bool(hooks) or "forward" in vars(module)


_OF_ALL = frozenset(vars(nn.Module())) - {"training"}
