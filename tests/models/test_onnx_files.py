"""Networks from ONNX files: results are those of the packages that export them, and what does not fit is told."""

from __future__ import annotations

import copy
import pathlib
import pickle
import shutil
from typing import Any, Dict

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

pytest.importorskip("onnx", reason="files are made by the package onnx: pip install 'edge_offload[engines]'")
pytest.importorskip("onnxruntime", reason="an engine computes them: pip install 'edge_offload[engines]'")

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.execute.module import ModuleExecutor
from edge_offload.models import registry
from edge_offload.models.detections import Detections
from edge_offload.models.detector import build_detector
from edge_offload.models.onnxfile import reading
from edge_offload.models.people import People
from tests.models.onnx_files import METADATA, RECORDED, of_yolov8, padded, places, write

GREY = np.full((320, 320, 3), 114, dtype=np.uint8)


def seen(name: str, image: np.ndarray = GREY, **options: Any) -> Detections:
    made = build_detector(name, options=options)
    inputs, placement = made.prepare(image)
    with torch.inference_mode():
        return made.interpret(ModuleExecutor(made.module).run_module([inputs]).outputs, placement)


def same(detections: Detections, rows: np.ndarray, size: float = 320.0) -> None:
    """``rows``: corners, score, class."""
    assert len(detections) == len(rows)
    assert detections.classes.tolist() == rows[:, 5].astype(int).tolist()
    assert_allclose(detections.scores, rows[:, 4], rtol=1e-6)
    assert_allclose(detections.boxes, rows[:, :4].clip(0, size), atol=1e-4)


# -- results of real exports, recorded


@pytest.mark.parametrize("export", ["v5u", "v11"])
def test_boxes_of_yolo_are_those_of_its_package(export: str, tmp_path: pathlib.Path) -> None:
    name = of_yolov8(tmp_path / "net.onnx", RECORDED[f"{export}.table"], METADATA[export])
    same(seen(name), RECORDED[f"{export}.rows"])


@pytest.mark.parametrize(("export", "decoder"), [("v26e2e", "end2end"), ("rtdetr", "rtdetr")])
def test_tables_of_six_columns_are_distinguished_by_what_the_exporter_wrote(
    export: str, decoder: str, tmp_path: pathlib.Path
) -> None:
    table = RECORDED[f"{export}.table"][None]
    name = write(tmp_path / "net.onnx", {"output0": table}, metadata=METADATA[export])
    assert f"decoder {decoder}" in build_detector(name).module.describe()  # type: ignore[operator]
    same(seen(name), RECORDED[f"{export}.rows"])
    with pytest.raises(BadInput, match="no decoder is known"):
        build_detector(write(tmp_path / "bare.onnx", {"output0": table}))


@pytest.mark.parametrize("columns", [slice(None), slice(0, 5)], ids=["everywhere", "in some places"])
def test_a_network_that_computes_nan_is_not_one_that_sees_nothing(columns: slice, tmp_path: pathlib.Path) -> None:
    """Half precision overflows in many networks, and every comparison with NaN is false."""
    table = RECORDED["v11.table"].astype(np.float32)
    table[4:, columns] = np.nan
    rows = RECORDED["v26e2e.table"].astype(np.float32)
    rows[:, 4] = np.nan
    maps = np.full((1, 3, 8, 8), np.nan, dtype=np.float32)
    for name in (
        of_yolov8(tmp_path / "yolo.onnx", table, METADATA["v11"]),
        write(tmp_path / "end2end.onnx", {"output0": rows[None]}, metadata=METADATA["v26e2e"]),
        write(tmp_path / "map.onnx", {"output0": maps}, (1, 3, 8, 8)),
    ):
        with pytest.raises(BadInput, match=r"NaN.*half precision"):
            seen(name)


