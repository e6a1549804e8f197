"""Robots' policies: stable-baselines3, and recurrent ones as people write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edge_offload_benchmarks.programs.catalogue import Infer, program
from edge_offload_benchmarks.programs.inputs import noise, ready


def _policy(algorithm: str, pictures: bool, quick: bool = False) -> None:
    @program(f"stable_baselines3/{algorithm.lower()}{'_cnn' if pictures else ''}", quick=quick)
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
            drawn = noise(number, *shape).numpy()
            return torch.from_numpy(
                model.predict((255 * drawn).astype("uint8") if pictures else drawn, deterministic=True)[0]
            )

        return infer


_policy("PPO", False, quick=True)
_policy("PPO", True)
_policy("SAC", False)
_policy("TD3", False)
_policy("A2C", False)


@program("plain/lstm_policy")
def _recurrent(device: str) -> Infer:
    """State stays on the device from step to step."""
    torch.manual_seed(0)
    cell = ready(nn.LSTMCell(8, 32), device)
    head = ready(nn.Linear(32, 2), device)
    state = {"hidden": torch.zeros(1, 32, device=device), "cell": torch.zeros(1, 32, device=device)}

    def infer(number: int) -> Any:
        with torch.no_grad():
            state["hidden"], state["cell"] = cell(noise(number, 1, 8).to(device), (state["hidden"], state["cell"]))
            return head(state["hidden"]).tanh().cpu()

    return infer


@program("plain/sampled_policy")
def _sampled(device: str) -> Infer:
    """An action that is drawn, and its probability."""
    torch.manual_seed(0)
    network = ready(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)), device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            chances = torch.distributions.Categorical(logits=network(noise(number, 1, 8).to(device)))
            action = chances.probs.argmax(-1)
            return [action.cpu(), chances.log_prob(action).cpu(), chances.entropy().cpu()]

    return infer
