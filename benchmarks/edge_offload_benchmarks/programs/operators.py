"""How far single operators are from the plain CPU's: ``python -m ….programs.operators NAME COUNT``, run by ``exec``.

Every operator runs here and, with the same numbers in the memory layouts that a plain CPU would have by then, on the
CPU; what follows goes on with the numbers of here on both sides, so that nothing adds up. Prints one JSON line:
``worst``, the largest difference by name of operator, as a share of the largest value of its result (names without one
are left out), and ``grown``, how far the program's results on a CPU move by one unit in the last place of convolutions.
"""

from __future__ import annotations

import json
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_flatten, tree_map

from edge_offload.ir.torchvision_package import torchvision_package
from edge_offload_benchmarks.programs.catalogue import load_catalogue


class BothSides(TorchFunctionMode):
    """Runs what the program calls on the device, and beside it on the CPU.

    Attributes:
        worst: the largest difference by name of function; only those that have one.
        calls: how many were compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.worst: Dict[str, float] = {}
        self.calls = 0
        self._twins: Dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """One call; properties and what has no tensor of the device in it run as they are."""
        kwargs = dict(kwargs or {})
        name = resolve_name(function) or str(function)
        given = [item for item in tree_flatten((list(args), kwargs))[0] if _on_device(item)]
        if not given or name.rsplit(".", 1)[-1] in ("__get__", "__set__", "cpu", "to", "item", "tolist"):
            return function(*args, **kwargs)
        twins = tree_map(self._twin_of, (list(args), kwargs))
        result = function(*args, **kwargs)
        expected = function(*twins[0], **{**twins[1], **_on_cpu(twins[1])})
        for mine, theirs in zip(_tensors(result), _tensors(expected)):
            if _on_device(mine) and mine.shape == theirs.shape:
                self._compare_twins(name, mine, theirs)
        return result

    def _twin_of(self, item: Any) -> Any:
        if not _on_device(item):
            return item
        if id(item) not in self._twins:
            self._store_twin(item, item.detach().cpu())
        return self._twins[id(item)]

    def _store_twin(self, item: torch.Tensor, twin: torch.Tensor) -> None:
        self._twins[id(item)] = twin
        weakref.finalize(item, self._twins.pop, id(item), None)

    def _compare_twins(self, name: str, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        self.calls += 1
        observed = mine.detach().cpu()
        if not torch.equal(observed, theirs):
            self.worst[name] = max(_relative_error(observed, theirs), self.worst.get(name, 0.0))
            theirs.detach().copy_(observed)
        if id(mine) not in self._twins:
            self._store_twin(mine, theirs)


class Rounded(TorchFunctionMode):
    """Results of convolutions, each element one unit in the last place further or nearer, by chance."""

    def __init__(self) -> None:
        super().__init__()
        self._chance = torch.Generator().manual_seed(0)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """One call."""
        result = function(*args, **(kwargs or {}))
        if not (resolve_name(function) or "").rsplit(".", 1)[-1].startswith("conv"):
            return result
        up = torch.rand(result.shape, generator=self._chance) < 0.5
        return torch.nextafter(result, torch.where(up, torch.inf, -torch.inf))


def measure_growth(make: Callable[[str], Callable[[int], Any]], count: int) -> float:
    """The largest change of a result by :class:`Rounded`, as a share of the largest value."""
    plain, rounded, most = make("cpu"), make("cpu"), 0.0
    for number in range(count):
        expected = list(_tensors(plain(number)))
        with Rounded():
            results = list(_tensors(rounded(number)))
        for mine, theirs in zip(results, expected):
            if mine.shape == theirs.shape and theirs.is_floating_point():
                most = max(most, _relative_error(mine, theirs))
    return most


def _relative_error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine.double() - theirs.double()).abs().max()) / max(float(theirs.abs().max()), 1e-30)


def _on_cpu(kwargs: Mapping[str, Any]) -> Dict[str, Any]:
    return {"device": "cpu"} if kwargs.get("device") is not None else {}


def _on_device(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.device.type == "cuda"


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    return (item for item in tree_flatten(result)[0] if isinstance(item, torch.Tensor))


def main() -> int:
    """Run it."""
    torch.set_num_threads(1)
    torchvision_package()
    make, count = load_catalogue()[sys.argv[1]].make, int(sys.argv[2])
    infer = make("cuda")
    with BothSides() as sides:
        for number in range(count):
            infer(number)
    print(json.dumps({"calls": sides.calls, "worst": sides.worst, "grown": measure_growth(make, count)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
