"""Which operators' meta kernels say what the CPU's kernels give, found by PyTorch's own samples in four layouts.

A result's sizes, strides, dtype, offset, storage and size in bytes must agree wherever no operand is empty and the meta
kernel says that results are row-major. Of other results more meta kernels are wrong (a channels_last convolution's):
there the server is asked. What is found for a release of torch is kept in ``device/shapes-<release>.json``, written by
``python -m edge_offload.device.conformance.shapes``: ``strided``, operators that agree in every layout of the operands,
and ``rows``, those that agree where operands are dense and row-major.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
import warnings
from collections import Counter
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

#: Samples of an operator and dtype, and of an operator that must agree, at the least.
SAMPLES, FEWEST = 12, 2
#: Seconds for an operator and dtype.
LONGEST_S = 6.0
DTYPES = (torch.float32, torch.int64, torch.bool, torch.float16, torch.float64)


def in_rows(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense, row-major and not empty (``in_rows`` of native/cpp/checks.h)."""
    stride = 1
    for size, own in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if own != stride:
            return False
        stride *= size
    return tensor.numel() > 0


class Watch(TorchDispatchMode):
    """Compares the metadata of every operator's results with those of its meta kernel.

    Attributes:
        agree, differ: calls by the operator's name and whether operands are in rows.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.agree: Counter[Tuple[str, bool]] = Counter()
        self.differ: Counter[Tuple[str, bool]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchDispatchMode`."""
        given, spec = tree_flatten((args, kwargs or {}))
        operands = [item for item in given if isinstance(item, torch.Tensor)]
        schema = func._schema
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        judged = name.startswith("aten::") and all(_plain(item) for item in operands)
        fakes = _on_meta(given) if judged else []
        result = func(*args, **(kwargs or {}))
        if judged:
            self._judge(name, func, spec, given, fakes, result)
            if name == "aten::convolution":  # what the virtual device gets instead
                other = torch.ops.aten._convolution.default
                more = (False, False, True, True)
                self._judge(
                    "aten::_convolution", lambda *all_args: other(*all_args, *more), spec, given, fakes, result
                )
        return result

    def exact(self) -> Dict[str, List[str]]:
        """Names of the operators that agreed so far, as the file has them."""
        rows = {name for (name, rows), count in self.agree.items() if rows and count >= FEWEST}
        rows -= {name for name, rows in self.differ if rows}
        strided = {name for name in rows if self.agree[name, False] >= FEWEST and not self.differ[name, False]}
        return {"rows": sorted(rows - strided), "strided": sorted(strided)}

    def _judge(
        self, name: str, func: Any, spec: Any, given: Sequence[Any], fakes: Sequence[Any], result: Any
    ) -> None:
        args, kwargs = tree_unflatten(list(fakes), spec)
        try:
            with torch.no_grad():
                found = func(*args, **kwargs)
        except Exception:
            return  # then the server is asked
        results = [item for item in tree_flatten(found)[0] if isinstance(item, torch.Tensor)]
        if not all(item.stride() == torch.empty(item.shape, device="meta").stride() for item in results):
            return  # likewise
        same = describe(tree_flatten(found)[0], fakes) == describe(tree_flatten(result)[0], given)
        rows = all(in_rows(item) for item in given if isinstance(item, torch.Tensor))
        (self.agree if same else self.differ)[name, rows] += 1


def describe(results: Sequence[Any], given: Sequence[Any]) -> List[Any]:
    """The metadata of results, and which operands or storages they are."""
    operands = [item for item in given if isinstance(item, torch.Tensor)]
    storages: Dict[int, int] = {}
    for operand in operands:
        storages.setdefault(operand.untyped_storage()._cdata, len(storages))
    known = len(storages)
    found: List[Any] = []
    for item in results:
        if not isinstance(item, torch.Tensor):
            found.append(type(item).__name__)
            continue
        storage = item.untyped_storage()
        place = storages.setdefault(storage._cdata, len(storages))
        same = next((index for index, operand in enumerate(operands) if operand is item), None)
        nbytes = storage.nbytes() if place >= known else None
        found.append((same, place, nbytes, item.dtype, tuple(item.shape), item.stride(), item.storage_offset()))
    return found


def found_exact() -> Dict[str, List[str]]:
    """Names of the operators whose meta kernels agree, as the file has them; takes some minutes."""
    from torch.testing._internal.common_methods_invocations import op_db

    watch = Watch()
    for op in op_db:
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                judge(op, dtype, watch)
    return watch.exact()


def judge(op: Any, dtype: torch.dtype, watch: Watch) -> None:
    """Have ``watch`` see the samples of one operator and dtype, in four layouts."""
    until = time.monotonic() + LONGEST_S
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES))
    except Exception:
        return  # it has none here
    for sample in samples:
        for arguments in _variants(op, sample):
            if time.monotonic() > until:
                return
            for function in filter(None, (op.op, op.inplace_variant)):
                first = arguments[0].clone() if isinstance(arguments[0], torch.Tensor) else arguments[0]
                with contextlib.suppress(Exception), watch:  # what eager execution refuses
                    function(first, *arguments[1], **arguments[2])


def _variants(op: Any, sample: Any) -> Iterator[Tuple[Any, Any, Any]]:
    for change in (_same, _channels_last, _transposed, _with_gaps):
        changed = sample.transform(change)
        yield changed.input, changed.args, changed.kwargs
    if isinstance(sample.input, torch.Tensor) and sample.args and isinstance(sample.args[0], torch.Tensor):
        yield sample.input, (2, *sample.args[1:]), sample.kwargs  # overloads that take a number
    if op.name.startswith("nn.functional."):
        yield sample.input, sample.args, {**sample.kwargs, "inplace": True}


def _same(item: Any) -> Any:
    return item


def _channels_last(item: Any) -> Any:
    four = isinstance(item, torch.Tensor) and item.dim() == 4
    return item.contiguous(memory_format=torch.channels_last) if four else item


def _transposed(item: Any) -> Any:
    flat = not isinstance(item, torch.Tensor) or item.dim() < 2 or item.layout is not torch.strided
    return item if flat else item.transpose(-1, -2).contiguous().transpose(-1, -2)


def _with_gaps(item: Any) -> Any:
    flat = not isinstance(item, torch.Tensor) or not item.dim() or item.layout is not torch.strided
    return item if flat else torch.stack((item, item), -1).select(-1, 0)


def _plain(tensor: torch.Tensor) -> bool:
    dense = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return dense and tensor.numel() > 0 and not tensor.is_conj() and not tensor.is_neg()


def _on_meta(given: Sequence[Any]) -> List[Any]:
    """The same arguments on the meta device; what shared a storage shares one."""
    storages: Dict[int, Any] = {}

    def convert(item: Any) -> Any:
        if isinstance(item, torch.device):
            return torch.device("meta")
        if isinstance(item, torch.Generator):
            return None
        if not isinstance(item, torch.Tensor):
            return item
        own = item.untyped_storage()
        if own._cdata not in storages:
            storages[own._cdata] = torch.empty(own.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
        made = torch.empty(0, dtype=item.dtype, device="meta")
        return made.set_(storages[own._cdata], item.storage_offset(), item.shape, item.stride())

    return [convert(item) for item in given]


def main() -> int:
    """Write the names to standard output."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    print(json.dumps({"torch": torch.__version__.split("+")[0], **found_exact()}, indent=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
