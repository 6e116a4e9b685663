"""Evaluation while a run goes on: whole games in environments of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch

from accel_rl.algos import AnyAgent, evaluating
from accel_rl.config import TrainConfig
from accel_rl.envs.base import EnvFactory
from accel_rl.samplers import (
    ActionServer,
    ParallelSampler,
    SamplerConfig,
    SerialSampler,
    evaluate,
)
from accel_rl.samplers.base import PolicyInput, Sampler
from accel_rl.training.stopping import Interrupted, StopRequest

MAX_STEPS = 27_000
"""of one game: Stooke and Abbeel 2018, as for training"""
HORIZON = 20
"""steps between two looks at which games have ended"""


class Evaluator:
    """Plays ``evaluation_episodes`` games, one in each of as many environments, every interval.

    Its environments and random numbers are its own: training goes on as if it had not been. Each of
    ``agents`` plays the same games; the keys are put before the names of its scores.
    """

    def __init__(
        self,
        config: TrainConfig,
        factory: EnvFactory,
        agents: Mapping[str, AnyAgent],
        device: torch.device,
    ) -> None:
        self._config = config
        self._factory = factory
        self._agents = agents
        self._device = device
        self._evaluated_steps = self._num_evaluations = 0

    def get_state(self) -> dict[str, int]:
        return {"steps": self._evaluated_steps, "number": self._num_evaluations}

    def set_state(self, state: Mapping[str, int]) -> None:
        self._evaluated_steps, self._num_evaluations = state["steps"], state["number"]

    def is_due(self, steps: int) -> bool:
        """Whether a multiple of the interval was passed since the last evaluation."""
        interval = self._config.evaluation_interval
        return steps // interval > self._evaluated_steps // interval

    def evaluate(self, steps: int, stop: StopRequest) -> dict[str, float]:
        """Scores after ``steps`` steps of training, as a row for ``evaluation.csv``.

        Raises:
            Interrupted: a stop was asked for meanwhile.
        """
        row: dict[str, float] = {}
        for prefix, agent in self._agents.items():
            scores = self._play(evaluating(self._config.learner, agent), stop)
            row |= {prefix + name: score for name, score in scores.items()}
        self._evaluated_steps = steps
        self._num_evaluations += 1
        return row

    def _play(self, agent: AnyAgent, stop: StopRequest) -> dict[str, float]:
        sampler = self._make_sampler()
        with (
            closing(sampler),
            ActionServer(agent, sampler, self._device) as server,
        ):

            def policy(step: PolicyInput) -> Any:
                if stop.received is not None:
                    raise Interrupted(stop.received)
                return server(step)

            sampler.start()
            result = evaluate(sampler, policy, episodes_per_env=1, max_steps_per_env=MAX_STEPS)
        raw = np.array([episode.raw_return for episode in result.episodes] or [np.nan])
        return {
            "episodes": len(result.episodes),
            "unfinished_episodes": result.num_unfinished,
            "episode_return_raw_mean": float(raw.mean()),
            "episode_return_raw_std": float(raw.std()),
            "episode_return_raw_min": float(raw.min()),
            "episode_return_raw_max": float(raw.max()),
        }

    def _make_sampler(self) -> Sampler:
        num_envs = self._config.evaluation_episodes
        sampler_config = whole_games(self._config.sampler, num_envs, HORIZON)
        seeds = np.random.SeedSequence([self._config.seed, 1], spawn_key=(self._num_evaluations,))
        seed = int(seeds.generate_state(1)[0])
        if self._config.serial:
            return SerialSampler(self._factory, sampler_config, seed)
        return ParallelSampler(self._factory, sampler_config, seed, list(self._config.cpus) or None)


def whole_games(config: SamplerConfig, num_envs: int, horizon: int) -> SamplerConfig:
    """The sampler settings of a training run, made fit for counting whole games."""
    return dataclasses.replace(
        config,
        num_envs=num_envs,
        horizon=horizon,
        num_groups=1,
        num_workers=None,
        workers_per_core=1,
        reset_policy="immediate",
        decorrelation_steps=0,
        final_observation_slots=horizon,  # a game may be cut off at each step
    )
