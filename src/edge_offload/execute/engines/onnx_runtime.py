"""ONNX Runtime on the CPU."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.execute.engines.base import CLOSE
from edge_offload.execute.engines.export import position


class OnnxRuntime:
    """See :class:`~edge_offload.execute.engines.base.Backend`."""

    name: str = "onnxruntime"
    precision: str = "fp32"
    accuracy: str = CLOSE
    distributions: Tuple[str, ...] = ("onnxruntime", "onnxruntime-gpu")

    def build(self, onnx: bytes, threads: int) -> bytes:
        """The ONNX model as it is: making a session of it takes milliseconds."""
        return onnx

    def load(self, built: bytes, threads: int) -> OnnxRuntimeEngine:
        """A session on the CPU."""
        return OnnxRuntimeEngine(built, threads)


class OnnxRuntimeEngine:
    """One session; its threads sleep between frames."""

    def __init__(self, onnx: bytes, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # waiting threads would take a core each between two frames
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        # an input that the network does not use is no input of the graph
        self._inputs = {one.name: position(one.name) for one in self._session.get_inputs()}

    def run(self, inputs: Sequence[Array]) -> List[Array]:
        """See :class:`~edge_offload.execute.engines.base.Engine`."""
        found: List[Array] = self._session.run(None, {name: inputs[at] for name, at in self._inputs.items()})
        return found

    def close(self) -> None:
        """See :class:`~edge_offload.execute.engines.base.Engine`."""
        self._session = None
