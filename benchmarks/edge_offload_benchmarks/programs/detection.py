"""Detectors, masks, poses, faces: ultralytics, transformers, torchvision, facenet-pytorch."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any, Callable, List

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, draw_tokens, prepare_module


def _add_yolo(name: str, kind: str, suppressed: bool) -> None:
    @add_program(f"ultralytics/{name}{'_nms' if suppressed else ''}", varies=suppressed)
    def make(device: str) -> Infer:
        tasks: Any = importlib.import_module("ultralytics.nn.tasks")
        torch.manual_seed(0)
        network = prepare_module(getattr(tasks, kind)(f"{name}.yaml", verbose=False), device)

        def infer(number: int) -> Any:
            with torch.no_grad():
                output = network(draw_noise(number, 1, 3, 96, 96).to(device))[0]
                if isinstance(output, (tuple, list)):
                    output = output[0]
                if not suppressed:
                    return output.cpu()
                nms: Any = importlib.import_module("ultralytics.utils.nms").non_max_suppression
                return [boxes.cpu() for boxes in nms(output, conf_thres=0.0001, max_det=20)]

        return infer


_add_yolo("yolov8n", "DetectionModel", False)
_add_yolo("yolov8n", "DetectionModel", True)
_add_yolo("yolo11n", "DetectionModel", False)
_add_yolo("yolov8n-pose", "PoseModel", False)
_add_yolo("yolov8n-seg", "SegmentationModel", False)
_add_yolo("yolov8n-cls", "ClassificationModel", False)


def _add_detector(name: str, size: int, build: Callable[[Any], Any], pick: Callable[[Any], Any]) -> None:
    @add_program(f"transformers/{name}")
    def make(device: str) -> Infer:
        import transformers

        torch.manual_seed(0)
        network = prepare_module(build(transformers), device)

        def infer(number: int) -> Any:
            with torch.no_grad():
                out = network(pixel_values=draw_noise(number, 1, 3, size, size).to(device))
            return [item.cpu() for item in pick(out)]

        return infer


_add_detector(
    "yolos",
    64,
    lambda t: t.YolosForObjectDetection(
        t.YolosConfig(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            image_size=[64, 64],
            num_detection_tokens=10,
            num_labels=4,
        )
    ),
    lambda out: (out.logits, out.pred_boxes),
)


def _build_detr(t: Any) -> Any:
    backbone = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    return t.DetrForObjectDetection(
        t.DetrConfig(
            use_timm_backbone=False,
            backbone_config=backbone,
            backbone=None,
            use_pretrained_backbone=False,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_queries=10,
            num_labels=4,
        )
    )


_add_detector("detr", 64, _build_detr, lambda out: (out.logits, out.pred_boxes))


@add_program("transformers/detr_threshold", varies=True)
def _make_selected(device: str) -> Infer:
    import transformers

    torch.manual_seed(0)
    network = prepare_module(_build_detr(transformers), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            out = network(pixel_values=draw_noise(number, 1, 3, 64, 64).to(device))
            scores, labels = out.logits.softmax(-1)[0, :, :-1].max(-1)
            sure = scores > scores.mean()
            return [scores[sure].cpu(), labels[sure].cpu(), out.pred_boxes[0][sure].cpu()]

    return infer


@add_program("transformers/owlvit", varies=True)
def _make_owl(device: str) -> Infer:
    import transformers as t

    torch.manual_seed(0)
    text = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 200,
        "max_position_embeddings": 16,
    }
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": 32,
        "patch_size": 8,
    }
    network = prepare_module(
        t.OwlViTForObjectDetection(t.OwlViTConfig(text_config=text, vision_config=vision, projection_dim=32)), device
    )

    def infer(number: int) -> Any:
        with torch.no_grad():
            out = network(
                input_ids=draw_tokens(number, 8, 200, rows=2).to(device),
                pixel_values=draw_noise(number, 1, 3, 32, 32).to(device),
            )
        return [out.logits.cpu(), out.pred_boxes.cpu()]

    return infer


def _crop_photograph(number: int, size: int) -> torch.Tensor:
    """A part of a photograph of people [size, size, 3], uint8, another for each inference; ultralytics brings it."""
    from PIL import Image

    file = pathlib.Path(importlib.import_module("ultralytics").__file__ or "").parent / "assets" / "zidane.jpg"
    x0, top = 420 + 90 * (number % 5), 11 * (number % 7)
    part = Image.open(file).convert("RGB").crop((x0, top, x0 + 450, top + 450)).resize((size, size))
    return torch.frombuffer(bytearray(part.tobytes()), dtype=torch.uint8).view(size, size, 3)


@add_program("facenet/mtcnn", varies=True)
def _make_mtcnn(device: str) -> Infer:
    """Three networks, the second and third on what is left by the one before; trained weights."""
    mtcnn: Any = importlib.import_module("facenet_pytorch.models.mtcnn")
    network = mtcnn.MTCNN(keep_all=True, device=device)

    def infer(number: int) -> Any:
        boxes, scores = network.detect(_crop_photograph(number, 224).numpy())
        if boxes is None:
            return torch.zeros(0)
        return [torch.from_numpy(boxes.astype("float64")), torch.from_numpy(scores.astype("float64"))]

    return infer


@add_program("torchvision/maskrcnn_resnet50_fpn", varies=True)
def _mask_rcnn(device: str) -> Infer:
    from edge_offload.ir.torchvision_package import torchvision_package

    torch.manual_seed(0)
    build = torchvision_package().models.detection.maskrcnn_resnet50_fpn
    network = prepare_module(
        build(
            weights=None, weights_backbone=None, num_classes=5, min_size=128, max_size=160, box_score_thresh=0.1,
            rpn_post_nms_top_n_test=50, box_detections_per_img=10,
        ),
        device,
    )  # fmt: skip

    def infer(number: int) -> Any:
        image = _crop_photograph(number, 128).permute(2, 0, 1).float().div(255).to(device)
        with torch.no_grad():
            output = network([image])[0]
        return [output[name].cpu() for name in sorted(output)]

    return infer


def _suppress_boxes(boxes: torch.Tensor, scores: torch.Tensor, limit: float = 0.2) -> torch.Tensor:
    """The best boxes that overlap no better one, one after the other, as many repositories write it."""
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    retained: List[torch.Tensor] = []
    order = scores.argsort(descending=True)
    while order.numel() > 0 and len(retained) < 20:
        best = order[0]
        retained.append(best)
        if order.numel() == 1:
            break
        rest = order[1:]
        low, high = torch.maximum(boxes[best, :2], boxes[rest, :2]), torch.minimum(boxes[best, 2:], boxes[rest, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        order = rest[shared / (area[best] + area[rest] - shared + 1e-6) < limit]
    return torch.stack(retained)


@add_program("plain/pillars", varies=True)
def _make_pillars(device: str) -> Infer:
    """PointPillars: clouds of points, pillars of them, a map seen from above, and suppression in Python per class."""
    torch.manual_seed(0)
    points_net = prepare_module(
        torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU()), device
    )
    map_net = prepare_module(torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, 2, 1), torch.nn.ReLU()), device)
    head = prepare_module(torch.nn.Conv2d(16, 3 * 8, 1), device)

    def infer(number: int) -> Any:
        count = 300 + 17 * (number % 5)
        scale = torch.tensor([32.0, 32.0, 4.0])
        points = torch.cat((draw_noise(number, count, 3) * scale, draw_noise(number + 500, count, 1)), 1).to(device)
        with torch.no_grad():
            cells = (points[:, :2] / 2).long()
            pillars, inverse = torch.unique(cells[:, 1] * 16 + cells[:, 0], return_inverse=True)
            full = torch.bincount(inverse, minlength=pillars.numel()).float()
            mean = torch.zeros(pillars.numel(), 3, device=device).index_add_(0, inverse, points[:, :3]) / full[:, None]
            centre = torch.stack((pillars % 16, torch.div(pillars, 16, rounding_mode="floor")), 1).float() * 2 + 1
            near = torch.cat((points, points[:, :3] - mean[inverse], points[:, :2] - centre[inverse]), 1)
            pooled = torch.zeros(pillars.numel(), 16, device=device).scatter_reduce_(
                0, inverse[:, None].expand(-1, 16), points_net(near), "amax", include_self=False
            )
            above = torch.zeros(16, 256, device=device)
            above[:, pillars] = pooled.t()
            out = head(map_net(above.view(1, 16, 16, 16)))[0].view(3, 8, -1).permute(0, 2, 1)
            output = []
            for scored in out:
                scores = scored[:, 0].sigmoid()
                likely = scores > scores.mean()
                boxes, scores = scored[likely], scores[likely]
                corners = torch.cat((boxes[:, 1:3] * 8 - 1, boxes[:, 1:3] * 8 + boxes[:, 3:5].exp()), 1)
                retained = _suppress_boxes(corners, scores)
                output.append(torch.cat((corners[retained], scores[retained, None]), 1).cpu())
        return output

    return infer
