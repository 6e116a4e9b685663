"""Evaluation: whole games on environments of their own, about so many steps in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from accel_rl.samplers.base import Episode, Policy
from accel_rl.samplers.sampler import RolloutSampler


class Evaluation(NamedTuple):
    """``episodes``: the games that count, in order of their ends.

    ``num_unfinished``: games still running when the evaluation gave up, in environments that have
    no limit of their own. ``num_lost``: games cut off because a worker was lost. Neither counts.
    """

    episodes: list[Episode]
    num_unfinished: int
    num_lost: int

    @property
    def num_steps(self) -> int:
        """Of the games that count."""
        return sum(episode.length for episode in self.episodes)


def evaluate(
    sampler: RolloutSampler,
    policy: Policy,
    *,
    num_steps: int,
    max_episode_steps: int,
    show: Callable[[int], None] = lambda num_steps: None,
) -> Evaluation:
    """Let the environments of a freshly started ``sampler`` play ``num_steps`` steps of games.

    Each environment begins games until those that it has finished make up its share of the steps.
    A game that has begun by then is played to its end, and counts. To leave it out would favour
    short games, above all where environments are many; to count it as it stands would take a part
    of a game for a game. Played out, games are not favoured by length: when an environment stops
    follows from the games that it has played, so that by Wald's identity the expected sum of their
    scores is the expected number of them times the expected score of one.

    A game whose worker was lost does not count, nor do its steps: its environment plays another.
    ``max_episode_steps``: the longest game. An environment that after its share and so many steps
    more has not ended its last game is given up. ``show`` is told the steps taken, of all
    environments, after each rollout.

    Raises:
        ValueError: environments wait for each other's games or begin with random steps.
    """
    for name, needed in (("reset_policy", "immediate"), ("decorrelation_steps", 0)):
        if getattr(sampler.config, name) != needed:
            raise ValueError(
                f"{name} is {getattr(sampler.config, name)}; a sampler to evaluate with needs "
                f"SamplerConfig({name}={needed!r})"
            )
    B, T = sampler.config.num_envs, sampler.config.horizon
    share = -(-num_steps // B)
    played = np.zeros(B, np.int64)  # steps of the games that count, by environment
    episodes: list[Episode] = []
    num_lost = 0
    for rollout in range(-(-(share + max_episode_steps) // T)):
        sampler.collect(policy)
        for episode in sampler.take_episodes():
            if played[episode.env_index] >= share:
                continue
            if episode.is_lost:
                num_lost += 1
                continue
            episodes.append(episode)
            played[episode.env_index] += episode.length
        show((rollout + 1) * T * B)
        if (played >= share).all():
            break
    return Evaluation(episodes, int((played < share).sum()), num_lost)
