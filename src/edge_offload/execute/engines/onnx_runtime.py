"""ONNX Runtime: on the CPU, and by its providers for NVIDIA's GPUs."""

from __future__ import annotations

import importlib.util
import pathlib
import tempfile
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

import torch

from edge_offload.errors import Unsupported
from edge_offload.execute.engines import shared_library
from edge_offload.execute.engines.base import CLOSE, CPU, CUDA, NO_GPU, REDUCED, Built, driver_release
from edge_offload.execute.engines.export import input_position

_ON_CPU = "CPUExecutionProvider"
#: By the name of the engine: ONNX Runtime's name of the provider, and its options.
_PROVIDERS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "onnxruntime": (_ON_CPU, {}),
    "onnxruntime:cuda": ("CUDAExecutionProvider", {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}),
    # it has no option that turns TF32 off
    "onnxruntime:tensorrt": ("TensorrtExecutionProvider", {}),
}
#: By the name of the engine: the libraries of its provider, in the order in which they are loaded.
_LIBRARIES = {"onnxruntime:cuda": ("cuda",), "onnxruntime:tensorrt": ("cuda", "tensorrt")}


class OnnxRuntime(Built):
    """Backend of ONNX Runtime.

    Args:
        name: one of the engines that ONNX Runtime has.
    """

    distributions: Tuple[str, ...] = ("onnxruntime", "onnxruntime-gpu")

    def __init__(self, name: str = "onnxruntime") -> None:
        self.name = name
        self._provider, self._options = _PROVIDERS[name]
        if self._provider == _ON_CPU:
            return
        self.device, self.distributions = CUDA, ("onnxruntime-gpu",)
        self.timed = name == "onnxruntime:tensorrt"
        self.precision, self.accuracy = ("tf32", REDUCED) if self.timed else ("fp32", CLOSE)

    def missing_parts(self) -> str:
        if self.device == CPU:
            return ""
        if not torch.cuda.is_available():
            return NO_GPU
        for provider in _LIBRARIES[self.name]:
            path = _library_folder() / f"libonnxruntime_providers_{provider}.so"
            if not path.is_file():
                return f"onnxruntime-gpu, with {path.name}"
            library = shared_library.missing_library(path)
            if library:
                return f"{library}, for {path.name}"
        return ""

    def depends_on(self) -> Dict[str, str]:
        if self.device == CPU:
            return {}
        gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
        return {"driver": driver_release(), "gpu": gpu}

    def build(self, onnx: bytes, threads: int) -> bytes:
        """Builds the model as ONNX Runtime optimises it for this CPU, or, with TensorRT, its plan inside ONNX."""
        if self.device == CPU:
            with tempfile.TemporaryDirectory(prefix="edge_offload.") as folder:
                path = pathlib.Path(folder) / "optimised.onnx"
                _make_session(onnx, threads, self._provider, self._options, optimised=str(path))
                return path.read_bytes()
        if not self.timed:
            return onnx
        # ONNX Runtime's own cache of engines has taken one network's for that of another with the same structure
        with tempfile.TemporaryDirectory(prefix="edge_offload.") as folder:
            path = pathlib.Path(folder) / "with_plan.onnx"
            plan_options = {"ep.context_enable": "1", "ep.context_embed_mode": "1", "ep.context_file_path": str(path)}
            _make_session(onnx, threads, self._provider, self._options, plan_options)
            if not path.is_file():
                raise Unsupported("ONNX Runtime has written no plan", remedy="pip install 'onnxruntime-gpu>=1.20'")
            return path.read_bytes()

    def load(self, built: bytes, threads: int) -> OnnxRuntimeEngine:
        """A session of the provider."""
        return OnnxRuntimeEngine(
            _make_session(built, threads, self._provider, self._options, as_it_is=self.device == CPU)
        )


class OnnxRuntimeEngine:
    """One session; its threads sleep between frames."""

    def __init__(self, session: Any) -> None:
        self._session = session
        # an input that the network does not use is no input of the graph
        self._inputs = {one.name: input_position(one.name) for one in session.get_inputs()}

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        outputs = self._session.run(None, {name: inputs[at].cpu().numpy() for name, at in self._inputs.items()})
        return [torch.from_numpy(one).to(inputs[0].device) for one in outputs]

    def close(self) -> None:
        self._session = None


def _library_folder() -> pathlib.Path:
    """Folder of ONNX Runtime's libraries; nothing is imported."""
    spec = importlib.util.find_spec("onnxruntime")
    return pathlib.Path(spec.origin).parent / "capi" if spec is not None and spec.origin else pathlib.Path()


def _make_session(
    onnx: bytes,
    threads: int,
    provider: str,
    options: Mapping[str, Any],
    more: Mapping[str, str] = {},
    optimised: str = "",
    as_it_is: bool = False,
) -> Any:
    """A session of ``provider``; the model that it computes is written to ``optimised``, or is ``onnx`` as it is.

    Raises:
        Unsupported: ONNX Runtime took another one without a word, as it does where a library is missing.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    if optimised:
        settings.optimized_model_filepath = optimised
    if as_it_is:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # waiting threads would take a core each between two frames
    for name, value in {"session.intra_op.allow_spinning": "0", **more}.items():
        settings.add_session_config_entry(name, value)
    providers: List[Union[str, Tuple[str, Mapping[str, Any]]]] = [(provider, options)]
    if provider != _ON_CPU:
        if provider not in onnxruntime.get_available_providers():
            raise Unsupported(f"this ONNX Runtime has no {provider}", remedy="pip install onnxruntime-gpu")
        providers.append(_ON_CPU)
    session = onnxruntime.InferenceSession(onnx, settings, providers=providers)
    if session.get_providers()[0] != provider:
        raise Unsupported(f"ONNX Runtime cannot use {provider} here, and would compute on the CPU")
    return session
