"""Reading of ONNX files as data: bounded, with ONNX's own operators only, converted to static shapes.

Nothing of a file is executed, except its operators by an engine.
"""

from __future__ import annotations

import ast
import hashlib
import math
import pathlib
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload import places, requirements
from edge_offload.errors import BadInput

SUFFIX = ".onnx"
#: Limit of a file with its external weights. Protobuf's own is 2 GiB.
MAX_BYTES = 1 << 30
#: Side of a network's input that is not fixed in the file, pixels.
DEFAULT_SIDE = 640
#: Domains of operators that every engine has. Others need libraries, which a file could name.
DOMAINS = frozenset(("", "ai.onnx", "ai.onnx.ml"))
#: Supported inputs besides the image: its valid pixels, and the size to which boxes refer.
PIXEL_MASK, TARGET_SIZE = "pixel_mask", "orig_target_sizes"
#: ONNX's numbers of the types that an input may have.
_TYPES = {1: torch.float32, 2: torch.uint8, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16}


@dataclass(frozen=True)
class GraphInput:
    """An input of the graph.

    Attributes:
        name: in the graph.
        dtype: of its values; None: not supported.
        shape: 0 where it is not fixed.
    """

    name: str
    dtype: Any
    shape: Tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """Contents of an ONNX file.

    Attributes:
        name: of the file; ``path``: its full path.
        sha256: hex, of the file and of its external weights.
        model: onnx.ModelProto, weights included.
        metadata: of the exporter, by key.
        operators: types of all nodes.
        inputs: of the graph, without those that have values.
        outputs: their names.
    """

    name: str
    path: str
    sha256: str
    model: Any
    metadata: Mapping[str, str]
    operators: FrozenSet[str]
    inputs: Tuple[GraphInput, ...]
    outputs: Tuple[str, ...]


@dataclass(frozen=True)
class ImageInput:
    """A network's input for an image.

    Attributes:
        height, width: pixels.
        dtype: of its values.
        channels_last: [H, W, 3] instead of [3, H, W].
        batched: it has a batch dimension of 1.
        extra_inputs: values of the other inputs, in the graph's order.
    """

    height: int
    width: int
    dtype: torch.dtype
    channels_last: bool
    batched: bool
    extra_inputs: Tuple[torch.Tensor, ...] = field(default=())

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of the input."""
        sides = (self.height, self.width)
        return (1,) * self.batched + ((*sides, 3) if self.channels_last else (3, *sides))


def is_onnx(name: str) -> bool:
    """Return whether a model's name is that of an ONNX file."""
    return name.endswith(SUFFIX)


def checksum(path: str) -> str:
    """Return the hex sha256 of the file and of its external weights.

    Raises:
        BadInput: it cannot be read, or is no ONNX.
    """
    return _load_model(path)[1]


def read_graph(path: str, sha256: str = "") -> Graph:
    """Read an ONNX file with its weights.

    Args:
        path: of the file.
        sha256: expected :func:`checksum`; empty: any.

    Raises:
        BadInput: it cannot be read, has another checksum, is no ONNX, or has operators that are not ONNX's own.
    """
    model, digest = _load_model(path)
    name = pathlib.PurePath(path).name
    if sha256 and digest != sha256:
        cause = f"{path} is another file here: sha256 {digest[:12]}…, not {sha256[:12]}…"
        raise BadInput(cause, remedy="copy the robot's file to the server")
    functions = {function.domain for function in model.functions}
    nodes = list(_iter_nodes(model))
    strange = sorted({node.domain for node in nodes} - DOMAINS - functions)
    if strange:
        cause = f"{path} has operators of {', '.join(strange)[:100]}, which a library of its own would compute"
        raise BadInput(cause, remedy="export it with ONNX's own operators alone")
    values = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_parse_input(value) for value in model.graph.input if value.name not in values)
    metadata = {entry.key: entry.value[: 1 << 20] for entry in model.metadata_props}
    operators = frozenset(node.op_type for node in nodes)
    outputs = tuple(value.name for value in model.graph.output)
    return Graph(name, str(places.expand(path).resolve()), digest, model, metadata, operators, inputs, outputs)


