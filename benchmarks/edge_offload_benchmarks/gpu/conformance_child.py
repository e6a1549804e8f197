"""Runs samples of op_db on "cuda" (the GPU's own, or the virtual device's under ``edge-offload exec``) and saves them.

Usage: python -m edge_offload_benchmarks.gpu.conformance_child --out FILE --part K --parts N --runs R
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
import warnings
from typing import Any, Dict, List, Tuple

import torch

from edge_offload_benchmarks.gpu.networks import fix_numerics

warnings.filterwarnings("ignore")
fix_numerics()  # the import of op_db freezes these flags

from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402

from edge_offload_research.device.conformance.exclusions import EXCLUSIONS  # noqa: E402
from edge_offload_research.device.conformance.judge import call_operator, entry_name, set_seed  # noqa: E402

# torch searches the call stack for a unit test of its own at every draw of samples, some 10 ms
for _module in (common_utils, core):
    _module.extract_test_fn = lambda: None  # type: ignore[attr-defined]

SEED = 7
#: Seconds that a call may take.
CALL_S = 20.0
DTYPES = ("float32", "int64")


class TooLong(Exception):
    """A call took longer than it may."""


def value_of(value: Any) -> Tuple[Any, ...]:
    """A result as it is compared: ("t", type, shape, strides, host tensor), or ("v", text)."""
    if not isinstance(value, torch.Tensor):
        return ("v", repr(value))
    strides = tuple(value.stride()) if value.layout is torch.strided else ()
    host = value.detach().cpu()
    if host.layout is not torch.strided:
        host = host.to_dense()
    if host.is_complex():
        host = torch.view_as_real(host.resolve_conj())
    return ("t", str(host.dtype), tuple(host.shape), strides, host.contiguous())


def compute_outcome(op: Any, dtype: torch.dtype, run: int, device: str) -> List[Any]:
    """Results of an entry's first sample; an error is a tuple ("e", type, text)."""
    values: List[Any] = []
    signal.setitimer(signal.ITIMER_REAL, CALL_S)
    try:
        set_seed(run)
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 1):
            set_seed(SEED)
            try:
                values.append([value_of(one) for one in tree_flatten(call_operator(op, sample, device))[0]])
            except TooLong:
                raise
            except Exception as error:
                text = str(error).splitlines()
                values.append(("e", type(error).__name__, text[0][:200] if text else ""))
    except TooLong:
        values.append(("e", "TooLong", ""))
    except Exception as error:
        values.append(("e", f"samples {type(error).__name__}", str(error)[:100]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return values


def main() -> None:
    """Run a part of op_db; what is there is saved when the time is over, or at SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--entries", type=int, default=0, help="so many entries, spread over all (0: all)")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.ones(1).to(args.device).sum().item()  # a session or a context begins here, not within the first call
    ends = time.monotonic() + args.seconds
    outcomes: Dict[Any, Any] = {}

    def alarm(*_: Any) -> None:
        raise TooLong()

    def save_and_end(*_: Any) -> None:
        torch.save(outcomes, args.out)
        sys.exit(0)

    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGTERM, save_and_end)
    device: Any = getattr(sys.modules.get("edge_offload.device.installation"), "current_installation", lambda: None)()
    step = max(1, len(op_db) // args.entries) if args.entries else 1
    for op in op_db[::step][args.part :: args.parts]:
        if entry_name(op) in EXCLUSIONS:
            continue
        if time.monotonic() > ends or (device is not None and device.recorder.failed):
            break
        for name in DTYPES:
            if getattr(torch, name) in op.dtypes:
                for run in range(args.runs):
                    outcomes[entry_name(op), name, run] = compute_outcome(op, getattr(torch, name), run, args.device)
    torch.save(outcomes, args.out)
    print(f"{len(outcomes)} calls", flush=True)


if __name__ == "__main__":
    main()
