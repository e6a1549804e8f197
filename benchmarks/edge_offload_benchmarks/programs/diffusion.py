"""Image generation: diffusers."""

from __future__ import annotations

from typing import Any

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, prepare_module


def _build_unet(device: str) -> Any:
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return prepare_module(
        UNet2DModel(
            sample_size=16,
            in_channels=3,
            out_channels=3,
            block_out_channels=(16, 32),
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        ),
        device,
    )


@add_program("diffusers/unet")
def _make_once(device: str) -> Infer:
    network = _build_unet(device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            return network(draw_noise(number, 1, 3, 16, 16).to(device), 10).sample.cpu()

    return infer


def _add_loop(name: str, scheduler: str) -> None:
    @add_program(f"diffusers/{name}", varies=True)
    def make(device: str) -> Infer:
        import diffusers

        network = _build_unet(device)

        def infer(number: int) -> Any:
            steps = getattr(diffusers, scheduler)()
            steps.set_timesteps(4, device=device)
            image = (draw_noise(number, 1, 3, 16, 16) - 0.5).to(device) * steps.init_noise_sigma
            draw = torch.Generator().manual_seed(number)
            with torch.no_grad():
                for moment in steps.timesteps:
                    predicted = network(steps.scale_model_input(image, moment), moment).sample
                    extra = {} if scheduler == "DPMSolverMultistepScheduler" else {"generator": draw}
                    image = steps.step(predicted, moment, image, **extra).prev_sample
            return image.cpu()

        return infer


_add_loop("ddpm_4_steps", "DDPMScheduler")
_add_loop("ddim_4_steps", "DDIMScheduler")
_add_loop("euler_ancestral_4_steps", "EulerAncestralDiscreteScheduler")
_add_loop("dpm_solver_4_steps", "DPMSolverMultistepScheduler")


@add_program("diffusers/autoencoder_kl")
def _make_vae(device: str) -> Infer:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    network = prepare_module(
        AutoencoderKL(
            block_out_channels=(16, 32),
            norm_num_groups=4,
            latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        device,
    )

    def infer(number: int) -> Any:
        with torch.no_grad():
            hidden = network.encode(draw_noise(number, 1, 3, 32, 32).to(device)).latent_dist.mode()
            return network.decode(hidden).sample.cpu()

    return infer
