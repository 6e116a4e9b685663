"""Stable-Baselines3's A2C or PPO training on an Atari game, in any interpreter that has it.

It has its own wrappers and a process for each environment. With ``network`` = a3c it gets our image
size, the layers of A3C-Net and our preset's rollout and minibatches; with own its own network, of
Mnih et al. 2015, and for PPO the image size, rollout and minibatches that it publishes for Atari.
"""

from __future__ import annotations

import functools
from typing import Any

from children import Advance, read_spec, serve

ROLLOUTS = {  # environments, horizon, minibatch
    ("a2c", "a3c"): (16, 5, None),
    ("ppo", "a3c"): (8, 256, 512),
    ("ppo", "own"): (8, 128, 256),
}


def main() -> None:
    """Measures the learner that the specification names."""
    serve(*make(read_spec()))


def make(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: algo, network, game, torch_threads, device, seed, malloc."""
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    num_envs, horizon, minibatch = ROLLOUTS[spec["algo"], spec["network"]]
    size = (80, 104) if spec["network"] == "a3c" else (84, 84)
    make_env = functools.partial(_make_env, spec["game"], *size)
    # Forked before torch has threads; the default start method would import torch in every worker.
    env = VecFrameStack(SubprocVecEnv([make_env] * num_envs, start_method="fork"), 4)

    import stable_baselines3
    import torch

    torch.set_num_threads(spec["torch_threads"])
    settings = {"n_steps": horizon}
    if minibatch is not None:
        settings |= {"batch_size": minibatch, "n_epochs": 4}
    policy = {}
    if spec["network"] == "a3c":
        policy = {"features_extractor_class": _make_extractor(), "net_arch": []}
    algorithm = getattr(stable_baselines3, spec["algo"].upper())
    more = {"seed": spec["seed"], "device": spec["device"], "policy_kwargs": policy}
    model = algorithm("CnnPolicy", env, **settings, **more)
    _, callback = model._setup_learn(total_timesteps=10**9)

    def advance() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model.train()
        return int(num_envs * horizon)

    said = {key: spec[key] for key in ("algo", "network", "torch_threads", "malloc")}
    return advance, said | settings | {"num_envs": num_envs}


def _make_extractor() -> Any:
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch import nn

    class A3CNet(BaseFeaturesExtractor):  # type: ignore[misc]
        """A3C-Net for images of 104 x 80, up to the layers of policy and value."""

        def __init__(self, observation_space: Any) -> None:
            super().__init__(observation_space, features_dim=256)
            self.trunk = nn.Sequential(
                nn.Conv2d(4, 16, 8, 4),
                nn.ReLU(),
                nn.Conv2d(16, 32, 4, 2, 1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(32 * 12 * 9, 256),
                nn.ReLU(),
            )

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.trunk(observation)
            return features

    return A3CNet


def _make_env(game: str, width: int, height: int) -> Any:
    import ale_py
    import gymnasium
    from stable_baselines3.common import atari_wrappers
    from stable_baselines3.common.monitor import Monitor

    gymnasium.register_envs(ale_py)
    name = "".join(part.capitalize() for part in game.split("_"))
    env = gymnasium.make(
        f"ALE/{name}-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True
    )
    env = Monitor(env)
    env = atari_wrappers.NoopResetEnv(env, noop_max=30)
    env = atari_wrappers.MaxAndSkipEnv(env, skip=4)
    env = atari_wrappers.EpisodicLifeEnv(env)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = atari_wrappers.FireResetEnv(env)
    env = atari_wrappers.WarpFrame(env, width=width, height=height)
    return atari_wrappers.ClipRewardEnv(env)


if __name__ == "__main__":
    main()