def test_people_of_a_pose_network_have_its_keypoints(tmp_path: pathlib.Path) -> None:
    name = of_yolov8(tmp_path / "pose.onnx", RECORDED["v11pose.table"], METADATA["v11pose"])
    same(seen(name), RECORDED["v11pose.rows"])
    estimator = registry.build_estimator(name)
    people = estimator.infer(GREY)
    assert isinstance(people, People)
    expected = RECORDED["v11pose.keypoints"].astype(np.float32)
    assert_allclose(people.keypoints[..., 2], expected[..., 2], atol=1e-3)
    assert_allclose(people.keypoints[..., :2], expected[..., :2].clip(0, 320), atol=0.3)


def test_masks_are_those_of_the_package_pixel_by_pixel(tmp_path: pathlib.Path) -> None:
    prototypes = RECORDED["v11seg.prototypes"].astype(np.float32)[None]
    name = of_yolov8(tmp_path / "seg.onnx", RECORDED["v11seg.table"], METADATA["v11seg"], output1=prototypes)
    detections = seen(name)
    assert detections.mask is not None
    visible = RECORDED["v11seg.pixels"] > 0
    same(detections, RECORDED["v11seg.rows"][visible])
    assert (detections.mask != RECORDED["v11seg.mask"]).sum() <= 2  # a sum of products that is 0 but for its rounding
    assert seen(name, np.zeros((160, 320, 3), np.uint8)).mask.shape == (160, 320)  # type: ignore[union-attr]


@pytest.mark.slow
def test_an_exported_file_is_decoded_as_its_package_does(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    package = pytest.importorskip("ultralytics", reason="ultralytics is not installed: recorded results are compared")
    monkeypatch.chdir(tmp_path)
    network = package.YOLO("yolov8n.yaml")
    torch.nn.init.normal_(network.model.model[-1].cv3[0][-1].weight, std=0.3)
    name = network.export(format="onnx", imgsz=320, verbose=False, simplify=False)
    image = np.random.default_rng(0).integers(0, 255, (240, 320, 3), dtype=np.uint8)
    rows = package.YOLO(name).predict(image, imgsz=320, conf=0.05, iou=0.7, verbose=False)[0].boxes.data.numpy()
    same(seen(name, image, score=0.05), rows)


# -- other formats, by their definition


def best_first(rows: np.ndarray) -> np.ndarray:
    return rows[np.argsort(-rows[:, 4], kind="stable")]


def test_yolov5_has_an_objectness_and_a_separate_overlap(tmp_path: pathlib.Path) -> None:
    rows = np.zeros((4, 5 + 3), np.float32)
    rows[:, :4] = [[100, 100, 40, 40], [110, 100, 40, 40], [100, 100, 40, 40], [200, 200, 20, 60]]
    rows[:, 4] = [0.9, 0.8, 0.9, 0.5]
    rows[[0, 1, 2, 3], [5, 5, 6, 7]] = [0.9, 0.9, 0.5, 0.4]  # the second overlaps the first by 0.6
    table = padded(rows, 3 * places(320, 320))[None]
    detections = seen(write(tmp_path / "net.onnx", {"output0": table}))
    assert detections.classes.tolist() == [0, 1]  # the last one scores 0.2
    assert detections.scores.tolist() == pytest.approx([0.81, 0.45])
    assert detections.boxes.tolist() == [[80, 80, 120, 120]] * 2
    assert len(seen(write(tmp_path / "net.onnx", {"output0": table}), iou=0.7, score=0.1)) == 4


def shares(corners: np.ndarray, height: int, width: int) -> np.ndarray:
    """Centre and size as shares of the input."""
    x1, y1, x2, y2 = corners.T / np.array([[width], [height], [width], [height]])
    return np.stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1], 1).astype(np.float32)


CORNERS = np.array([[8, 8, 40, 56], [64, 32, 96, 64], [100, 4, 120, 90]], dtype=np.float64)


