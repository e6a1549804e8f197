"""Small ONNX files with outputs of our choice, as exporters write them.

``onnx_exports.npz`` has what real exports of ultralytics 8.4 (random weights, 320x320, one random image) gave: of their
outputs the rows of a few places, in float16; and what the package's own post-processing made of exactly those rows
(confidence 0.25, overlap 0.7). ``metadata`` is what its exporter wrote into the files.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, Mapping, Sequence, Tuple

import numpy as np

RECORDED = np.load(pathlib.Path(__file__).with_name("onnx_exports.npz"))
METADATA: Dict[str, Dict[str, str]] = json.loads(RECORDED["metadata"].tobytes())


def places(*size: int) -> int:
    """How many places a network with strides of 8, 16 and 32 pixels has for an image of this size."""
    return sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in (8, 16, 32))


def padded(rows: np.ndarray, count: int) -> np.ndarray:
    """float32 [count, columns]: these rows, and places where nothing is."""
    table = np.zeros((count, rows.shape[1]), dtype=np.float32)
    table[: len(rows)] = rows
    return table


def write(
    path: pathlib.Path,
    outputs: Mapping[str, np.ndarray],
    image: Sequence[Any] = (1, 3, 320, 320),
    kind: str = "FLOAT",
    metadata: Mapping[str, str] = {},
    others: Mapping[str, Tuple[str, Sequence[Any]]] = {},
    operators: Sequence[str] = (),
    domain: str = "",
) -> str:
    """A file whose network gives ``outputs`` for any image, and uses each input; returns its path.

    Args:
        path: of the file.
        outputs: by name.
        image: shape of the input; text: not fixed.
        kind: ONNX's name of its type.
        metadata: what the exporter writes.
        others: further inputs: type and shape.
        operators: further operators, on a number.
        domain: of one operator more.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    inputs = {"images": (kind, image), **others}
    nodes, terms = [], []
    for name in inputs:
        nodes += [
            helper.make_node("Cast", [name], [f"{name}_real"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", [f"{name}_real"], [f"{name}_mean"], keepdims=0),
        ]
        terms.append(f"{name}_mean")
    nodes.append(helper.make_node("Sum", terms, ["sum"]))
    for operator in operators:
        extra = ["sum", *(["grid"] if operator == "GridSample" else [])]
        nodes.append(helper.make_node(operator, extra, [f"out_{operator}"]))
    if domain:
        nodes.append(helper.make_node("Special", ["sum"], ["special"], domain=domain))
    values = [numpy_helper.from_array(np.float32(0), "zero")]
    nodes.append(helper.make_node("Mul", ["sum", "zero"], ["nothing"]))
    for name, array in outputs.items():
        values.append(numpy_helper.from_array(np.asarray(array), f"{name}_value"))
        to = helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)
        nodes += [
            helper.make_node("Cast", ["nothing"], [f"{name}_nothing"], to=to),
            helper.make_node("Add", [f"{name}_value", f"{name}_nothing"], [name]),
        ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(name, getattr(TensorProto, dtype), shape)
         for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), None)
         for name, array in outputs.items()],
        values,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(model, str(path))
    return str(path)


def of_yolov8(path: pathlib.Path, rows: np.ndarray, metadata: Mapping[str, str] = {}, **more: np.ndarray) -> str:
    """A file as YOLOv8 and later give it, [1, columns, places], of these rows; 320x320."""
    table = padded(rows, places(320, 320)).T[None]
    return write(path, {"output0": np.ascontiguousarray(table), **more}, metadata=metadata)
