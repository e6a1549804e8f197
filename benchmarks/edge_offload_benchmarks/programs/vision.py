"""Classifiers, segmenters, features, flow: timm, torchvision, kornia, monai, segment-anything, transformers."""

from __future__ import annotations

from typing import Any, Callable

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, length_of, prepare_module


def _infer_images(module: Any, device: str, *shape: int, pick: Callable[[Any], Any] = lambda out: out) -> Infer:
    network = prepare_module(module, device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            return pick(network(draw_noise(number, *shape).to(device))).cpu()

    return infer


def _add_timm(name: str, size: int, **options: Any) -> None:
    @add_program(f"timm/{name}")
    def make(device: str) -> Infer:
        import timm

        torch.manual_seed(0)
        return _infer_images(timm.create_model(name, pretrained=False, **options), device, 1, 3, size, size)


_add_timm("resnet18", 96)
_add_timm("efficientnet_b0", 96)
_add_timm("vit_tiny_patch16_224", 96, img_size=96)
_add_timm("convnext_atto", 96)
_add_timm("swin_tiny_patch4_window7_224", 112, img_size=112)
_add_timm("mobilevit_xxs", 96)
_add_timm("regnety_002", 96)
_add_timm("mixer_s32_224", 224)
_add_timm("ghostnet_100", 96)
_add_timm("levit_128s", 224)
_add_timm("edgenext_xx_small", 96)
_add_timm("mobilenetv4_conv_small", 96)


@add_program("torchvision/lraspp_mobilenet_v3_large", quick=True)
def _make_lraspp(device: str) -> Infer:
    from edge_offload.ir.torchvision_package import torchvision_package

    torch.manual_seed(0)
    model = torchvision_package().models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    return _infer_images(model, device, 1, 3, 96, 96, pick=lambda out: out["out"])


@add_program("torchvision/raft_small", quick=True)
def _make_raft(device: str) -> Infer:
    from edge_offload.ir.torchvision_package import torchvision_package

    torch.manual_seed(0)
    network = prepare_module(torchvision_package().models.optical_flow.raft_small(weights=None), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            first, second = (draw_noise(2 * number + k, 1, 3, 128, 128).to(device) for k in (0, 1))
            return network(first, second, num_flow_updates=3)[-1].cpu()

    return infer


@add_program("torchvision/r3d_18", quick=True)
def _make_video(device: str) -> Infer:
    from edge_offload.ir.torchvision_package import torchvision_package

    torch.manual_seed(0)
    return _infer_images(torchvision_package().models.video.r3d_18(weights=None), device, 1, 3, 4, 48, 48)


@add_program("kornia/harris")
def _make_harris(device: str) -> Infer:
    import kornia

    def infer(number: int) -> Any:
        image = draw_noise(number, 1, 1, 64, 80).to(device)
        edges = kornia.filters.sobel(kornia.filters.gaussian_blur2d(image, (5, 5), (1.5, 1.5)))
        return kornia.feature.harris_response(edges).cpu()

    return infer


@add_program("kornia/warp")
def _make_warp(device: str) -> Infer:
    import kornia

    def infer(number: int) -> Any:
        image = draw_noise(number, 1, 3, 48, 64).to(device)
        angle = torch.tensor([10.0 * (number % 5)], device=device)
        turned = kornia.geometry.transform.rotate(image, angle)
        return kornia.color.rgb_to_hsv(turned).cpu()

    return infer


@add_program("kornia/loftr", varies=True)
def _make_loftr(device: str) -> Infer:
    import kornia

    torch.manual_seed(0)
    network = prepare_module(kornia.feature.LoFTR(pretrained=None), device)

    def infer(number: int) -> Any:
        pair = {f"image{k}": draw_noise(2 * number + k, 1, 1, 64, 64).to(device) for k in (0, 1)}
        with torch.no_grad():
            matches = network(pair)
        return [matches["keypoints0"].cpu(), matches["confidence"].cpu()]

    return infer


@add_program("kornia/disk", varies=True)
def _make_disk(device: str) -> Infer:
    import kornia

    torch.manual_seed(0)
    network = prepare_module(kornia.feature.DISK(), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            (features,) = network(draw_noise(number, 1, 3, 64, 64).to(device), n=64)
        return [features.keypoints.cpu(), features.descriptors.cpu()]

    return infer


@add_program("monai/unet_3d")
def _make_unet(device: str) -> Infer:
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    return _infer_images(UNet(3, 1, 2, (8, 16, 32), (2, 2), num_res_units=1), device, 1, 1, 24, 24, 24)


@add_program("monai/segresnet")
def _make_segresnet(device: str) -> Infer:
    from monai.networks.nets import SegResNet

    torch.manual_seed(0)
    return _infer_images(SegResNet(spatial_dims=2, init_filters=8, in_channels=1), device, 1, 1, 64, 64)


@add_program("monai/sliding_window")
def _make_sliding(device: str) -> Infer:
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    network = prepare_module(UNet(2, 1, 2, (8, 16), (2,)), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            return sliding_window_inference(draw_noise(number, 1, 1, 80, 80).to(device), (48, 48), 2, network).cpu()

    return infer


@add_program("segment_anything/sam")
def _make_sam(device: str) -> Infer:
    from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, TwoWayTransformer

    torch.manual_seed(0)
    encoder = prepare_module(
        ImageEncoderViT(
            img_size=64,
            patch_size=8,
            embed_dim=48,
            depth=2,
            num_heads=4,
            out_chans=32,
            use_rel_pos=True,
            window_size=4,
            global_attn_indexes=(1,),
        ),
        device,
    )
    prompts = prepare_module(
        PromptEncoder(embed_dim=32, image_embedding_size=(8, 8), input_image_size=(64, 64), mask_in_chans=8), device
    )
    decoder = prepare_module(MaskDecoder(transformer_dim=32, transformer=TwoWayTransformer(2, 32, 4, 64)), device)

    def infer(number: int) -> Any:
        point = (64 * draw_noise(number, 1, 1, 2)).to(device)
        with torch.no_grad():
            features = encoder(draw_noise(number, 1, 3, 64, 64).to(device))
            sparse, dense = prompts((point, torch.ones(1, 1, dtype=torch.int64, device=device)), None, None)
            masks, scores = decoder(features, prompts.get_dense_pe(), sparse, dense, multimask_output=True)
        return [masks.cpu(), scores.cpu()]

    return infer


def _transformer(name: str, size: int, build: Callable[[], Any], pick: Callable[[Any], Any]) -> None:
    @add_program(f"transformers/{name}")
    def make(device: str) -> Infer:
        torch.manual_seed(0)
        return _infer_images(build(), device, 1, 3, size, size, pick=pick)


def _dinov2() -> Any:
    from transformers import Dinov2Config, Dinov2Model

    return Dinov2Model(Dinov2Config(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=56))


def _segformer() -> Any:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(
        SegformerConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], decoder_hidden_size=32, num_labels=5)
    )


def _depth() -> Any:
    from transformers import DPTConfig, DPTForDepthEstimation

    return DPTForDepthEstimation(
        DPTConfig(
            hidden_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            image_size=64,
            intermediate_size=96,
            backbone_out_indices=[0, 1, 2, 3],
            fusion_hidden_size=16,
            neck_hidden_sizes=[8, 16, 24, 32],
        )
    )


_transformer("dinov2", 56, _dinov2, lambda out: out.last_hidden_state)
_transformer("segformer", 64, _segformer, lambda out: out.logits)
_transformer("dpt", 64, _depth, lambda out: out.predicted_depth)


@add_program("timm/feature_pyramid_sizes", varies=True)
def _sizes(device: str) -> Infer:
    import timm

    torch.manual_seed(0)
    network = prepare_module(timm.create_model("resnet18", pretrained=False, features_only=True), device)

    def infer(number: int) -> Any:
        side = 32 * length_of(number, (2, 3, 4))
        with torch.no_grad():
            return [level.cpu() for level in network(draw_noise(number, 1, 3, side, side).to(device))[-2:]]

    return infer
