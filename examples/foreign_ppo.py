"""A PPO loop written for Gymnasium's vector environments; one line puts ours in their place.

    python examples/foreign_ppo.py [TOTAL_STEPS]

PPO as in Schulman et al. 2017 (arXiv 1707.06347) in one file, on CartPole. The loop knows nothing
of accel_rl. NEXT_STEP is Gymnasium's default mode and ours, and the same seed gives the same
episodes, so that it learns exactly the same with either.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn

from accel_rl.vector import VectorEnv

NUM_ENVS, T, EPOCHS, NUM_MINIBATCHES = 16, 64, 4, 4
GAMMA, GAE_LAMBDA, CLIP_RANGE, LEARNING_RATE = 0.99, 0.95, 0.2, 2.5e-3


def make_envs() -> Any:
    """The line to change: ``gymnasium.make_vec("CartPole-v1", NUM_ENVS, "async")`` before."""
    return VectorEnv("CartPole-v1", NUM_ENVS)


class Network(nn.Module):
    """Logits ``[..., A]`` and values ``[...]`` for observations ``[..., 4]``."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
        )
        self.policy, self.value = nn.Linear(64, num_actions), nn.Linear(64, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(observation)
        return self.policy(features), self.value(features).squeeze(-1)


def main(total_steps: int = 60_000) -> float:
    """Trains, and returns the mean return of the last 50 episodes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    envs = RecordEpisodeStatistics(make_envs(), buffer_length=50)
    network = Network(envs.single_observation_space.shape[0], envs.single_action_space.n)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, eps=1e-5)
    observation, _ = envs.reset(seed=0)
    is_idle = np.zeros(NUM_ENVS, bool)  # the step that resets takes no action: left out of the loss
    for iteration in range(total_steps // (NUM_ENVS * T)):
        rows = []
        for _ in range(T):
            with torch.no_grad():
                logits, value = network(torch.from_numpy(observation))
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            before = observation, action, policy.log_prob(action), value, ~is_idle
            observation, reward, terminated, truncated, _ = envs.step(action.numpy())
            is_idle = terminated | truncated
            rows.append((*before, reward, terminated, is_idle))
        batch = [torch.as_tensor(np.stack(column)) for column in zip(*rows, strict=True)]
        update(network, optimizer, batch, torch.from_numpy(observation))
        if iteration % 10 == 9:
            steps = (iteration + 1) * NUM_ENVS * T
            print(f"{steps} steps: mean return {np.mean(envs.return_queue):.1f}", flush=True)
    envs.close()
    return float(np.mean(envs.return_queue))


def update(
    network: Network, optimizer: Any, batch: list[torch.Tensor], last_observation: torch.Tensor
) -> None:
    """A few epochs over the rollout; all of ``batch`` are ``[T, NUM_ENVS, ...]``."""
    observation, action, behaviour_log_prob, value, valid, reward, terminated, done = batch
    with torch.no_grad():
        next_value = torch.cat([value[1:], network(last_observation)[1][None]])
    advantage, tail = torch.zeros_like(value), torch.zeros(NUM_ENVS)
    for t in reversed(range(T)):
        delta = reward[t] + GAMMA * next_value[t] * ~terminated[t] - value[t]
        tail = (delta + GAMMA * GAE_LAMBDA * tail * ~done[t]).float()
        advantage[t] = tail
    return_ = advantage + value
    columns = [c[valid] for c in (observation, action, behaviour_log_prob, advantage, return_)]
    for _ in range(EPOCHS):
        for indices in torch.randperm(len(columns[0])).chunk(NUM_MINIBATCHES):
            o, a, mu, adv, target = (column[indices] for column in columns)
            logits, v = network(o)
            policy = torch.distributions.Categorical(logits=logits)
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            ratio = (policy.log_prob(a) - mu).exp()
            clipped = ratio.clamp(1 - CLIP_RANGE, 1 + CLIP_RANGE)
            surrogate = torch.minimum(ratio * adv, clipped * adv).mean()
            loss = 0.5 * (v - target).square().mean() - surrogate - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
