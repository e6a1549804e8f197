"""Network of an ONNX file, which an engine computes on its input's device."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.engines.base import CPU, Built, Engine, engine_facts, machine_facts
from edge_offload.execute.engines.cache import EngineCache, EngineEntry, key_of
from edge_offload.execute.engines.table import onnx_backend
from edge_offload.models.onnxfile.reading import Graph, ImageInput, document_of
from edge_offload.models.onnxfile.recognition import BYTE, IMAGENET, UNIT, GraphOutput

#: Mean and deviation of ImageNet's colours, of 1, red first.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class OnnxNetwork(nn.Module):
    """uint8 [3, H, W] RGB → the graph's outputs. Thread-safe.

    Its state is the checksum of the file: equal ones mean equal weights and graphs.

    Args:
        graph: contents of the file.
        image: its input for an image.

    Attributes:
        values: range of the input's values: ``unit``, ``imagenet`` or ``byte``.

    Raises:
        BadInput: it is too large.
    """

    checksum: torch.Tensor

    def __init__(self, graph: Graph, image: ImageInput) -> None:
        super().__init__()
        self.name, self.path, self.image = graph.name, graph.path, image
        self.values = UNIT
        self._names = graph.outputs
        self._document = document_of(graph, image)
        self.register_buffer("checksum", torch.tensor(list(bytes.fromhex(graph.sha256)), dtype=torch.uint8))
        self._chosen: Optional[Built] = None
        self._reset_engines()

    def _reset_engines(self) -> None:
        self._lock = threading.Lock()
        self._loaded: Optional[Tuple[Tuple[Built, str, int], Engine]] = None
        self._backends: Dict[str, Built] = {}

    def __getstate__(self) -> Any:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_loaded", "_backends")}

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._reset_engines()

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Compute the outputs, on the image's device.

        Raises:
            BadInput: another size than the network's.
            Unsupported: no engine is installed, or torch is tracing.
        """
        if type(image) is not torch.Tensor:
            raise Unsupported(f"{self.name} is computed by an engine, whole: torch cannot trace it")
        if tuple(image.shape) != (3, self.image.height, self.image.width):
            expected = f"[3, {self.image.height}, {self.image.width}]"
            raise BadInput(f"{self.name} takes images {expected}, not {list(image.shape)}")
        device = image.device.type
        with self._lock:
            backend = self.backend(device)
            inputs = [self._normalise_image(image), *(tensor.to(image.device) for tensor in self.image.extra_inputs)]
            moved = inputs if backend.device == device else [one.cpu() for one in inputs]
            outputs = self._current_engine(backend, device).run(moved)
        return tuple(one.to(image.device) for one in outputs)

    def backend(self, device: str) -> Built:
        """Return the engine for images on ``device``.

        Raises:
            Unsupported: no engine is installed.
        """
        if device not in self._backends:
            is_chosen = self._chosen is not None and device == self._chosen.device
            self._backends[device] = self._chosen if is_chosen and self._chosen is not None else onnx_backend(device)
        return self._backends[device]

    def use(self, backend: Optional[Built]) -> None:
        """Set the engine of ``backend``'s device; None: the first engine that is installed."""
        with self._lock:
            self._chosen, self._loaded, self._backends = backend, None, {}

    def probe_outputs(self) -> List[GraphOutput]:
        """Compute a grey image to learn names, shapes and kinds of the outputs.

        Raises:
            BadInput: no engine can compute it.
        """
        grey = torch.full((3, self.image.height, self.image.width), 114, dtype=torch.uint8)
        with torch.inference_mode():
            try:
                outputs = self(grey)
            except (BadInput, Unsupported):
                raise
            except Exception as error:  # engines may raise anything
                reason = " ".join(str(error).split())[:300]
                raise BadInput(
                    f"{self.name} cannot be computed by {engine_facts(self.backend(CPU))}: {reason}"
                ) from error
        shapes = [(tuple(one.shape), one.is_floating_point()) for one in outputs]
        return [GraphOutput(name, *shape) for name, shape in zip(self._names, shapes)]

    def _normalise_image(self, image: torch.Tensor) -> torch.Tensor:
        values = image
        if self.values != BYTE and self.image.dtype is not torch.uint8:
            values = image.float() / 255
            if self.values == IMAGENET:
                mean, deviation = (torch.tensor(one, device=image.device)[:, None, None] for one in (MEAN, DEVIATION))
                values = (values - mean) / deviation
        if self.image.channels_last:
            values = values.permute(1, 2, 0)
        return values.reshape(self.image.shape).to(self.image.dtype).contiguous()

    def _current_engine(self, backend: Built, device: str) -> Engine:
        """Return the engine for torch's number of threads; another is built when that has changed."""
        key = (backend, device, torch.get_num_threads())
        if self._loaded is None or self._loaded[0] != key:
            if self._loaded is not None:
                self._loaded[1].close()
            self._loaded = key, self._load_engine(backend, key[2])
        return self._loaded[1]

    def _load_engine(self, backend: Built, threads: int) -> Engine:
        if not backend.timed:
            return backend.load(backend.build(self._document, threads), threads)
        # such an engine selects kernels by timing, which takes minutes and may change the results' last bits
        document = hashlib.sha256(self._document).hexdigest()
        facts_of = {"engine": str(engine_facts(backend)), "threads": threads, **machine_facts(), **backend.depends_on()}
        key = key_of({"document": document, **facts_of})
        entry = EngineCache().get_or_build(
            key, lambda: EngineEntry(backend.build(self._document, threads), document, True)
        )
        return backend.load(entry.built, threads)
