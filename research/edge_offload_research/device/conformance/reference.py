"""What plain CUDA makes of samples: a process without the virtual device, and the judging process's end of it.

TF32 is off in it, and cuDNN's algorithms are those that give the same bits every time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch.utils._pytree import tree_flatten

from edge_offload.errors import DeviceLost, EdgeOffloadError, Unsupported
from edge_offload.execute import devices, heap
from edge_offload.execute.devices import gpu_failure
from edge_offload_research.device.conformance.judge import (
    SEED,
    Raised,
    call_operator,
    draw_samples,
    find_entry,
    set_seed,
)

MARK = "reference "


class CudaReference:
    """See :class:`~edge_offload_research.device.conformance.judge.Reference`. A process that ended is started again.

    Args:
        launcher: what stands in front of its command.

    Raises:
        Unsupported: torch finds no GPU there.
    """

    def __init__(self, launcher: Sequence[str] = ()) -> None:
        self._command = [*launcher, sys.executable, "-m", "edge_offload_research.device.conformance.reference"]
        self._process = self._start()

    def results(self, entry: str, dtype: str, count: int, limit: int, layout: str, samples: List[List[Any]]) -> Any:
        """See :class:`~edge_offload_research.device.conformance.judge.Reference`.

        Raises:
            EdgeOffloadError: it draws other samples, or it ended.
        """
        if self._process.poll() is not None:
            self._process = self._start()
        with tempfile.TemporaryDirectory(prefix="edge_offload.") as folder:
            path = pathlib.Path(folder) / "results.pt"
            request = {"entry": entry, "dtype": dtype, "count": count, "limit": limit, "layout": layout}
            answer = self._request(self._process, {**request, "path": str(path)})
            if answer is None or "problem" in answer:
                raise EdgeOffloadError(f"the reference has no result: {(answer or {}).get('problem', 'it ended')}")
            stored = torch.load(path, weights_only=True)
        if stored["digests"] != [[digest_of(sample) for sample in each] for each in samples]:
            raise EdgeOffloadError("the reference's process draws other samples than this one")
        return [[Raised(one["raised"]) if isinstance(one, dict) else one for one in each] for each in stored["results"]]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=heap.executor_environment(os.environ),
        )
        ready = self._request(process, None)
        if ready is None or "problem" in ready:
            process.wait()
            status = ready or {"problem": "its process does not start", "remedy": ""}
            raise Unsupported(f"no reference on cuda: {status['problem']}", remedy=status["remedy"])
        return process

    @staticmethod
    def _request(process: subprocess.Popen[str], question: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            if question is not None:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith(MARK):
                    answer: Dict[str, Any] = json.loads(line[len(MARK) :])
                    return answer
        return None


def main() -> int:
    """Answer a question a line until the standard input ends, or the GPU fails (exit code 3)."""
    warnings.filterwarnings("ignore")
    try:
        set_reference_flags(devices.pick_device("cuda"))
    except EdgeOffloadError as error:
        _write_answer({"problem": error.cause, "remedy": error.remedy})
        return 2
    from torch.testing._internal.common_methods_invocations import op_db

    _write_answer({"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            torch.save(results_of(find_entry(op_db, question["entry"]), question), question["path"])
        except Exception as error:
            _write_answer({"problem": f"{type(error).__name__}: {error}"[:300]})
            if isinstance(gpu_failure(error), DeviceLost):
                return 3
            continue
        _write_answer({"done": True})
    return 0


def set_reference_flags(device: torch.device) -> None:
    """The flags of a reference: float32 in full, and the same bits every time."""
    torch.set_num_threads(1)
    devices.fix_kernel_choice(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def results_of(op: Any, question: Dict[str, Any]) -> Dict[str, Any]:
    """``results``: by the number of the values and of the sample its leaves or an error; ``digests`` of the samples."""
    sets = draw_samples(op, question["dtype"], question["count"], question["limit"])
    results: List[List[Any]] = []
    for samples in sets:
        results.append([])
        for sample in samples:
            set_seed(SEED)
            try:
                leaves = tree_flatten(call_operator(op, sample, "cuda", question["layout"]))[0]
                results[-1].append([as_it_lies(one) if isinstance(one, torch.Tensor) else one for one in leaves])
            except Exception as error:
                if isinstance(gpu_failure(error), DeviceLost):
                    raise
                results[-1].append({"raised": Raised.of(error).text})
    return {"results": results, "digests": [[digest_of(sample) for sample in samples] for samples in sets]}


def as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host with the strides of ``tensor``, whatever gaps they leave."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.layout != torch.strided:
        return plain.cpu()
    raw = torch.empty(0, dtype=torch.uint8, device=plain.device).set_(plain.untyped_storage()).cpu()
    empty = torch.empty(0, dtype=plain.dtype)
    return empty.set_(raw.untyped_storage(), plain.storage_offset(), plain.size(), plain.stride())


def digest_of(sample: Any) -> str:
    """Return the digest of a sample's values, by which two processes check that they have drawn the same."""
    hasher = hashlib.sha256()
    for leaf in tree_flatten((sample.input, list(sample.args), dict(sample.kwargs)))[0]:
        if isinstance(leaf, torch.Tensor):
            hasher.update(repr((leaf.dtype, tuple(leaf.shape), leaf.layout)).encode())
            dense = (leaf if leaf.layout == torch.strided else leaf.to_dense()).detach().cpu()
            values = dense.resolve_conj().resolve_neg().contiguous().reshape(-1)
            hasher.update(values.view(torch.uint8).numpy().tobytes() if values.numel() else b"")
        else:
            plain = isinstance(leaf, (bool, int, float, complex, str, type(None), torch.dtype))
            hasher.update(repr(leaf if plain else type(leaf).__name__).encode())
    return hasher.hexdigest()


def _write_answer(answer: Dict[str, Any]) -> None:
    print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
