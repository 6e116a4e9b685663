"""A learner of your own on `ParallelSampler`: REINFORCE with a learned baseline, in 50 lines.

    python examples/custom_learner.py [NUM_ITERATIONS]

The sampler needs nothing but a function from observations to actions, and gives back the whole
rollout, time-major, with the bootstrap observation at its end.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn

from accel_rl.envs import make_env_factory
from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerConfig

GAMMA, LEARNING_RATE = 0.99, 3e-3


def main(num_iterations: int = 300) -> float:
    """Trains on Catch, and returns the mean return of the last iterations, at best 1."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = SamplerConfig(num_envs=32, horizon=9)
    with ParallelSampler(make_env_factory("catch"), config=config, seed=0) as sampler:
        num_actions = sampler.env_spec.num_actions
        num_inputs = int(np.prod(sampler.env_spec.observation_shape))
        body = nn.Sequential(nn.Flatten(-2), nn.Linear(num_inputs, 64), nn.ReLU())
        network = nn.Sequential(body, nn.Linear(64, num_actions + 1))  # logits, then the value
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)

        def policy(step: PolicyInput) -> torch.Tensor:
            """Samples by the seeded noise, so that a run can be repeated."""
            with torch.no_grad():
                logits = network(torch.from_numpy(step.observation))[:, :-1]
            cumulative = logits.softmax(dim=1).cumsum(dim=1)[:, :-1]
            return (torch.from_numpy(step.noise)[:, None] > cumulative).sum(dim=1)

        returns: list[float] = []
        for iteration in range(num_iterations):
            rollout = sampler.collect(policy)
            output = network(torch.from_numpy(rollout.observation))  # [T + 1, B, A + 1]
            logits, value = output[:-1, :, :-1], output[..., -1]
            # A time limit counts as an end, for the sake of short code.
            going_on = torch.from_numpy(~(rollout.terminated | rollout.truncated))
            reward = torch.from_numpy(rollout.reward)
            return_, tail = torch.zeros_like(reward), value[-1].detach()
            for t in reversed(range(len(reward))):
                tail = reward[t] + GAMMA * going_on[t] * tail
                return_[t] = tail
            advantage = return_ - value[:-1]
            action = torch.from_numpy(rollout.action)
            distribution = torch.distributions.Categorical(logits=logits)
            gain = distribution.log_prob(action) * advantage.detach()
            loss = advantage.square().mean() - gain.mean() - 0.01 * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            returns += [episode.episode_return for episode in sampler.take_episodes()]
            if iteration % 50 == 49:
                mean = np.mean(returns[-500:])
                print(f"iteration {iteration + 1}: mean return {mean:.2f}", flush=True)
    return float(np.mean(returns[-500:]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
