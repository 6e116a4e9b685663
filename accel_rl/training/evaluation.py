"""The score of a policy over whole games, and evaluations while a run goes on.

The protocol is that of Stooke and Abbeel 2018 (arXiv:1803.02811, section 4): 125,000 steps, at most
27,000 steps a game, the game's own score over all lives, in environments of their own. The policy
acts as the learner's settings say (epsilon 0.05 for DQN, 0.001 for its successors) and sees what it
saw in training. Which games count, `accel_rl.samplers.evaluate` decides and explains; they may take
more steps than 125,000, where the paper leaves open what becomes of unfinished ones.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accel_rl.agents import Agent, normalizer_state
from accel_rl.config import TrainConfig
from accel_rl.envs import is_atari_game
from accel_rl.envs.batched import numbered
from accel_rl.parallel import Ranks, Team
from accel_rl.runs.tables import read_rows
from accel_rl.samplers import (
    ActionServer,
    Episode,
    Evaluation,
    ParallelSampler,
    SerialSampler,
    evaluate,
)
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.system.stopping import Interrupted, StopRequest
from accel_rl.training.metrics import info_means, is_due

MAX_STEPS = 27_000
"""of one Atari game"""
LONGEST_STEPS = 100_000
"""of any other game, at least, before it is given up"""
EVALUATION_ENVS = 16
"""environments of an evaluation; fewer if it has fewer games or steps"""
HORIZON = 20
"""steps between two looks at which games have ended"""


class Evaluator:
    """Plays ``evaluation_steps`` steps of games every ``evaluation_interval`` steps of training.

    Its environments and random numbers are its own: training goes on as if it had not been.
    Learners of a ``team`` have one each, and play at the same time: each in its share of the
    environments, which are as many as one learner alone would have. They are numbered from
    ``first_env`` on, behind those of training.
    """

    def __init__(
        self,
        config: TrainConfig,
        agent: Agent,
        device: torch.device,
        team: Team,
        first_env: int = 0,
    ) -> None:
        self._config = config
        self._agent = agent
        self._device = device
        self._team = team
        self._first_env = first_env
        self._evaluated_steps = self._num_evaluations = 0

    def get_state(self) -> dict[str, int]:
        return {"steps": self._evaluated_steps, "number": self._num_evaluations}

    def set_state(self, state: Mapping[str, int]) -> None:
        self._evaluated_steps, self._num_evaluations = state["steps"], state["number"]

    @property
    def others(self) -> dict[str, Any]:
        """State in checkpoints that a policy needs beside its parameters."""
        return normalizer_state(self._agent)

    def is_due(self, steps: int) -> bool:
        """Return whether a multiple of the interval was passed since the last evaluation."""
        return is_due(self._config.evaluation_interval, self._evaluated_steps, steps)

    def evaluate(self, steps: int, stop: StopRequest) -> dict[str, float]:
        """Scores after ``steps`` steps of training, as a row for ``evaluation.csv``.

        Of several learners the first one's row is about the games of all.

        Raises:
            Interrupted: a stop was asked for meanwhile, of the first learner or of another.
            TeamError: another learner is gone.
        """
        row = self._play(self._config.learner.evaluating(self._agent), stop)
        self._evaluated_steps = steps
        self._num_evaluations += 1
        return row

    def _play(self, agent: Agent, stop: StopRequest) -> dict[str, float]:
        def check(num_steps: int) -> None:
            if stop.is_asked():
                assert stop.received is not None
                raise Interrupted(stop.received)

        config, result = self._config, Evaluation([], 0, 0)
        info_keys: tuple[str, ...] = ()
        # More environments than games would have none to play.
        num_envs = min(EVALUATION_ENVS, config.evaluation_episodes or config.evaluation_steps)
        own = share_of(num_envs, self._team.ranks)
        numbers = {"max_episode_steps": longest_game(config.env, config.evaluation_steps)}
        if config.evaluation_episodes is None:
            numbers["num_steps"] = -(-config.evaluation_steps // num_envs) * len(own)
        else:
            each, more = divmod(config.evaluation_episodes, num_envs)
            numbers["num_episodes"] = sum(each + (env < more) for env in own)
        try:
            if own:
                with closing(self._make_sampler(own)) as sampler:
                    info_keys = sampler.env_spec.info_keys
                    result = play_games(sampler, agent, check, **numbers)
        except Interrupted:
            self._gather(None)
            raise
        result = self._gather(result)
        raw = np.array([episode.episode_return for episode in result.episodes] or [np.nan])
        return {
            "episodes": len(result.episodes),
            "unfinished_episodes": result.num_unfinished,
            "lost_episodes": result.num_lost,
            "evaluation_steps": result.num_steps,
            "episode_return_raw_mean": float(raw.mean()),
            "episode_return_raw_std": float(raw.std()),
            "episode_return_raw_min": float(raw.min()),
            "episode_return_raw_max": float(raw.max()),
            **info_means(result.episodes, info_keys),
        }

    def _make_sampler(self, own: range) -> RolloutSampler:
        config, rank = with_game_limit(self._config), self._team.ranks.rank
        key = self._num_evaluations, *([rank] if rank else [])  # one learner's, or the first one's
        seeds = np.random.SeedSequence([config.seed, 1], spawn_key=key)
        return make_evaluation_sampler(
            config,
            len(own),
            seeds,
            self._device,
            num_workers=0 if config.sampler.num_workers == 0 else None,
            first_env=self._first_env + own.start,
        )

    def _gather(self, own: Evaluation | None) -> Evaluation:
        """Return the games of all learners in the first one; in the others, their own.

        Args:
            own: None if the evaluation was broken off, which the first learner must know, too.
        """
        team, nothing = self._team, Evaluation([], 0, 0)
        if not team.ranks.is_first:
            team.post(own)
            return own or nothing
        parts = [own or nothing]
        for messages in team.read(waits=True).values():
            if messages in ([], [None]):  # of a learner that is lost, or has broken off
                if own is not None:
                    raise Interrupted(signal.SIGTERM)
                continue
            episodes, *numbers = messages[0]
            parts.append(Evaluation([Episode(*each) for each in episodes], *numbers))
        episodes, unfinished, lost = zip(*parts, strict=True)
        return Evaluation(list(chain(*episodes)), sum(unfinished), sum(lost))


def share_of(num_envs: int, ranks: Ranks) -> range:
    """Return the numbers of a learner's environments among ``num_envs``, perhaps none."""
    each, more = divmod(num_envs, ranks.size)
    first = ranks.rank * each + min(ranks.rank, more)
    return range(first, first + each + (ranks.rank < more))


