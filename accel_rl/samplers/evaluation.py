"""Evaluation: whole episodes on environments of their own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from accel_rl.samplers.base import Episode, Policy, Sampler


class Evaluation(NamedTuple):
    """``episodes``: those that count. ``num_unfinished``: environments that owe some of theirs."""

    episodes: list[Episode]
    num_unfinished: int
    num_steps: int

    @property
    def mean_raw_return(self) -> float:
        """Mean score; NaN if no episode was finished."""
        return float(np.mean([e.raw_return for e in self.episodes])) if self.episodes else np.nan


def evaluate(
    sampler: Sampler, policy: Policy, *, episodes_per_env: int, max_steps_per_env: int
) -> Evaluation:
    """Let every environment of a freshly started ``sampler`` play ``episodes_per_env`` episodes.

    The first so many episodes of each environment count, however long they are: counting whatever
    ends within a budget of steps would favour short episodes. At most ``max_steps_per_env`` steps
    of each environment are taken; how many environments had not finished by then is reported.
    """
    episodes: list[Episode] = []
    counted = np.zeros(sampler.config.num_envs, np.int64)
    rollouts = -(-max_steps_per_env // sampler.config.horizon)
    num_steps = 0
    for _ in range(rollouts):
        sampler.collect(policy)
        num_steps += sampler.config.num_envs * sampler.config.horizon
        for episode in sampler.take_episodes():
            if counted[episode.env_index] < episodes_per_env:
                counted[episode.env_index] += 1
                episodes.append(episode)
        if (counted == episodes_per_env).all():
            break
    return Evaluation(episodes, int((counted < episodes_per_env).sum()), num_steps)
