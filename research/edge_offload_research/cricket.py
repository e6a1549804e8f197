"""CUDA runtime calls of KAPAO under Cricket, as RRTO published them (RRTO for mobile edge computing, Tab. III).

The seconds that follow from them carry ``synthetic: true`` and are never shown as a measurement.
"""

from __future__ import annotations

from typing import Any, Dict

#: Calls of each inference of the loop.
LOOP_INFERENCE: Dict[str, int] = {
    "cudaGetDevice": 4735, "cudaGetLastError": 607, "cudaLaunchKernel": 522, "cudaMalloc": 0,
    "cudaStreamIsCapturing": 0, "cudaStreamSynchronize": 11, "cudaMemcpyHtoD": 3, "cudaMemcpyDtoH": 8,
    "cudaMemcpyDtoD": 9,
}  # fmt: skip

#: Calls that semi-RRTO answers from a cache.
CACHED_QUERIES = ("cudaGetDevice", "cudaGetLastError")
ROUND_TRIP_S = 2.6e-3


def make_record(round_trip_s: float = ROUND_TRIP_S) -> Dict[str, Any]:
    """Count one inference's calls: Cricket (every call), semi-RRTO (queries cached), RRTO (copies only)."""
    calls = sum(LOOP_INFERENCE.values())
    cached = calls - sum(LOOP_INFERENCE[name] for name in CACHED_QUERIES)
    copies = LOOP_INFERENCE["cudaMemcpyHtoD"] + LOOP_INFERENCE["cudaMemcpyDtoH"]
    return {
        "synthetic": True,
        "source": "RRTO (mobile edge computing), Tab. III and IV, KAPAO",
        "round_trip_s": round_trip_s,
        "rpcs": {"cricket": calls, "semi_rrto": cached, "rrto": copies},
        "communication_s": {
            "cricket": calls * round_trip_s,
            "semi_rrto": cached * round_trip_s,
            "rrto": copies * round_trip_s,
        },
    }
