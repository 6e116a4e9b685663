"""Evaluation: a number of whole games, or of steps in whole games, on environments of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from accel_rl.samplers.base import Episode, Policy
from accel_rl.samplers.sampler import RolloutSampler


class Evaluation(NamedTuple):
    """The games of an evaluation.

    Attributes:
        episodes: the games that count, in order of their ends.
        num_unfinished: number of abandoned games, in environments without a limit of their own.
        num_lost: number of games that were cut off because a worker was lost.
    """

    episodes: list[Episode]
    num_unfinished: int
    num_lost: int

    @property
    def num_steps(self) -> int:
        """The number of steps of the games that count."""
        return sum(episode.episode_length for episode in self.episodes)


def evaluate(
    sampler: RolloutSampler,
    policy: Policy,
    *,
    num_steps: int | None = None,
    num_episodes: int | None = None,
    max_episode_steps: int,
    show: Callable[[int], None] = lambda num_steps: None,
) -> Evaluation:
    """Play whole games with a freshly started sampler.

    With ``num_episodes``, each environment plays its share of the games, one more than others at
    most. With ``num_steps``, each starts games until its finished games make up its share of the
    steps. The game that runs at that moment is played to its end and counts. This favours neither
    short nor long games: when an environment stops depends only on the games that it has played, so
    by Wald's identity the expected sum of the scores is the expected number of games times the
    expected score of a game. A game whose worker was lost does not count; its environment plays
    another one.

    Args:
        sampler: a started sampler with ``reset_policy="immediate"`` and ``decorrelation_steps=0``.
        policy: the policy to evaluate.
        num_steps: steps of all environments together, if ``num_episodes`` is None.
        num_episodes: games of all environments together.
        max_episode_steps: length of the longest game. An environment in a longer one is abandoned.
        show: called after each rollout with the number of steps taken by all environments.

    Returns:
        The games that count, and the numbers of games that do not.

    Raises:
        ValueError: the sampler has other settings, or both numbers are given, or none.
    """
    if (num_steps is None) == (num_episodes is None):
        raise ValueError(f"num_steps={num_steps} and num_episodes={num_episodes}; give one of them")
    for name, needed in (("reset_policy", "immediate"), ("decorrelation_steps", 0)):
        if (given := getattr(sampler.config, name)) != needed:
            raise ValueError(f"{name} is {given}; a sampler that evaluates needs {name}={needed!r}")
    B, T = sampler.config.num_envs, sampler.config.horizon
    # Of the games that count, by environment: games, or else their steps.
    wanted = np.full(B, -(-(num_steps or 0) // B))
    if num_episodes is not None:
        wanted = num_episodes // B + (np.arange(B) < num_episodes % B)
    played = np.zeros(B, np.int64)
    running = np.zeros(B, np.int64)  # steps of the running game, or a few less
    is_given_up = np.zeros(B, np.bool_)
    episodes: list[Episode] = []
    num_lost = num_taken = 0
    while ((played < wanted) & (running < max_episode_steps) & ~is_given_up).any():
        sampler.collect(policy)
        running += T
        for episode in sampler.take_episodes():
            b = episode.env_index
            running[b] = 0
            is_given_up[b] |= episode.episode_length > max_episode_steps
            if played[b] >= wanted[b] or is_given_up[b]:
                continue
            if episode.is_lost:
                num_lost += 1
                continue
            episodes.append(episode)
            played[b] += episode.episode_length if num_episodes is None else 1
        num_taken += T * B
        show(num_taken)
    return Evaluation(episodes, int((played < wanted).sum()), num_lost)