def test_detr_and_rtdetr_are_distinguished_by_their_operators(tmp_path: pathlib.Path) -> None:
    logits = np.array([[[2.0, -1, 1], [0, 3, 1], [0, 0, 4]]], np.float32)
    outputs = {
        "logits": logits,
        "pred_boxes": shares(CORNERS, 96, 128)[None],
        "hidden": np.zeros((1, 3, 8), np.float32),
    }
    name = write(tmp_path / "detr.onnx", outputs, (1, 3, 96, 128))
    image = np.zeros((96, 128, 3), np.uint8)
    detections = seen(name, image)
    softmax = np.exp(logits[0]) / np.exp(logits[0]).sum(-1, keepdims=True)
    assert detections.classes.tolist() == [1, 0]  # the third is nothing
    assert_allclose(detections.scores, [softmax[1, 1], softmax[0, 0]], rtol=1e-5)
    assert_allclose(detections.boxes, CORNERS[[1, 0]], atol=1e-4)
    sigmoids = 1 / (1 + np.exp(-logits[0]))
    detections = seen(name, image, decoder="rtdetr")
    order = np.argsort(-sigmoids.ravel(), kind="stable")[:3]
    assert_allclose(detections.scores, sigmoids.ravel()[order], rtol=1e-5)
    assert detections.classes.tolist() == (order % 3).tolist()
    with pytest.raises(BadInput, match=r"logits \[1, 3, 3\].*decoder: yolov5.*detr"):
        build_detector(write(tmp_path / "other.onnx", outputs, (1, 3, 96, 128), operators=["Log"]))


@pytest.mark.parametrize("kind", ["torchvision", "tensorflow", "shares"])
def test_boxes_scores_and_classes_are_taken_as_they_are_written(kind: str, tmp_path: pathlib.Path) -> None:
    scores, classes = np.array([0.1, 0.9, 0.6], np.float32), np.array([3, 1, 2])
    corners = CORNERS.astype(np.float32)
    boxes = corners / np.array([128, 96, 128, 96], np.float32)
    outputs: Dict[str, Dict[str, np.ndarray]] = {
        "torchvision": {"boxes": corners, "labels": classes, "scores": scores},
        "shares": {"bboxes": boxes[None], "labels": classes[None], "scores": scores[None]},
        "tensorflow": {
            "detection_boxes": boxes[None][..., [1, 0, 3, 2]], "detection_classes": classes[None].astype(np.float32),
            "detection_scores": scores[None], "num_detections": np.array([3], np.float32),
        },
    }  # fmt: skip
    name = write(tmp_path / "ssd.onnx", outputs[kind], (1, 96, 128, 3) if kind == "tensorflow" else (1, 3, 96, 128),
                 "UINT8" if kind == "tensorflow" else "FLOAT")  # fmt: skip
    detections = seen(name, np.zeros((192, 256, 3), np.uint8))
    assert detections.scores.tolist() == pytest.approx([0.9, 0.6])
    assert detections.classes.tolist() == ([0, 1] if kind == "tensorflow" else [1, 2])
    assert_allclose(detections.boxes, 2 * CORNERS[[1, 2]], atol=1e-3)


