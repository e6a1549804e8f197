"""Classifiers, segmenters, features, flow: timm, torchvision, kornia, monai, segment-anything, transformers."""

from __future__ import annotations

from typing import Any, Callable

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, program
from edge_offload_benchmarks.programs.inputs import length_of, noise, ready


def _images(module: Any, device: str, *shape: int, pick: Callable[[Any], Any] = lambda out: out) -> Infer:
    network = ready(module, device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            return pick(network(noise(number, *shape).to(device))).cpu()

    return infer


def _timm(name: str, size: int, **options: Any) -> None:
    @program(f"timm/{name}")
    def make(device: str) -> Infer:
        import timm

        torch.manual_seed(0)
        return _images(timm.create_model(name, pretrained=False, **options), device, 1, 3, size, size)


_timm("resnet18", 96)
_timm("efficientnet_b0", 96)
_timm("vit_tiny_patch16_224", 96, img_size=96)
_timm("convnext_atto", 96)
_timm("swin_tiny_patch4_window7_224", 112, img_size=112)
_timm("mobilevit_xxs", 96)
_timm("regnety_002", 96)
_timm("mixer_s32_224", 224)
_timm("ghostnet_100", 96)
_timm("levit_128s", 224)
_timm("edgenext_xx_small", 96)
_timm("mobilenetv4_conv_small", 96)


@program("torchvision/lraspp_mobilenet_v3_large", quick=True)
def _lraspp(device: str) -> Infer:
    from edge_offload.ir.torchvision_package import torchvision_package

    torch.manual_seed(0)
    model = torchvision_package().models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    return _images(model, device, 1, 3, 96, 96, pick=lambda out: out["out"])


@program("torchvision/raft_small", quick=True)
def _raft(device: str) -> Infer:
    from edge_offload.ir.torchvision_package import torchvision_package

    torch.manual_seed(0)
    network = ready(torchvision_package().models.optical_flow.raft_small(weights=None), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            first, second = (noise(2 * number + k, 1, 3, 128, 128).to(device) for k in (0, 1))
            return network(first, second, num_flow_updates=3)[-1].cpu()

    return infer


@program("torchvision/r3d_18", quick=True)
def _video(device: str) -> Infer:
    from edge_offload.ir.torchvision_package import torchvision_package

    torch.manual_seed(0)
    return _images(torchvision_package().models.video.r3d_18(weights=None), device, 1, 3, 4, 48, 48)


@program("kornia/harris")
def _harris(device: str) -> Infer:
    import kornia

    def infer(number: int) -> Any:
        image = noise(number, 1, 1, 64, 80).to(device)
        edges = kornia.filters.sobel(kornia.filters.gaussian_blur2d(image, (5, 5), (1.5, 1.5)))
        return kornia.feature.harris_response(edges).cpu()

    return infer


@program("kornia/warp")
def _warp(device: str) -> Infer:
    import kornia

    def infer(number: int) -> Any:
        image = noise(number, 1, 3, 48, 64).to(device)
        angle = torch.tensor([10.0 * (number % 5)], device=device)
        turned = kornia.geometry.transform.rotate(image, angle)
        return kornia.color.rgb_to_hsv(turned).cpu()

    return infer


@program("kornia/loftr", varies=True)
def _loftr(device: str) -> Infer:
    import kornia

    torch.manual_seed(0)
    network = ready(kornia.feature.LoFTR(pretrained=None), device)

    def infer(number: int) -> Any:
        pair = {f"image{k}": noise(2 * number + k, 1, 1, 64, 64).to(device) for k in (0, 1)}
        with torch.no_grad():
            matches = network(pair)
        return [matches["keypoints0"].cpu(), matches["confidence"].cpu()]

    return infer


@program("kornia/disk", varies=True)
def _disk(device: str) -> Infer:
    import kornia

    torch.manual_seed(0)
    network = ready(kornia.feature.DISK(), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            (features,) = network(noise(number, 1, 3, 64, 64).to(device), n=64)
        return [features.keypoints.cpu(), features.descriptors.cpu()]

    return infer


@program("monai/unet_3d")
def _unet(device: str) -> Infer:
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    return _images(UNet(3, 1, 2, (8, 16, 32), (2, 2), num_res_units=1), device, 1, 1, 24, 24, 24)


@program("monai/segresnet")
def _segresnet(device: str) -> Infer:
    from monai.networks.nets import SegResNet

    torch.manual_seed(0)
    return _images(SegResNet(spatial_dims=2, init_filters=8, in_channels=1), device, 1, 1, 64, 64)


@program("monai/sliding_window")
def _sliding(device: str) -> Infer:
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    network = ready(UNet(2, 1, 2, (8, 16), (2,)), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            return sliding_window_inference(noise(number, 1, 1, 80, 80).to(device), (48, 48), 2, network).cpu()

    return infer


@program("segment_anything/sam")
def _sam(device: str) -> Infer:
    from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, TwoWayTransformer

    torch.manual_seed(0)
    encoder = ready(
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
    prompts = ready(
        PromptEncoder(embed_dim=32, image_embedding_size=(8, 8), input_image_size=(64, 64), mask_in_chans=8), device
    )
    decoder = ready(MaskDecoder(transformer_dim=32, transformer=TwoWayTransformer(2, 32, 4, 64)), device)

    def infer(number: int) -> Any:
        point = (64 * noise(number, 1, 1, 2)).to(device)
        with torch.no_grad():
            features = encoder(noise(number, 1, 3, 64, 64).to(device))
            sparse, dense = prompts((point, torch.ones(1, 1, dtype=torch.int64, device=device)), None, None)
            masks, scores = decoder(features, prompts.get_dense_pe(), sparse, dense, multimask_output=True)
        return [masks.cpu(), scores.cpu()]

    return infer


def _transformer(name: str, size: int, build: Callable[[], Any], pick: Callable[[Any], Any]) -> None:
    @program(f"transformers/{name}")
    def make(device: str) -> Infer:
        torch.manual_seed(0)
        return _images(build(), device, 1, 3, size, size, pick=pick)


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


@program("timm/feature_pyramid_sizes", varies=True)
def _sizes(device: str) -> Infer:
    import timm

    torch.manual_seed(0)
    network = ready(timm.create_model("resnet18", pretrained=False, features_only=True), device)

    def infer(number: int) -> Any:
        side = 32 * length_of(number, (2, 3, 4))
        with torch.no_grad():
            return [level.cpu() for level in network(noise(number, 1, 3, side, side).to(device))[-2:]]

    return infer
