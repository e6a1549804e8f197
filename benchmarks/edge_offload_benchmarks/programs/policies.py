"""Robots' policies: stable-baselines3, lerobot, and recurrent ones as people write them."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, prepare_module


def _add_policy(algorithm: str, pictures: bool) -> None:
    @add_program(f"stable_baselines3/{algorithm.lower()}{'_cnn' if pictures else ''}")
    def make(device: str) -> Infer:
        import gymnasium
        import numpy as np
        import stable_baselines3

        shape = (3, 36, 36) if pictures else (6,)
        bound = {"low": 0, "high": 255, "dtype": np.uint8} if pictures else {"low": -1.0, "high": 1.0}
        seen = gymnasium.spaces.Box(shape=shape, **bound)
        done = gymnasium.spaces.Box(-1.0, 1.0, (2,))

        class Still(gymnasium.Env):  # type: ignore[misc]
            """An environment that nothing happens in: the policy alone is wanted."""

            observation_space, action_space = seen, done

            def reset(self, **_options: Any) -> Any:
                return seen.sample(), {}

            def step(self, _action: Any) -> Any:
                return seen.sample(), 0.0, False, False, {}

        options = {"buffer_size": 10} if algorithm in ("SAC", "TD3") else {"n_steps": 8}
        kind = "CnnPolicy" if pictures else "MlpPolicy"
        model = getattr(stable_baselines3, algorithm)(kind, Still(), seed=0, device=device, **options)

        def infer(number: int) -> Any:
            drawn = draw_noise(number, *shape).numpy()
            return torch.from_numpy(
                model.predict((255 * drawn).astype("uint8") if pictures else drawn, deterministic=True)[0]
            )

        return infer


_add_policy("PPO", False)
_add_policy("PPO", True)
_add_policy("SAC", False)
_add_policy("TD3", False)
_add_policy("A2C", False)


@add_program("plain/lstm_policy", quick=True)
def _make_recurrent(device: str) -> Infer:
    """State stays on the device from step to step."""
    torch.manual_seed(0)
    cell = prepare_module(nn.LSTMCell(8, 32), device)
    head = prepare_module(nn.Linear(32, 2), device)
    state = {"hidden": torch.zeros(1, 32, device=device), "cell": torch.zeros(1, 32, device=device)}

    def infer(number: int) -> Any:
        with torch.no_grad():
            state["hidden"], state["cell"] = cell(draw_noise(number, 1, 8).to(device), (state["hidden"], state["cell"]))
            return head(state["hidden"]).tanh().cpu()

    return infer


@add_program("plain/sampled_policy", quick=True)
def _make_sampled(device: str) -> Infer:
    """An action that is drawn, and its probability."""
    torch.manual_seed(0)
    network = prepare_module(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            chances = torch.distributions.Categorical(logits=network(draw_noise(number, 1, 8).to(device)))
            action = chances.probs.argmax(-1)
            return [action.cpu(), chances.log_prob(action).cpu(), chances.entropy().cpu()]

    return infer


def _add_chunks(name: str, make: Callable[..., Any], each: int, draws: bool = False, **options: Any) -> None:
    """A policy that computes several actions at a time, from a camera and joints; an inference is one control step.

    Args:
        name: of the program.
        make: the policy, of the arguments of its configuration.
        each: steps that it gives what it has computed, before it computes anew.
        draws: whether it draws random numbers on the device.
        options: of its configuration, besides.
    """

    @add_program(f"lerobot/{name}", varies=each > 1, environment="lerobot")
    def make_policy(device: str) -> Infer:
        from lerobot.configs.types import FeatureType, PolicyFeature

        seen = {
            "observation.image": PolicyFeature(FeatureType.VISUAL, (3, 64, 64)),
            "observation.state": PolicyFeature(FeatureType.STATE, (6,)),
        }
        done = {"action": PolicyFeature(FeatureType.ACTION, (6,))}
        torch.manual_seed(0)
        made = make(input_features=seen, output_features=done, device=device, n_action_steps=each, **options)
        policy = prepare_module(made, device)

        def infer(number: int) -> Any:
            if draws:
                torch.manual_seed(number)
            batch = {name: draw_noise(number, 1, *feature.shape).to(device) for name, feature in seen.items()}
            return policy.select_action(batch).cpu()

        return infer


def _build_act(**options: Any) -> Any:
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    sizes = {"dim_model": 64, "n_heads": 4, "dim_feedforward": 128, "n_encoder_layers": 2, "latent_dim": 8}
    return ACTPolicy(ACTConfig(chunk_size=8, pretrained_backbone_weights=None, **sizes, **options))


def _build_diffusion(**options: Any) -> Any:
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    sizes = {"down_dims": (32, 64), "diffusion_step_embed_dim": 32, "spatial_softmax_num_keypoints": 8}
    return DiffusionPolicy(DiffusionConfig(horizon=8, num_inference_steps=4, **sizes, **options))


_add_chunks("act", _build_act, 4)
_add_chunks("act_ensembled", _build_act, 1, temporal_ensemble_coeff=0.01)
_add_chunks("diffusion", _build_diffusion, 4, draws=True)
_add_chunks("diffusion_every_step", _build_diffusion, 1, draws=True)
