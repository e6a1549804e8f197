"""OpenVINO on the CPU."""

from __future__ import annotations

import io
from typing import Any, Dict, List, Sequence, Tuple

import torch

from edge_offload.errors import Unsupported
from edge_offload.execute.engines.base import CLOSE, REDUCED, Built
from edge_offload.execute.engines.export import NAMED, input_position


class OpenVino(Built):
    """Backend of OpenVINO on the CPU.

    Args:
        reduced: compute in bf16, where the processor can.
    """

    distributions: Tuple[str, ...] = ("openvino",)

    def __init__(self, reduced: bool = False) -> None:
        self.name = "openvino:bf16" if reduced else "openvino"
        self.precision = "bf16" if reduced else "fp32"
        self.accuracy = REDUCED if reduced else CLOSE

    def build(self, onnx: bytes, threads: int) -> bytes:
        """The compiled model, as OpenVINO exports it."""
        import openvino

        core = openvino.Core()
        if self.accuracy == REDUCED and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise Unsupported("this processor does not compute in bf16")
        stream = io.BytesIO()
        exported = core.compile_model(core.read_model(onnx, b""), "CPU", self._options(threads)).export_model()
        stream.write(exported if isinstance(exported, bytes) else exported.getvalue())
        return stream.getvalue()

    def load(self, built: bytes, threads: int) -> OpenVinoEngine:
        """A request on the compiled model."""
        return OpenVinoEngine(built, self._options(threads))

    def _options(self, threads: int) -> Dict[str, Any]:
        # the default precision is bf16 where the processor has it: maps of MoveNet were off by a third of their range
        precision = "bf16" if self.accuracy == REDUCED else "f32"
        return {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }


class OpenVinoEngine:
    """One compiled model with one request."""

    def __init__(self, built: bytes, options: Dict[str, Any]) -> None:
        import openvino

        compiled = openvino.Core().import_model(built, "CPU", options)
        self._request: Any = compiled.create_infer_request()
        # what only renames or casts an input to its own type shares its port
        names = [name for one in compiled.inputs for name in one.names if NAMED.fullmatch(name)]
        self._inputs = {name: input_position(name) for name in names}
        self._outputs = range(len(compiled.outputs))

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        self._request.infer({name: inputs[at].numpy() for name, at in self._inputs.items()})
        # the request writes its next outputs to the same memory
        outputs = [self._request.get_output_tensor(number).data for number in self._outputs]
        return [torch.from_numpy(one.copy()) for one in outputs]

    def close(self) -> None:
        self._request = None