def test_a_segmentation_map_is_a_mask_of_classes(tmp_path: pathlib.Path) -> None:
    classes = np.add.outer(np.arange(8) // 3, np.arange(8) // 3) % 3
    scores = np.eye(3, dtype=np.float32)[classes].transpose(2, 0, 1)[None]
    detections = seen(write(tmp_path / "map.onnx", {"out": scores}, (1, 3, 8, 8)), np.zeros((8, 8, 3), np.uint8))
    assert len(detections) == 0
    assert detections.mask is not None
    assert np.array_equal(detections.mask, classes + 1)
    numbers = write(tmp_path / "numbers.onnx", {"map": classes[None]}, (1, 3, 8, 8))
    assert np.array_equal(seen(numbers, np.zeros((8, 8, 3), np.uint8)).mask, classes + 1)
    larger = seen(write(tmp_path / "half.onnx", {"logits": scores}, (1, 3, 16, 16)), np.zeros((16, 16, 3), np.uint8))
    up = torch.nn.functional.interpolate(torch.from_numpy(scores), (16, 16), mode="bilinear").argmax(1)[0].numpy()
    assert np.array_equal(larger.mask, up + 1)


# -- the input


def test_an_image_has_the_layout_of_the_graph(tmp_path: pathlib.Path) -> None:
    image = np.full((4, 4, 3), (30, 60, 120), np.uint8)  # blue first
    for kind, shape, values, expected in (
        ("FLOAT", (1, 3, 4, 4), "unit", [120 / 255, 60 / 255, 30 / 255]),
        ("FLOAT16", (1, 3, 4, 4), "unit", [120 / 255, 60 / 255, 30 / 255]),
        ("UINT8", (1, 4, 4, 3), "", [120, 60, 30]),
        ("FLOAT", (3, 4, 4), "imagenet", [(120 / 255 - 0.485) / 0.229, (60 / 255 - 0.456) / 0.224, -1.2816]),
        ("FLOAT", (1, 3, 4, 4), "byte", [120, 60, 30]),
    ):  # fmt: skip
        made = build_detector(echo(tmp_path / "echo.onnx", kind, shape), options={"decoder": "none", "values": values})
        given = made.module(made.prepare(image)[0])[0].float().numpy().reshape(list(shape))
        colours = given.reshape(-1, 3)[0] if shape[-1] == 3 else given.reshape(3, -1)[:, 0]
        assert_allclose(colours, expected, rtol=2e-3)


def echo(path: pathlib.Path, kind: str, shape: Any) -> str:
    """A network that returns its input."""
    import onnx
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape) for name in ("input0", "given")]
    graph = helper.make_graph([helper.make_node("Identity", ["input0"], ["given"])], "echo", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return str(path)


def test_an_open_size_of_the_file_is_requested_or_written_or_640(tmp_path: pathlib.Path) -> None:
    table = np.zeros((1, 6, 7), np.float32)
    open_size = ("batch", 3, "height", "width")
    for metadata, size, expected in (({}, "", (640, 640)), ({"imgsz": "[192, 320]"}, "", (192, 320)),
                                     ({}, 224, (224, 224)), ({}, "320x192", (192, 320))):  # fmt: skip
        name = write(tmp_path / "net.onnx", {"output0": table}, open_size, metadata=metadata)
        made = build_detector(name, options={"decoder": "yolov8", "size": size})
        assert made.prepare(np.zeros((48, 64, 3), np.uint8))[0].shape == (3, *expected)
    fixed = write(tmp_path / "net.onnx", {"output0": table})
    with pytest.raises(BadInput, match=r"takes images of 320x320 pixels, not of 640x640; leave the size out"):
        build_detector(fixed, options={"decoder": "yolov8", "size": 640})


def test_supported_further_inputs_are_filled(tmp_path: pathlib.Path) -> None:
    others = {"pixel_mask": ("INT64", (1, 96, 128)), "orig_target_sizes": ("INT64", ("n", 2))}
    outputs = {"boxes": CORNERS.astype(np.float32), "scores": np.ones(3, np.float32), "labels": np.arange(3)}
    assert len(seen(write(tmp_path / "net.onnx", outputs, (1, 3, 96, 128), others=others))) == 3


# -- what is refused, in one line


def damaged(path: pathlib.Path) -> str:
    path.write_bytes(pathlib.Path(of_yolov8(path, RECORDED["v5u.table"])).read_bytes()[:5000])
    return str(path)


def table_of(columns: int) -> Dict[str, np.ndarray]:
    return {"output0": np.zeros((1, columns, places(320, 320)), np.float32)}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda path: str(path), {}, r"cannot read .*net.onnx: No such file"),
        (lambda path: (path.write_bytes(b"\x08\x08"), str(path))[1], {}, "is not an ONNX file, or an empty one"),
        (lambda path: (path.write_bytes(b"rubbish" * 99), str(path))[1], {}, "is not an ONNX file"),
        (damaged, {}, "is not an ONNX file"),
        (lambda path: write(path, table_of(84), domain="mine"), {}, r"operators of mine.*ONNX's own operators"),
        (lambda path: write(path, table_of(84), (8, 3, 320, 320)), {}, "takes 8 images at once; export it with"),
        (lambda path: write(path, table_of(84), (1, 1, 320, 320)), {}, r"takes images float32 \[1, 1, 320, 320\]"),
        (lambda path: write(path, table_of(84), kind="DOUBLE"), {}, r"of another type.*float32, float16 or uint8"),
        (lambda path: write(path, table_of(84), others={"mask": ("FLOAT", (1,))}), {}, r"mask float32 \[1\]"),
        (lambda path: write(path, table_of(85), metadata={"task": "obb"}), {}, "was exported for 'obb'"),
        (lambda path: write(path, table_of(56)), {}, "no decoder is known for them"),  # a pose, or 52 classes
        (lambda path: write(path, {"a": np.zeros((1, 7, 7), np.float32), "b": np.zeros(3, np.int64)}), {},
         r"a \[1, 7, 7\], b \[3\] of integers, for images of 320x320.*decoder: yolov5, yolov8.*detector:=package"),
        (lambda path: write(path, table_of(84), metadata={"names": "{0: 'a'}"}), {}, r"1 names .* 80 classes"),
        (lambda path: write(path, table_of(84), metadata={"names": "(" * 999}), {}, "cannot read what its exporter"),
        (lambda path: write(path, table_of(84)), {"decoder": "yolov9000"}, "no decoder 'yolov9000'; use one of"),
        (lambda path: write(path, table_of(84)), {"decoder": "detr"}, "decoder detr does not fit"),
        (lambda path: write(path, table_of(84)), {"sizes": 3}, "has no option sizes; it has: decoder, size"),
        (lambda path: write(path, table_of(84)), {"score": "high"}, "give a number from 0 to 1"),
        (lambda path: write(path, table_of(84)), {"fit": "crop"}, "use one of: letterbox, stretch"),
        (lambda path: write(path, table_of(84)), {"size": "big"}, "give pixels such as 640"),
        (lambda path: write(path, table_of(84)), {"sha256": "0" * 64}, r"another file here.*copy the robot's file"),
    ],
)  # fmt: skip
def test_unusable_files_are_reported_in_one_line(
    make: Any, options: Dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    name = make(tmp_path / "net.onnx")
    with pytest.raises(BadInput, match=message) as raised:
        build_detector(name, options=options)
    assert "\n" not in str(raised.value)


def test_an_engine_that_cannot_compute_it_is_named(tmp_path: pathlib.Path) -> None:
    name = write(tmp_path / "net.onnx", table_of(84), operators=["Unheard"])
    with pytest.raises(BadInput, match=r"net.onnx cannot be computed by onnxruntime .*Unheard") as raised:
        build_detector(name)
    assert "\n" not in str(raised.value)


def test_external_weights_belong_to_the_file(tmp_path: pathlib.Path) -> None:
    import onnx

    of_yolov8(tmp_path / "one.onnx", RECORDED["v11.table"], METADATA["v11"])
    model = onnx.load(str(tmp_path / "one.onnx"))
    onnx.save(model, str(tmp_path / "net.onnx"), save_as_external_data=True, location="net.data", size_threshold=0)
    name = str(tmp_path / "net.onnx")
    same(seen(name), RECORDED["v11.rows"])
    before = reading.checksum(name)
    data = tmp_path / "net.data"
    data.write_bytes(data.read_bytes()[:-4] + b"abcd")
    assert reading.checksum(name) != before
    (tmp_path / "below").mkdir()
    shutil.move(str(data), str(tmp_path / "elsewhere.data"))
    with pytest.raises(BadInput, match=r"its weights, net.data: No such file"):
        build_detector(name)
    away = onnx.load(name, load_external_data=False)
    for tensor in away.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../elsewhere.data" if entry.key == "location" else entry.value
    (tmp_path / "below" / "net.onnx").write_bytes(away.SerializeToString())
    with pytest.raises(BadInput, match="must lie in its own folder"):
        build_detector(str(tmp_path / "below" / "net.onnx"))


def test_a_size_is_bounded_before_anything_is_read(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    name = of_yolov8(tmp_path / "net.onnx", RECORDED["v5u.table"])
    monkeypatch.setattr(reading, "MAX_BYTES", 1000)
    with pytest.raises(BadInput, match="export a smaller network"):
        build_detector(name)


def test_a_pickle_is_refused_with_the_command_that_exports_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "best.pt"
    message = r"pickle format.*yolo export model=best.pt format=onnx.*model:=best.onnx"
    torch.save({"model": torch.nn.Linear(2, 2), "epoch": 3}, str(path))
    with pytest.raises(BadInput, match=message) as raised:
        build_detector(str(path))
    assert "\n" not in str(raised.value)
    path.write_bytes(pickle.dumps({"epoch": 3}))
    with pytest.raises(BadInput, match=message):
        build_detector(str(path))


# -- where it is computed


def test_an_onnx_file_goes_by_its_name_and_checksum(tmp_path: pathlib.Path) -> None:
    name = of_yolov8(tmp_path / "net.onnx", RECORDED["v11.table"], METADATA["v11"])
    assert registry.name_on_wire(name) == "net.onnx"
    assert registry.options_on_wire(name, {"score": 0.5}) == {"score": 0.5, "sha256": reading.checksum(name)}
    assert registry.is_user_model("net.onnx")
    module = registry.build_module(name)
    other = of_yolov8(tmp_path / "other.onnx", RECORDED["v5u.table"], METADATA["v5u"])
    hashes = [registry.state_hash(one) for one in (module, copy.deepcopy(module), registry.build_module(other))]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_requested_engine_computes_and_is_reported(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("openvino", reason="openvino is the second engine on the CPU")
    name = of_yolov8(tmp_path / "net.onnx", RECORDED["v11.table"], METADATA["v11"])
    made = build_detector(name)
    image, placement = made.prepare(GREY)
    for engine, expected in (("eager", "onnxruntime "), ("exact", "onnxruntime "), ("openvino", "openvino "),
                             ("eager", "onnxruntime ")):  # fmt: skip
        executor = ModuleExecutor(made.module, engine=engine)  # the module itself goes on as it was
        execution = executor.run_module([image])
        assert execution.engine.startswith(expected)
        assert executor.fingerprint()["engine"] == execution.engine == executor.engine
        assert executor.engine_state() == (execution.engine, False)
        same(made.interpret(execution.outputs, placement), RECORDED["v11.rows"])
    absent = ModuleExecutor(made.module, engine="tensorrt")
    assert absent.run_module([image]).engine.startswith("onnxruntime ")
    assert absent.engine_state()[1]


def test_an_image_of_another_size_is_refused(tmp_path: pathlib.Path) -> None:
    module = registry.build_module(of_yolov8(tmp_path / "net.onnx", RECORDED["v11.table"]))
    with pytest.raises(EdgeOffloadError, match=r"takes images \[3, 320, 320\], not \[3, 8, 8\]"):
        module(torch.zeros((3, 8, 8), dtype=torch.uint8))


def test_only_networks_with_keypoints_of_coco_find_people(tmp_path: pathlib.Path) -> None:
    name = of_yolov8(tmp_path / "net.onnx", RECORDED["v11.table"], METADATA["v11"])
    with pytest.raises(BadInput, match=r"finds no keypoints, not the 17 of COCO.*node:=detector_node"):
        registry.build_estimator(name)


def test_a_custom_class_interprets_raw_outputs(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    (tmp_path / "mine_of_onnx.py").write_text(
        "from edge_offload.models.detector import Detector\n"
        "class Mine(Detector):\n    size = 320\n    def interpret(self, outputs, placement):\n        return outputs\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = of_yolov8(tmp_path / "net.onnx", RECORDED["v11.table"])
    made = build_detector(name, "mine_of_onnx:Mine", {"decoder": "none"})
    image, placement = made.prepare(GREY)
    (table,) = made.interpret(made.module(image), placement)  # type: ignore[misc]
    assert table.shape == (1, 84, places(320, 320))
