"""The process that says which operators PyTorch's own samples come down to, for ``bench kernels``: a line of JSON each.

Plain, on fake tensors of "cuda", which need a build of torch with CUDA and no driver; or, under ``edge-offload exec``,
as the virtual device records them.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import json
import signal
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import nn

MARK = "dispatched "
DTYPES = (torch.float32, torch.float16)
SECONDS = 8
"""Longest time for an entry and dtype."""
#: Networks beside the entries of op_db: name, what makes one, shape of its input. Recurrent ones are not in op_db.
NETWORKS: List[Tuple[str, Callable[[str], nn.Module], Tuple[int, ...]]] = [
    ("nn.LSTM", lambda device: nn.LSTM(5, 6, device=device), (3, 2, 5)),
    ("nn.GRU", lambda device: nn.GRU(5, 6, device=device), (3, 2, 5)),
    ("nn.RNN", lambda device: nn.RNN(5, 6, device=device), (3, 2, 5)),
    ("nn.LSTMCell", lambda device: nn.LSTMCell(5, 6, device=device), (2, 5)),
    ("nn.GRUCell", lambda device: nn.GRUCell(5, 6, device=device), (2, 5)),
    ("nn.Conv2d.depthwise", lambda device: nn.Conv2d(8, 8, 3, groups=8, device=device), (2, 8, 9, 9)),
    ("nn.BatchNorm2d", lambda device: nn.BatchNorm2d(8, device=device), (2, 8, 9, 9)),
    ("nn.TransformerEncoderLayer", lambda device: nn.TransformerEncoderLayer(16, 2, device=device), (5, 2, 16)),
]
Run = Callable[[str], Any]


class TooLong(Exception):
    """An entry took longer than :data:`SECONDS`."""


def list_runs(patterns: List[str], limit: int) -> Iterator[Tuple[str, Callable[[], List[Run]]]]:
    """Name of each entry whose name is like one of ``patterns``, and what draws it: calls that take a device."""
    from torch.testing._internal.common_methods_invocations import op_db

    from edge_offload_research.device.conformance.exclusions import EXCLUSIONS
    from edge_offload_research.device.conformance.judge import entry_name

    def matches(name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    for op in op_db:
        name = entry_name(op)
        if name not in EXCLUSIONS and matches(name):
            for dtype in DTYPES:
                if dtype in op.dtypes:
                    yield name, functools.partial(_draw_samples, op, dtype, limit)
    for name, make, shape in NETWORKS:
        if matches(name):
            yield name, functools.partial(_draw_network, make, shape)


def _draw_samples(op: Any, dtype: torch.dtype, limit: int) -> List[Run]:
    from edge_offload_research.device.conformance.judge import call_operator

    drawn = list(op.sample_inputs("cpu", dtype, requires_grad=False))[:limit]
    return [functools.partial(call_operator, op, sample) for sample in drawn]


def _draw_network(make: Callable[[str], nn.Module], shape: Tuple[int, ...]) -> List[Run]:
    return [lambda device: make(device).eval()(torch.rand(shape).to(device))]


class Fake:
    """Lists the operators that plain CUDA dispatches to, by fake tensors, which hold no data."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self._mode = FakeTensorMode

    def list_operators(self, run: Run) -> Dict[str, List[str]]:
        """Each operator that has a kernel for CUDA and none for a CPU, with those that it is a part of."""
        from torch.utils._python_dispatch import TorchDispatchMode

        has = torch._C._dispatch_has_kernel_for_dispatch_key
        names: Set[str] = set()

        class Note(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = func.name()
                if name.startswith(("aten::", "torchvision::")) and has(name, "CUDA") and not has(name, "CPU"):
                    names.add(func._schema.name)
                return func(*args, **(kwargs or {}))

        try:
            with self._mode(allow_non_fake_inputs=True), Note():  # type: ignore[no-untyped-call]
                run("cuda")
        except TooLong:
            raise
        except Exception:
            if not names:  # a fake kernel may ask the driver once it has been chosen
                raise
        return {name: sorted(self._parent_operators(run, name)) for name in sorted(names)}

    def _parent_operators(self, run: Run, name: str) -> Set[str]:
        """The operators that called ``name``, as the profiler saw them."""
        fake = self._mode(allow_non_fake_inputs=True)
        with torch.autograd.profiler.profile(use_kineto=False) as profile, contextlib.suppress(RuntimeError), fake:
            run("cuda")
        parents: Set[str] = set()
        for event in profile.function_events:
            above: List[str] = []
            parent = event.cpu_parent if event.name == name else None
            while parent is not None:
                above.append(parent.name)
                parent = parent.cpu_parent
            if not any(one.startswith("Python") for one in above):
                parents.update(above)
        return parents


class Recorded:
    """Lists the operators that the virtual device of this process records, as for a server with a GPU."""

    def __init__(self) -> None:
        from edge_offload.device.installation import current_installation

        device = current_installation()
        assert device is not None
        self._native, self._recorder = device.native, device.recorder
        for_gpu = getattr(self._native, "computed_by_gpu", None)
        if for_gpu is not None:
            for_gpu(True)
        self._names: Set[str] = set()
        flush = self._recorder.flush

        def note_fields(*fields: Any) -> Any:
            from edge_offload.replay.flushed import FlushedSegment

            flushed = FlushedSegment(*fields)
            if flushed.calls:
                calls = self._recorder.dispatcher.definitions.signatures.definition(flushed.segment).calls
                self._names.update(call.name.partition(".")[0] for call in calls)
            return flush(*fields)

        self._recorder.flush = note_fields

    def list_operators(self, run: Run) -> Dict[str, List[str]]:
        """Each operator that is recorded."""
        self._names.clear()
        try:
            run("cuda")
        finally:
            self._native.synchronize()
        return {name: [] for name in sorted(self._names)}


def main(argv: Optional[List[str]] = None) -> int:
    """Print a line for each entry and dtype."""
    parser = argparse.ArgumentParser(prog="edge_offload_benchmarks.dispatched", description=__doc__)
    parser.add_argument("--way", choices=("fake", "recorded"), required=True)
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--entries", nargs="+", default=["*"])
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    watch = Fake() if args.way == "fake" else Recorded()

    def alarm(*_: Any) -> None:
        raise TooLong(f"longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, alarm)
    for name, draw in list_runs(args.entries, args.limit):
        record: Dict[str, Any] = {"entry": name, "operators": {}, "samples": 0, "failed": ""}
        signal.alarm(SECONDS)
        try:
            for run in draw():
                try:
                    with torch.no_grad():
                        operators = watch.list_operators(run)
                except TooLong:
                    raise
                except Exception as error:
                    record["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
                    continue
                record["samples"] += 1
                for operator, parents in operators.items():
                    record["operators"][operator] = sorted({*record["operators"].get(operator, ()), *parents})
        except Exception as error:
            record["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        finally:
            signal.alarm(0)
        print(MARK + json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