def labels_of(graph: Graph) -> Tuple[str, ...]:
    """Parse the names of the classes as exporters write them (``names``: a dict or list in Python's notation).

    Raises:
        BadInput: they are malformed.
    """
    names = _read_literal(graph, "names")
    if names is None:
        return ()
    most = 10000
    if isinstance(names, dict) and all(isinstance(key, int) and 0 <= key < most for key in names):
        names = [names.get(number, str(number)) for number in range(max(names, default=-1) + 1)]
    if not isinstance(names, (list, tuple)) or len(names) > most:
        raise BadInput(f"{graph.name}: its names of classes are no list of at most {most}")
    return tuple(str(name)[:100] for name in names)


def keypoints_of(graph: Graph) -> Tuple[int, int]:
    """Parse the number of keypoints and of values of each, as exporters write it (``kpt_shape``); (0, 0): missing."""
    shape = _read_literal(graph, "kpt_shape")
    return _parse_pair(shape) or (0, 0)


def image_input(graph: Graph, size: str = "") -> ImageInput:
    """Find the input of ``graph`` for an image.

    Args:
        graph: of the file.
        size: pixels of a square input, or ``WIDTHxHEIGHT``, where the file does not fix it. By default that of the
            exporter (``imgsz``), else :data:`DEFAULT_SIDE`.

    Raises:
        BadInput: no such input, another size, or unsupported inputs.
    """
    images = [one for one in graph.inputs if _channels_last(one) is not None]
    strange = [one for one in graph.inputs if one not in images and one.name not in (PIXEL_MASK, TARGET_SIZE)]
    if len(images) != 1 or strange or images[0].dtype not in (torch.float32, torch.float16, torch.uint8):
        received = (
            ", ".join(f"{one.name} {_type_name(one.dtype)} {_format_shape(one.shape)}" for one in graph.inputs)
            or "nothing"
        )
        remedy = "export it with one image as input: float32, float16 or uint8 [1, 3, H, W]"
        raise BadInput(f"{graph.name} takes {received}", remedy)
    image, shape = images[0], images[0].shape
    batched, last = len(shape) == 4, bool(_channels_last(image))
    if batched and shape[0] > 1:
        raise BadInput(f"{graph.name} takes {shape[0]} images at once", remedy="export it with a batch of 1")
    height, width = shape[-3:-1] if last else shape[-2:]
    requested = _requested_size(graph, size)
    if size and any(fixed and fixed != side for fixed, side in zip((height, width), requested)):
        cause = f"{graph.name} takes images of {width}x{height} pixels, not of {requested[1]}x{requested[0]}"
        raise BadInput(cause, remedy="leave the size out, or export it with another")
    height, width = height or requested[0], width or requested[1]
    most = 4096
    if not 0 < max(height, width) <= most:
        raise BadInput(f"{graph.name} takes images of {width}x{height} pixels", f"sides are at most {most}")
    extra: List[torch.Tensor] = []
    for one in graph.inputs:
        if one.name == PIXEL_MASK:
            extra.append(torch.ones((1, height, width), dtype=one.dtype or torch.int64))
        elif one.name == TARGET_SIZE:
            extra.append(torch.tensor([[width, height]], dtype=one.dtype or torch.int64))
    return ImageInput(height, width, image.dtype, last, batched, tuple(extra))


def document_of(graph: Graph, image: ImageInput) -> bytes:
    """Serialise the graph for engines: inputs ``input0`` (the image) and so on, of fixed shapes.

    Raises:
        BadInput: it is too large.
    """
    import onnx

    inputs = sorted(graph.inputs, key=lambda one: _channels_last(one) is None)
    shapes = [image.shape, *(tuple(tensor.shape) for tensor in image.extra_inputs)]
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    nodes = [node for part in _iter_graphs(model.graph) for node in part.node]
    used = {name for node in nodes for name in (*node.input, *node.output)}
    used |= {tensor.name for tensor in model.graph.initializer}
    with_values = [value for value in model.graph.input if value.name in used - {one.name for one in inputs}]
    renamed: Dict[str, str] = {}
    made = []
    for number, (one, shape) in enumerate(zip(inputs, shapes)):
        name = f"input{number}"
        while name in used - {one.name}:
            name = f"input0{name[len('input') :]}"  # the same number
        renamed[one.name] = name
        kind = next(kind for kind, dtype in _TYPES.items() if dtype is one.dtype)
        made.append(onnx.helper.make_tensor_value_info(name, kind, shape))
    for node in nodes:
        for position, name in enumerate(node.input):
            node.input[position] = renamed.get(name, name)
    del model.graph.input[:]
    model.graph.input.extend([*made, *with_values])
    return bytes(model.SerializeToString())


