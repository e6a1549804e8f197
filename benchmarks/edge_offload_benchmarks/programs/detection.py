"""Detectors, masks, poses: ultralytics and transformers."""

from __future__ import annotations

from typing import Any, Callable

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, program
from edge_offload_benchmarks.programs.inputs import noise, ready, tokens


def _yolo(name: str, kind: str, suppressed: bool) -> None:
    @program(f"ultralytics/{name}{'_nms' if suppressed else ''}", varies=suppressed)
    def make(device: str) -> Infer:
        import importlib

        tasks: Any = importlib.import_module("ultralytics.nn.tasks")
        torch.manual_seed(0)
        network = ready(getattr(tasks, kind)(f"{name}.yaml", verbose=False), device)

        def infer(number: int) -> Any:
            with torch.no_grad():
                found = network(noise(number, 1, 3, 96, 96).to(device))[0]
                if isinstance(found, (tuple, list)):
                    found = found[0]
                if not suppressed:
                    return found.cpu()
                nms: Any = importlib.import_module("ultralytics.utils.nms").non_max_suppression
                return [boxes.cpu() for boxes in nms(found, conf_thres=0.0001, max_det=20)]

        return infer


_yolo("yolov8n", "DetectionModel", False)
_yolo("yolov8n", "DetectionModel", True)
_yolo("yolo11n", "DetectionModel", False)
_yolo("yolov8n-pose", "PoseModel", False)
_yolo("yolov8n-seg", "SegmentationModel", False)
_yolo("yolov8n-cls", "ClassificationModel", False)


def _detector(name: str, size: int, build: Callable[[Any], Any], pick: Callable[[Any], Any]) -> None:
    @program(f"transformers/{name}")
    def make(device: str) -> Infer:
        import transformers

        torch.manual_seed(0)
        network = ready(build(transformers), device)

        def infer(number: int) -> Any:
            with torch.no_grad():
                out = network(pixel_values=noise(number, 1, 3, size, size).to(device))
            return [item.cpu() for item in pick(out)]

        return infer


_detector(
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


def _detr(t: Any) -> Any:
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


_detector("detr", 64, _detr, lambda out: (out.logits, out.pred_boxes))


@program("transformers/detr_threshold", varies=True)
def _selected(device: str) -> Infer:
    import transformers

    torch.manual_seed(0)
    network = ready(_detr(transformers), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            out = network(pixel_values=noise(number, 1, 3, 64, 64).to(device))
            scores, labels = out.logits.softmax(-1)[0, :, :-1].max(-1)
            sure = scores > scores.mean()
            return [scores[sure].cpu(), labels[sure].cpu(), out.pred_boxes[0][sure].cpu()]

    return infer


@program("transformers/owlvit", varies=True)
def _owl(device: str) -> Infer:
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
    network = ready(
        t.OwlViTForObjectDetection(t.OwlViTConfig(text_config=text, vision_config=vision, projection_dim=32)), device
    )

    def infer(number: int) -> Any:
        with torch.no_grad():
            out = network(
                input_ids=tokens(number, 8, 200, rows=2).to(device), pixel_values=noise(number, 1, 3, 32, 32).to(device)
            )
        return [out.logits.cpu(), out.pred_boxes.cpu()]

    return infer
