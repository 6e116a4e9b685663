"""Stable-Baselines3 in training, in any interpreter that has it.

A2C, PPO or DQN on an Atari game has its own wrappers and a process for each environment, and gets
our image size, layers, rollout, minibatches and replay. PPO and SAC on a MuJoCo task have their own
networks, which are ours, too, and environments in one process, as PPO's in our preset.
"""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.harness.children import Advance, read_spec, serve, versions


def main() -> None:
    """Measures the learner that the specification names."""
    serve(*make(read_spec()))


def make(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec`` as `peer_cases` makes it."""
    work = spec["work"]
    if "task" in spec:
        env = make_task(spec["task"], work["num_envs"], normalize=spec["algo"] == "ppo_mujoco")
    else:
        env = make_vec_env(spec["game"], work["num_envs"], spec["network"]["image"])

    import stable_baselines3
    import torch

    torch.set_num_threads(spec["torch_threads"])
    settings = _settings(spec["algo"], work)
    algorithm = getattr(stable_baselines3, spec["algo"].removesuffix("_mujoco").upper())
    more = {"seed": spec["seed"], "device": spec["device"]}
    if "task" in spec:
        model = algorithm("MlpPolicy", env, **settings, **more)
    else:
        more["policy_kwargs"] = {
            "features_extractor_class": _make_extractor(),
            "features_extractor_kwargs": {"network": spec["network"]},
            "net_arch": [],
        }
        model = algorithm("CnnPolicy", env, **settings, **more)
    _, callback = model._setup_learn(total_timesteps=10**9)

    def advance_on_policy() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model.train()
        return int(work["num_envs"] * model.n_steps)

    def advance_with_replay() -> int:
        noise = {"action_noise": model.action_noise} if spec["algo"] == "sac" else {}
        steps = model.collect_rollouts(
            model.env,
            callback,
            model.train_freq,
            model.replay_buffer,
            learning_starts=model.learning_starts,
            **noise,
        ).episode_timesteps
        if model.num_timesteps > model.learning_starts:
            model.train(batch_size=model.batch_size, gradient_steps=model.gradient_steps)
        return int(steps)

    has_replay = "buffer_size" in work
    advance = advance_with_replay if has_replay else advance_on_policy
    while has_replay and model.num_timesteps <= model.learning_starts:
        advance()  # what is measured is to learn
    said = {"num_envs": work["num_envs"], "workers": work["num_envs"]}
    return advance, said | settings | {
        "versions": versions("stable_baselines3", "torch", "gymnasium", "ale-py")
    }


def _settings(algo: str, work: dict[str, Any]) -> dict[str, Any]:
    if algo == "a2c":
        return {"n_steps": work["horizon"]}
    if "num_epochs" in work:
        batch = work["num_envs"] * work["horizon"] // work["num_minibatches"]
        return {
            "n_steps": work["horizon"],
            "batch_size": batch,
            "n_epochs": work["num_epochs"],
        }
    replay = {
        "batch_size": work["batch_size"],
        "buffer_size": work["buffer_size"],
        "learning_starts": work["learning_starts"],
        "train_freq": 1,  # of each environment
    }
    if algo == "sac":
        return replay
    return replay | {
        "gradient_steps": work["num_envs"] // work["steps_per_update"],
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
        "exploration_initial_eps": work["epsilon"],
        "exploration_final_eps": work["epsilon"],
    }


def _make_extractor() -> Any:
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    from benchmarks.harness.network import make_trunk

    class Trunk(BaseFeaturesExtractor):  # type: ignore[misc]
        """The network up to the layers of policy and value, or of the Q-values."""

        def __init__(self, observation_space: Any, network: dict[str, Any]) -> None:
            super().__init__(observation_space, features_dim=network["hidden"])
            self.trunk = make_trunk(network)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.trunk(observation)
            return features

    return Trunk


def make_task(task: str, num_envs: int, *, normalize: bool) -> Any:
    """Gymnasium's ``task`` in this process; ``normalize``: observations and rewards."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = make_vec_env(task, num_envs)
    return VecNormalize(env) if normalize else env


def make_vec_env(game: str, num_envs: int, image: tuple[int, int]) -> Any:
    """A process for each environment; stacks of four images, ``image`` rows x columns.

    To be called before torch has computed anything: they are forked while it has no threads, since
    the default start method would import it in every one of them.
    """
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    height, width = image
    make_env = functools.partial(_make_env, game, width, height)
    return VecFrameStack(SubprocVecEnv([make_env] * num_envs, start_method="fork"), 4)


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
