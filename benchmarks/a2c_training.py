"""One learner training A2C on an Atari game: ours, or Stable-Baselines3's with A3C-Net's sizes.

Ours is put together by `accel_rl.training`, from options as on its command line; a step includes
what the training loop does but writing metrics. Stable-Baselines3 gets the same image size, rollout
and number of environments, its own wrappers, a process for each environment, and a network of the
same layers; it runs in any interpreter that has it.
"""

from __future__ import annotations

import os
from typing import Any

from children import Advance, read_spec, serve


def main() -> None:
    """Measures the learner that the specification names."""
    spec = read_spec()
    if spec["part"] == "sb3":
        serve(*make_sb3(spec))
        return
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as accel_rl.__main__, before torch is loaded
    from accel_rl.training.torch_threads import sampling_threads

    with sampling_threads():
        serve(*make_ours(spec))


def make_ours(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: options, a list of ``key=value`` as for training."""
    from accel_rl.training.command_line import parse_arguments
    from accel_rl.training.parts import build
    from accel_rl.training.torch_threads import learning_threads

    config = parse_arguments(spec["options"])
    parts = build(config)
    parts.sampler.start()

    def advance() -> int:
        parts.sampler.collect(parts.server)
        with learning_threads():
            parts.learner.update(parts.server.finish(), 0.0)
        parts.sampler.take_episodes()
        return config.steps_per_iteration

    return advance, {"options": spec["options"], "plan": parts.describe()}


def make_sb3(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: game, num_envs, horizon, torch_threads, seed."""
    import functools

    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    make = functools.partial(_make_sb3_env, spec["game"])
    # Forked before torch has threads; the default start method would import torch in every worker.
    env = VecFrameStack(SubprocVecEnv([make] * spec["num_envs"], start_method="fork"), 4)

    import torch
    from stable_baselines3 import A2C
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

    torch.set_num_threads(spec["torch_threads"])
    model = A2C(
        "CnnPolicy",
        env,
        n_steps=spec["horizon"],
        policy_kwargs={"features_extractor_class": A3CNet, "net_arch": []},
        seed=spec["seed"],
        device=spec["device"],
    )
    _, callback = model._setup_learn(total_timesteps=10**9)

    def advance() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model.train()
        return int(spec["num_envs"] * spec["horizon"])

    return advance, {key: spec[key] for key in ("num_envs", "horizon", "torch_threads", "malloc")}


def _make_sb3_env(game: str) -> Any:
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
    env = atari_wrappers.WarpFrame(env, width=80, height=104)
    return atari_wrappers.ClipRewardEnv(env)


if __name__ == "__main__":
    main()
