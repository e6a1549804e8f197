"""Image generation: diffusers."""

from __future__ import annotations

from typing import Any

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, program
from edge_offload_benchmarks.programs.inputs import noise, ready


def _unet(device: str) -> Any:
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return ready(
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


@program("diffusers/unet")
def _once(device: str) -> Infer:
    network = _unet(device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            return network(noise(number, 1, 3, 16, 16).to(device), 10).sample.cpu()

    return infer


def _loop(name: str, scheduler: str) -> None:
    @program(f"diffusers/{name}", varies=True)
    def make(device: str) -> Infer:
        import diffusers

        network = _unet(device)

        def infer(number: int) -> Any:
            steps = getattr(diffusers, scheduler)()
            steps.set_timesteps(4, device=device)
            image = (noise(number, 1, 3, 16, 16) - 0.5).to(device) * steps.init_noise_sigma
            draw = torch.Generator().manual_seed(number)
            with torch.no_grad():
                for moment in steps.timesteps:
                    predicted = network(steps.scale_model_input(image, moment), moment).sample
                    extra = {} if scheduler == "DPMSolverMultistepScheduler" else {"generator": draw}
                    image = steps.step(predicted, moment, image, **extra).prev_sample
            return image.cpu()

        return infer


_loop("ddpm_4_steps", "DDPMScheduler")
_loop("ddim_4_steps", "DDIMScheduler")
_loop("euler_ancestral_4_steps", "EulerAncestralDiscreteScheduler")
_loop("dpm_solver_4_steps", "DPMSolverMultistepScheduler")


@program("diffusers/autoencoder_kl")
def _vae(device: str) -> Infer:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    network = ready(
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
            hidden = network.encode(noise(number, 1, 3, 32, 32).to(device)).latent_dist.mode()
            return network.decode(hidden).sample.cpu()

    return infer
