"""Updates of A2C and PPO on image data, beside those of Stable-Baselines3 on the same.

Both begin with the same network of Mnih et al. 2015 and get the same rollouts.
"""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from made_rollouts import acted, learner_of, made_rollout, task_of
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.algos import A2CConfig, PPOConfig
from accel_rl.models import make_model
from accel_rl.models.image import ImageNetwork
from accel_rl.parallel import FlatParameters
from accel_rl.presets import a2c_baselines, ppo_baselines
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric

T, B, NUM_ACTIONS = 5, 4, 4
SHAPE = (4, 84, 84)


class Pictures(gym.Env[np.ndarray, np.int64]):
    """Only says what observations and actions are."""

    observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gym.spaces.Discrete(NUM_ACTIONS)


def make_network() -> ImageNetwork:
    torch.manual_seed(0)
    model = make_model("nature", Leaf(SHAPE, np.dtype(np.uint8)), NUM_ACTIONS)
    assert isinstance(model, ImageNetwork)
    torch.nn.init.normal_(model.policy.weight, std=0.1)  # else nearly uniform
    return model


def write(other: OnPolicyAlgorithm, model: ImageNetwork) -> None:
    """Their parameters become those of ``model``."""
    state = other.policy.state_dict()
    for i, conv in enumerate(model.convs):
        state[f"features_extractor.cnn.{2 * i}.weight"] = conv.weight
        state[f"features_extractor.cnn.{2 * i}.bias"] = conv.bias
    # Ours are flattened by row, column and channel, theirs by channel, row and column.
    weight = model.hidden.weight.view(512, 7, 7, 64).permute(0, 3, 1, 2).flatten(1)
    state["features_extractor.linear.0.weight"] = weight
    state["features_extractor.linear.0.bias"] = model.hidden.bias
    for ours, theirs in ((model.policy, "action_net"), (model.value, "value_net")):
        state[f"{theirs}.weight"], state[f"{theirs}.bias"] = ours.weight, ours.bias
    other.policy.load_state_dict(state)


def make_batch(seed: int) -> RolloutTensors:
    g = torch.Generator().manual_seed(seed)
    return made_rollout(
        torch.randint(0, 256, (T + 1, B, *SHAPE), dtype=torch.uint8, generator=g),
        torch.randint(0, NUM_ACTIONS, (T, B), generator=g),
        torch.randn(T, B, generator=g).sign(),
        terminated=torch.rand(T, B, generator=g) < 0.2,
    )


def train_other(other: OnPolicyAlgorithm, batch: RolloutTensors) -> None:
    """One iteration of theirs with the steps of ``batch``."""
    buffer = other.rollout_buffer
    buffer.reset()
    starts = np.zeros(B, np.bool_)
    for t in range(T):
        with torch.no_grad():
            values, log_prob, _ = other.policy.evaluate_actions(
                batch.observation[t], batch.action[t]
            )
        observation, action = batch.observation[t].numpy(), batch.action[t].numpy()[:, None]
        buffer.add(observation, action, batch.reward[t].numpy(), starts, values, log_prob)
        starts = batch.terminated[t].numpy()
    with torch.no_grad():
        last_values = other.policy.predict_values(batch.observation[T])
    buffer.compute_returns_and_advantage(last_values, starts)
    other.train()


def read(other: OnPolicyAlgorithm) -> Tensor:
    """Their parameters in the order of ours."""
    state, model = other.policy.state_dict(), make_network()
    with torch.no_grad():
        for i, conv in enumerate(model.convs):
            conv.weight.copy_(state[f"features_extractor.cnn.{2 * i}.weight"])
            conv.bias.copy_(state[f"features_extractor.cnn.{2 * i}.bias"])
        weight = state["features_extractor.linear.0.weight"]
        model.hidden.weight.copy_(weight.view(512, 64, 7, 7).permute(0, 2, 3, 1).flatten(1))
        model.hidden.bias.copy_(state["features_extractor.linear.0.bias"])
        for ours, theirs in ((model.policy, "action_net"), (model.value, "value_net")):
            ours.weight.copy_(state[f"{theirs}.weight"])
            ours.bias.copy_(state[f"{theirs}.bias"])
    return FlatParameters(model).parameter


def compare(
    config: A2CConfig | PPOConfig, model: ImageNetwork, other: OnPolicyAlgorithm, tolerance: float
) -> None:
    """Four rollouts for both; they must move alike but for rounding."""
    other.set_logger(Logger(None, []))
    write(other, model)
    learner = learner_of(config, PolicyAgent(model), task_of(T, B))
    flat = learner.sync.parameters
    start = flat.parameter.clone()
    for seed in range(4):
        batch = make_batch(seed)
        learner.update(acted(learner.agent, batch), progress=0.0)
        train_other(other, batch)
    ours, theirs = flat.parameter - start, read(other) - start
    assert theirs.norm() > 0
    assert (ours - theirs).norm() < tolerance * theirs.norm()


@pytest.mark.slow
def test_a2c_with_the_numbers_of_baselines() -> None:
    model, config = make_network(), a2c_baselines().learner
    assert isinstance(config, A2CConfig)
    rule = {"alpha": 0.99, "eps": 1e-5, "weight_decay": 0}
    other = sb3.A2C(
        "CnnPolicy",
        DummyVecEnv([Pictures] * B),
        learning_rate=7e-4,
        n_steps=T,
        vf_coef=0.5,
        ent_coef=0.01,
        policy_kwargs={"optimizer_class": RMSpropTFLike, "optimizer_kwargs": rule},
        device="cpu",
    )
    compare(config, model, other, tolerance=0.002)


@pytest.mark.slow
def test_ppo_with_the_numbers_of_baselines() -> None:
    """But for what differs there: one minibatch, since the order is random; advantages as they are
    (their deviation is that of a sample); values not clipped (the smaller loss is not left out);
    Adam's epsilon so small that its place does not matter.
    """
    model, config = make_network(), ppo_baselines().learner
    assert isinstance(config, PPOConfig)
    config = replace(
        config,
        minibatch_size=T * B,
        normalize_advantage=False,
        clip_value=False,
        adam_eps=1e-12,
    )
    other = sb3.PPO(
        "CnnPolicy",
        DummyVecEnv([Pictures] * B),
        learning_rate=2.5e-4,
        n_steps=T,
        batch_size=T * B,
        n_epochs=4,
        clip_range=0.1,
        normalize_advantage=False,
        vf_coef=0.25,
        ent_coef=0.01,
        policy_kwargs={"optimizer_kwargs": {"eps": 1e-12}},
        device="cpu",
    )
    # Without its epsilon Adam makes steps of rounding errors where gradients vanish.
    compare(config, model, other, tolerance=0.02)