def _load_model(path: str) -> Tuple[Any, str]:
    """Load the model with all its weights, and the checksum of its files."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        cause = f"{path} is read by the package onnx, which is not installed"
        raise BadInput(cause, remedy=requirements.install("engines")) from None
    place = places.expand(path)
    data = _read_bytes(place, path, MAX_BYTES)
    remedy = "export it anew"
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:
        raise BadInput(f"{path} is not an ONNX file, or a part of one", remedy) from None
    if not model.graph.node:
        raise BadInput(f"{path} is not an ONNX file, or an empty one", remedy)
    digest, room = hashlib.sha256(data), MAX_BYTES - len(data)
    tensors = [tensor for tensor in _iter_tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for name in sorted(
        {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    ):
        if name != pathlib.PurePath(name).name or name in ("", ".", ".."):
            raise BadInput(f"{path} has weights in {name[:100]!r}", remedy="they must lie in its own folder")
        weights = _read_bytes(place.parent / name, f"{path}: its weights, {name}", room)
        digest.update(name.encode() + b"\0" + weights)
        room -= len(weights)
    if tensors:
        try:
            onnx.load_external_data_for_model(model, str(place.parent))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise BadInput(f"{path}: its weights cannot be read: {str(error).splitlines()[0]}", remedy) from None
    return model, digest.hexdigest()


def _read_bytes(place: pathlib.Path, what: str, most: int) -> bytes:
    try:
        with place.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        where = "" if place.is_absolute() else f" (looked up in {pathlib.Path.cwd()})"
        raise BadInput(f"cannot read {what}: {error.strerror}{where}") from None
    if len(data) > most:
        raise BadInput(f"{what}: more than {MAX_BYTES >> 20} MB", remedy="export a smaller network")
    return data


def _iter_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those inside its nodes (branches, bodies of loops)."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _iter_graphs(inner)


def _iter_nodes(model: Any) -> Iterator[Any]:
    for part in (model.graph, *model.functions):
        for graph in _iter_graphs(part):
            yield from graph.node


def _iter_tensors(model: Any) -> Iterator[Any]:
    for graph in _iter_graphs(model.graph):
        yield from graph.initializer
    for node in _iter_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _parse_input(value: Any) -> GraphInput:
    kind = value.type.tensor_type
    shape = tuple(max(0, dim.dim_value) for dim in kind.shape.dim)
    return GraphInput(value.name, _TYPES.get(kind.elem_type), shape)


def _channels_last(one: GraphInput) -> Optional[bool]:
    """Return whether the colours are the last axis of an image's input; None: it is no image's input."""
    shape = one.shape
    if len(shape) not in (3, 4) or one.name in (PIXEL_MASK, TARGET_SIZE):
        return None
    if shape[-3] == 3:
        return False
    if shape[-1] == 3:
        return True
    return False if len(shape) == 4 and not shape[-3] else None


def _type_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2] if dtype is not None else "of another type"


def _format_shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(str(side or '?') for side in shape)}]"


def _requested_size(graph: Graph, size: str) -> Tuple[int, int]:
    """Return height and width."""
    if not size:
        return _parse_pair(_read_literal(graph, "imgsz")) or (DEFAULT_SIDE, DEFAULT_SIDE)
    parts = size.split("x")
    if len(parts) > 2 or not all(part.isdigit() and 0 < len(part) < 6 for part in parts):
        raise BadInput(f"{graph.name}: size {size!r}", remedy="give pixels such as 640, or 640x384")
    return int(parts[-1]), int(parts[0])


def _parse_pair(value: Any) -> Any:
    good = isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(one, int) for one in value)
    return (int(value[0]), int(value[1])) if good and min(value) > 0 and math.prod(value) < 1 << 30 else None


def _read_literal(graph: Graph, key: str) -> Any:
    text = graph.metadata.get(key, "")
    try:
        return ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadInput(f"{graph.name}: cannot read what its exporter wrote of {key}", remedy="export it anew") from None
