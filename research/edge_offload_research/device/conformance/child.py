"""The process that judges: told one entry per line on its standard input, answers one line of JSON on its output.

Runs under the launcher, so that it has the virtual device. ``list`` asks for the names of all entries.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from typing import Any, List, Optional

MARK = "conformance "


def main(argv: Optional[List[str]] = None) -> int:
    """Answer until the standard input ends, or the executor is gone (exit code 3)."""
    parser = argparse.ArgumentParser(prog="edge_offload_research.device.conformance.child", description=__doc__)
    parser.add_argument("--modes", required=True)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--layouts", default="sampled")
    parser.add_argument("--reference", default="cpu")
    parser.add_argument("--launcher", type=json.loads, default=[])
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from edge_offload.device.installation import current_installation
    from edge_offload.errors import Unsupported
    from edge_offload_research.device.conformance.judge import DTYPES, entry_name, find_entry, judge_entry
    from edge_offload_research.device.conformance.reference import CudaReference

    torch.set_num_threads(1)
    device = current_installation()
    reference: Optional[CudaReference] = None
    if args.reference == "cuda":
        try:
            reference = CudaReference(args.launcher)
        except Unsupported as error:
            _write_record({"problem": error.cause, "remedy": error.remedy})
            return 2
    for line in sys.stdin:
        name = line.strip()
        if name == "list":
            _write_record(
                {"entries": [entry_name(op) for op in op_db], "torch": torch.__version__, "dtypes": list(DTYPES)}
            )
            continue
        assert device is not None
        op = find_entry(op_db, name)
        assert op is not None
        _write_record(judge_entry(op, args.modes.split(","), args.limit, device, args.layouts.split(","), reference))
        if device.recorder.failed:
            return 3
    return 0


def _write_record(record: Any) -> None:
    print(MARK + json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
