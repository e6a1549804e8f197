"""A synthetic log of CUDA runtime calls with the composition that RRTO published for KAPAO under Cricket.

The counts per call are the published ones; everything else (the order, the addresses) is invented.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from edge_offload_research.call_log import Call, Category
from edge_offload_research.cricket import LOOP_INFERENCE

#: Calls per stage: while loading the model, and in the first inference.
LOADING: Dict[str, int] = {
    "cudaGetDevice": 46858, "cudaGetLastError": 4244, "cudaLaunchKernel": 2752, "cudaMalloc": 65,
    "cudaStreamIsCapturing": 68, "cudaStreamSynchronize": 1118, "cudaMemcpyHtoD": 1117, "cudaMemcpyDtoH": 1,
    "cudaMemcpyDtoD": 701,
}  # fmt: skip
FIRST_INFERENCE: Dict[str, int] = {
    "cudaGetDevice": 4789, "cudaGetLastError": 616, "cudaLaunchKernel": 523, "cudaMalloc": 4,
    "cudaStreamIsCapturing": 4, "cudaStreamSynchronize": 16, "cudaMemcpyHtoD": 7, "cudaMemcpyDtoH": 9,
    "cudaMemcpyDtoD": 9,
}  # fmt: skip

_CATEGORY = {
    "cudaGetDevice": Category.QUERY, "cudaGetLastError": Category.QUERY, "cudaStreamIsCapturing": Category.QUERY,
    "cudaLaunchKernel": Category.LAUNCH, "cudaMalloc": Category.ALLOC, "cudaStreamSynchronize": Category.SYNC,
    "cudaMemcpyHtoD": Category.HTOD, "cudaMemcpyDtoH": Category.DTOH, "cudaMemcpyDtoD": Category.DTOD,
}  # fmt: skip
_WEIGHTS, _ACTIVATIONS, _OUTPUTS = 1_000_000, 2_000_000, 3_000_000


def synthetic_log(inferences: int) -> List[Call]:
    """Loading, a first inference, and ``inferences`` of the loop, with the published number of calls of each kind."""
    log = _stage(LOADING, "load")
    log += _stage(FIRST_INFERENCE, "first")
    loop = _stage(LOOP_INFERENCE, "loop")
    for _ in range(inferences):
        log += loop
    return log


def _stage(counts: Dict[str, int], stage: str) -> List[Call]:
    """The calls of one stage: uploads first, copies back last, queries spread evenly between the others."""
    work: List[Call] = []
    uploads, downloads = counts["cudaMemcpyHtoD"], counts["cudaMemcpyDtoH"]
    address = _WEIGHTS if stage == "load" else _ACTIVATIONS
    for i in range(uploads):
        work += [_call("cudaMemcpyHtoD", stage, i, writes=(address + i,)), _call("cudaStreamSynchronize", stage, i)]
    compute = [("cudaLaunchKernel", i) for i in range(counts["cudaLaunchKernel"])]
    compute += [(name, i) for name in ("cudaMemcpyDtoD", "cudaMalloc") for i in range(counts[name])]
    compute.sort(key=lambda item: (item[1] / max(1, counts[item[0]]), item[0]))
    previous = address
    for i, (name, number) in enumerate(compute):
        if name == "cudaMalloc":
            work.append(_call(name, stage, number))
            continue
        written = _OUTPUTS + i
        reads = (previous, _WEIGHTS + i % LOADING["cudaMemcpyHtoD"])
        work.append(_call(name, stage, number, reads=reads, writes=(written,)))
        previous = written
    synchronised = uploads
    for i in range(downloads):
        work.append(_call("cudaMemcpyDtoH", stage, i, reads=(previous - downloads + 1 + i,)))
        if synchronised < counts["cudaStreamSynchronize"]:
            work.append(_call("cudaStreamSynchronize", stage, synchronised))
            synchronised += 1
    while synchronised < counts["cudaStreamSynchronize"]:
        work.append(_call("cudaStreamSynchronize", stage, synchronised))
        synchronised += 1
    queries = [name for name in _CATEGORY if _CATEGORY[name] is Category.QUERY for _ in range(counts[name])]
    queries.sort(key=lambda name: name)
    return _interleave(work, [_call(name, stage, 0) for name in queries])


def _call(name: str, stage: str, number: int, reads: Tuple[int, ...] = (), writes: Tuple[int, ...] = ()) -> Call:
    return Call(_CATEGORY[name], name, (stage, number), reads, writes)


def _interleave(work: List[Call], queries: List[Call]) -> List[Call]:
    """Spread ``queries`` evenly before the entries of ``work``; the last entry stays the last."""
    merged: List[Call] = []
    used = 0
    for i, call in enumerate(work):
        due = (i + 1) * len(queries) // len(work)
        if _CATEGORY[call.function] is not Category.SYNC:
            merged += queries[used:due]
            used = due
        merged.append(call)
    return [*queries[used:], *merged]