def lacks_last_evaluation(run_dir: Path, config: TrainConfig) -> bool:
    """Return whether a run that has taken all its steps was stopped before its last evaluation."""
    interval = config.evaluation_interval
    due = config.planned_steps // interval * interval if interval else 0
    rows = read_rows(run_dir / "evaluation.csv", "steps") if due else []
    return due > 0 and (not rows or rows[-1]["steps"] < due)


def with_game_limit(config: TrainConfig) -> TrainConfig:
    """Return ``config`` with games of Atari that end after `MAX_STEPS`."""
    atari = dataclasses.replace(config.atari, max_episode_steps=MAX_STEPS)
    return dataclasses.replace(config, atari=atari)


def longest_game(env: str, num_steps: int = 0) -> int:
    """Return after how many steps a game is given up, in an evaluation of about ``num_steps``."""
    return MAX_STEPS if is_atari_game(env) else max(LONGEST_STEPS, num_steps)


def make_evaluation_sampler(
    config: TrainConfig,
    num_envs: int,
    seeds: np.random.SeedSequence,
    device: torch.device,
    *,
    num_workers: int | None,
    first_env: int = 0,
) -> RolloutSampler:
    """Return a sampler of a run's games for evaluations, not started."""
    factory = numbered(config.env_factory, first_env)
    sampler_config = dataclasses.replace(
        config.sampler,
        num_envs=num_envs,
        horizon=HORIZON,
        num_groups=1,
        num_workers=num_workers,
        reset_policy="immediate",
        decorrelation_steps=0,
    )
    seed = int(seeds.generate_state(1)[0])
    if num_workers == 0:
        return SerialSampler(factory, config=sampler_config, seed=seed)
    return ParallelSampler(
        factory, config=sampler_config, seed=seed, drives_gpu=device.type == "cuda"
    )


def play_games(
    sampler: RolloutSampler, agent: Agent, show: Callable[[int], None], **numbers: Any
) -> Evaluation:
    """Start ``sampler`` and play games.

    Args:
        show: called with the steps taken; it may raise to break off.
    """
    device = next(agent.model.parameters()).device
    with ActionServer(agent, sampler, device) as server:
        sampler.start(None, lambda num_steps: show(0))
        return evaluate(sampler, server, show=show, **numbers)
