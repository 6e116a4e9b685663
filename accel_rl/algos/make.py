"""From settings to an agent and its learner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from accel_rl.agents import CategoricalAgent, EpsilonGreedyAgent, RecurrentAgent
from accel_rl.algos.a2c import A2C, A2CConfig
from accel_rl.algos.dqn import DQN
from accel_rl.algos.dqn_config import DQNConfig
from accel_rl.algos.learner_config import LearnerConfig
from accel_rl.algos.ppo import PPO, PPOConfig
from accel_rl.algos.replay import ReplaySpec
from accel_rl.capture import EAGER, Capture
from accel_rl.envs.base import EnvSpec
from accel_rl.models import make_model, make_q_model, make_recurrent_model
from accel_rl.parallel import ALONE, Exchange, Ranks

AnyAgent = CategoricalAgent | EpsilonGreedyAgent | RecurrentAgent


def make_agent(
    config: LearnerConfig,
    model: str,
    env: EnvSpec,
    device: torch.device,
    *,
    lstm: bool = False,
    evaluates: bool = False,
    capture: Capture = EAGER,
    observations: NDArray[Any] | None = None,
) -> AnyAgent:
    """The agent that learns by ``config``, with fresh parameters on ``device``.

    ``model``: the name of the network, or ``module:function``. ``lstm``: with an LSTM, for A2C and
    PPO. ``evaluates``: it acts as evaluations do. ``capture``: of its acting, and of what its
    learner computes. ``observations``: two of the environment, on which a network of the user's own
    is tried.

    Raises:
        ValueError: there is no such network, or it does not fit the environment; or the algorithm
            cannot learn the environment's spaces.
    """
    env.check_plain(type(config).__name__.removesuffix("Config"))
    shapes = env.observation_shape, env.observation_dtype, env.num_actions
    if lstm:
        assert isinstance(config, A2CConfig | PPOConfig)
        return RecurrentAgent(make_recurrent_model(model, *shapes, device), capture)
    if not isinstance(config, DQNConfig):
        return CategoricalAgent(make_model(model, *shapes, device, observations), capture)
    more = config.num_atoms, config.dueling
    network = make_q_model(model, *shapes, *more, device, observations)
    support = None
    if config.num_atoms > 1:
        support = torch.linspace(config.v_min, config.v_max, config.num_atoms, device=device)
    epsilon = config.epsilon_evaluation if evaluates else config.epsilon_initial
    return EpsilonGreedyAgent(network, support, torch.tensor([epsilon], device=device), capture)


def evaluating(config: LearnerConfig, agent: AnyAgent) -> AnyAgent:
    """An agent of the same network that acts as in evaluations."""
    if isinstance(agent, EpsilonGreedyAgent):
        assert isinstance(config, DQNConfig)
        return agent.evaluating(config.epsilon_evaluation)
    return agent


def make_learner(
    config: LearnerConfig,
    agent: AnyAgent,
    exchange: Exchange,
    env: EnvSpec,
    num_envs: int,
    horizon: int,
    seed: int,
    ranks: Ranks = ALONE,
) -> A2C | PPO | DQN:
    """The learner that ``config`` is of, for rollouts ``[horizon, num_envs]``.

    ``seed``: of its own randomness. ``ranks``: which of the learners that divide the replay.

    Raises:
        ValueError: ``config`` is of another class, as one derived from these; its replay does not
            fit these rollouts, or the memory of its device.
    """
    if type(config) not in (A2CConfig, PPOConfig, DQNConfig):
        raise ValueError(
            f"config is of class {type(config).__name__}, for which there is no learner; use "
            "A2CConfig, PPOConfig or DQNConfig itself, or build the learner directly"
        )
    if isinstance(config, DQNConfig):
        assert isinstance(agent, EpsilonGreedyAgent)
        spec = _replay_spec(config, env, num_envs, horizon, ranks.size)
        return DQN(agent, config, exchange, spec, seed, ranks)
    assert not isinstance(agent, EpsilonGreedyAgent)
    if isinstance(config, PPOConfig):
        return PPO(agent, config, exchange, seed)
    assert isinstance(config, A2CConfig)
    return A2C(agent, config, exchange)


def _replay_spec(
    config: DQNConfig, env: EnvSpec, num_envs: int, horizon: int, num_learners: int
) -> ReplaySpec:
    whole = ReplaySpec(  # checked as such, since the options are of all learners together
        size=config.replay_size,
        num_envs=num_envs * num_learners,
        horizon=horizon,
        observation_shape=env.observation_shape,
        observation_dtype=getattr(torch, env.observation_dtype.name),
        frame_stack=env.frame_stack,
        n_step=config.n_step,
        gamma=config.gamma,
    )
    return replace(whole, size=-(-whole.size // num_learners), num_envs=num_envs)
