"""TorchRL's A2C, PPO or DQN training on an Atari game, in any interpreter that has it.

Put together from its collector, losses and replay as its own examples are, with Gymnasium's Atari
wrappers in a process for each environment: those of its examples resize in torch, which is slower.
It gets our image size, layers, rollout, minibatches and replay.
"""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.harness.children import Advance, read_spec, serve, versions

FRAMES = 4 * 27_000
"""of a game at most"""
PACKAGES = ("torchrl", "tensordict", "torch", "gymnasium", "ale-py")


def main() -> None:
    """Measures the learner that the specification names."""
    spec = read_spec()
    import torch

    torch.set_num_threads(spec["torch_threads"])
    torch.manual_seed(spec["seed"])
    make = make_q_learning if spec["algo"] == "dqn" else make_on_policy
    serve(make(spec), {"workers": spec["work"]["num_envs"], "versions": versions(*PACKAGES)})


def make_on_policy(spec: dict[str, Any]) -> Advance:
    """A rollout, its advantages, and the updates from it."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.modules import ActorValueOperator, ProbabilisticActor
    from torchrl.objectives import A2CLoss, ClipPPOLoss
    from torchrl.objectives.value import GAE

    work, device = spec["work"], spec["device"]
    env = make_env(spec["game"], work["num_envs"], spec["network"]["image"])
    trunk, hidden = _make_trunk(spec), spec["network"]["hidden"]
    common = TensorDictModule(trunk, in_keys=["observation"], out_keys=["hidden"])
    logits = TensorDictModule(
        nn.Linear(hidden, num_actions(env)), in_keys=["hidden"], out_keys=["logits"]
    )
    policy = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    value = TensorDictModule(nn.Linear(hidden, 1), in_keys=["hidden"], out_keys=["state_value"])
    network = ActorValueOperator(common, policy, value).to(device)
    actor, critic = network.get_policy_operator(), network.get_value_operator()
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
    make_loss = A2CLoss if spec["algo"] == "a2c" else ClipPPOLoss
    loss = make_loss(actor_network=actor, critic_network=critic)
    optimizer = torch.optim.Adam(network.parameters(), lr=2.5e-4, eps=1e-5)
    steps = work["num_envs"] * work["horizon"]
    minibatch = steps // work.get("num_minibatches", 1)
    rollouts = iter(_make_collector(spec, env, actor, steps))

    def advance() -> int:
        with torch.no_grad():
            rollout = advantages(next(rollouts).to(device))
        samples = rollout.reshape(-1)
        for _ in range(work.get("num_epochs", 1)):
            for index in torch.randperm(steps, device=device).split(minibatch):
                losses = loss(samples[index])
                total = sum(part for name, part in losses.items() if name.startswith("loss_"))
                _update(optimizer, total, network)
        return steps

    return advance


def make_q_learning(spec: dict[str, Any]) -> Advance:
    """Some steps of every environment into the replay, and the updates that they give."""
    import torch
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torch import nn
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.modules import EGreedyModule, QValueModule
    from torchrl.objectives import DQNLoss, HardUpdate

    work, device = spec["work"], spec["device"]
    env = make_env(spec["game"], work["num_envs"], spec["network"]["image"])
    layers = nn.Sequential(
        _make_trunk(spec), nn.Linear(spec["network"]["hidden"], num_actions(env))
    )
    values = TensorDictModule(layers, in_keys=["observation"], out_keys=["action_value"])
    action_spec = env.full_action_spec_unbatched["action"]
    network = TensorDictSequential(values, QValueModule(spec=action_spec)).to(device)
    explore = EGreedyModule(spec=action_spec, eps_init=work["epsilon"], eps_end=work["epsilon"])
    actor = TensorDictSequential(network, explore).to(device)
    loss = DQNLoss(value_network=network, delay_value=True, action_space=action_spec)
    loss.make_value_estimator(gamma=0.99)
    target = HardUpdate(loss, value_network_update_interval=2_500)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    storage = LazyTensorStorage(work["buffer_size"])
    replay = TensorDictReplayBuffer(storage=storage, batch_size=work["batch_size"])
    steps = work["num_envs"]
    rollouts = iter(_make_collector(spec, env, actor, steps))

    def collect() -> None:
        replay.extend(next(rollouts).reshape(-1).to("cpu"))

    def advance() -> int:
        collect()
        for _ in range(steps // work["steps_per_update"]):
            _update(optimizer, loss(replay.sample().to(device))["loss"], network)
            target.step()
        return steps

    while len(replay) < work["learning_starts"]:
        collect()
    return advance


def _update(optimizer: Any, loss: Any, network: Any) -> None:
    from torch import nn

    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 0.5)
    optimizer.step()


def _make_trunk(spec: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    from benchmarks.harness.network import make_trunk

    class Scaled(nn.Module):
        """The trunk for images as they are stored, with any leading dimensions."""

        def __init__(self) -> None:
            super().__init__()
            self.trunk = make_trunk(spec["network"])

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            leading = image.shape[:-3]
            return self.trunk(image.flatten(0, -4) / 255.0).unflatten(0, leading)

    return Scaled()


def make_env(game: str, num_envs: int, image: tuple[int, int]) -> Any:
    """A process for each environment; ``observation`` uint8 ``[num_envs, 4, *image]``."""
    from torchrl.envs import EnvCreator, ParallelEnv

    make = functools.partial(_make_one, game, image)
    return ParallelEnv(num_envs, EnvCreator(make), mp_start_method="fork")


def _make_one(game: str, image: tuple[int, int]) -> Any:
    from torchrl.envs import GymWrapper

    env = make_wrapped(game, (4, *image))
    return GymWrapper(env, categorical_action_encoding=True)


def make_wrapped(game: str, shape: tuple[int, int, int]) -> Any:
    """Gymnasium's environment of a game, with its own wrappers."""
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gymnasium.register_envs(ale_py)
    name = "".join(part.capitalize() for part in game.split("_"))
    env = gymnasium.make(
        f"ALE/{name}-v5",
        frameskip=1,
        repeat_action_probability=0.0,
        max_num_frames_per_episode=FRAMES,
        disable_env_checker=True,
    )
    stack, height, width = shape
    env = AtariPreprocessing(env, screen_size=(width, height))
    return FrameStackObservation(env, stack)


def num_actions(env: Any) -> int:
    """Of one of `make_env`."""
    return int(env.full_action_spec_unbatched["action"].space.n)


def _make_collector(spec: dict[str, Any], env: Any, policy: Any, steps: int) -> Any:
    from torchrl import collectors

    old_name = getattr(collectors, "SyncDataCollector", None)  # before 0.14
    return (old_name or collectors.Collector)(
        env,
        policy,
        frames_per_batch=steps,
        total_frames=-1,
        policy_device=spec["device"],
        storing_device=spec["device"],
    )


if __name__ == "__main__":
    main()
