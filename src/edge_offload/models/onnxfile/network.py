"""A network from an ONNX file, which an engine computes where its input is, and torch never."""

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
from edge_offload.models.onnxfile.recognition import BYTE, IMAGENET, UNIT, Output

#: Mean and deviation of ImageNet's colours, of 1, red first.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class OnnxNetwork(nn.Module):
    """uint8 [3, H, W] RGB → the graph's outputs. Thread-safe.

    Its state is the checksum of the file: equal ones mean equal weights, and an equal graph.

    Args:
        graph: what the file holds.
        image: how it takes an image.

    Attributes:
        values: what the input's values are: ``unit``, ``imagenet`` or ``byte``.

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
        self._asked: Optional[Built] = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loaded: Optional[Tuple[Tuple[Built, str, int], Engine]] = None
        self._backends: Dict[str, Built] = {}

    def __getstate__(self) -> Any:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_loaded", "_backends")}

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._begin()

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """The outputs, on the image's device.

        Raises:
            BadInput: another size than the network's.
            Unsupported: no engine computes it, or this is a trace.
        """
        if type(image) is not torch.Tensor:
            raise Unsupported(f"{self.name} is computed by an engine, whole: torch cannot trace it")
        if tuple(image.shape) != (3, self.image.height, self.image.width):
            wanted = f"[3, {self.image.height}, {self.image.width}]"
            raise BadInput(f"{self.name} takes images {wanted}, not {list(image.shape)}")
        device = image.device.type
        with self._lock:
            backend = self.backend(device)
            inputs = [self._prepared(image), *(tensor.to(image.device) for tensor in self.image.beside)]
            moved = inputs if backend.device == device else [one.cpu() for one in inputs]
            found = self._engine(backend, device).run(moved)
        return tuple(one.to(image.device) for one in found)

    def backend(self, device: str) -> Built:
        """What computes it where the image is on ``device``.

        Raises:
            Unsupported: no engine is installed.
        """
        if device not in self._backends:
            asked = self._asked is not None and device == self._asked.device
            self._backends[device] = self._asked if asked and self._asked is not None else onnx_backend(device)
        return self._backends[device]

    def use(self, backend: Optional[Built]) -> None:
        """Have ``backend`` compute it on its device from now on; None: the first engine that is installed."""
        with self._lock:
            self._asked, self._loaded, self._backends = backend, None, {}

    def outputs(self) -> List[Output]:
        """What it gives for an image, by computing a grey one.

        Raises:
            BadInput: no engine can compute it.
        """
        grey = torch.full((3, self.image.height, self.image.width), 114, dtype=torch.uint8)
        with torch.inference_mode():
            try:
                found = self(grey)
            except (BadInput, Unsupported):
                raise
            except Exception as error:  # whatever an engine raises
                said = " ".join(str(error).split())[:300]
                raise BadInput(
                    f"{self.name} cannot be computed by {engine_facts(self.backend(CPU))}: {said}"
                ) from error
        shapes = [(tuple(one.shape), one.is_floating_point()) for one in found]
        return [Output(name, *shape) for name, shape in zip(self._names, shapes)]

    def _prepared(self, image: torch.Tensor) -> torch.Tensor:
        values = image
        if self.values != BYTE and self.image.dtype is not torch.uint8:
            values = image.float() / 255
            if self.values == IMAGENET:
                mean, deviation = (torch.tensor(one, device=image.device)[:, None, None] for one in (MEAN, DEVIATION))
                values = (values - mean) / deviation
        if self.image.channels_last:
            values = values.permute(1, 2, 0)
        return values.reshape(self.image.shape).to(self.image.dtype).contiguous()

    def _engine(self, backend: Built, device: str) -> Engine:
        """The engine for as many threads as torch has here; another is built where that has changed."""
        key = (backend, device, torch.get_num_threads())
        if self._loaded is None or self._loaded[0] != key:
            if self._loaded is not None:
                self._loaded[1].close()
            self._loaded = key, self._load(backend, key[2])
        return self._loaded[1]

    def _load(self, backend: Built, threads: int) -> Engine:
        if not backend.timed:
            return backend.load(backend.build(self._document, threads), threads)
        # kernels that are picked by timing: minutes, and other bits each time
        document = hashlib.sha256(self._document).hexdigest()
        facts_of = {"engine": str(engine_facts(backend)), "threads": threads, **machine_facts(), **backend.depends_on()}
        key = key_of({"document": document, **facts_of})
        kept = EngineCache().get_or_build(
            key, lambda: EngineEntry(backend.build(self._document, threads), document, True)
        )
        return backend.load(kept.built, threads)
