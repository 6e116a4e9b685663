"""What the parts of a run cost on this machine, each measured alone: what the speed model is given.

No worker is started and nothing is written: a few simulators step in this process, their
observations fill a rollout of the size that one learner has, and that is acted on and learned from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from accel_rl.algos.replay_config import ReplayConfig, with_small_replay
from accel_rl.config import TrainConfig
from accel_rl.envs import probe_spec
from accel_rl.parallel import Ranks, SharedGroup
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import PolicyInput
from accel_rl.training.build import build_rollouts, sampler_share
from accel_rl.training.rollouts import RolloutRun
from accel_rl.training.torch_setup import has_small_updates, learning_threads, num_learning_threads
from benchmarks.scaling.speed_model import Costs, all_reduce_seconds

_NUM_SIMULATORS = 4
_MOST_REPLAY_STEPS = 50_000  # enough to be no part of any cache


class Measured(NamedTuple):
    """Seconds of one step of one environment (on one core), of the actions of one group, of one
    iteration's update and of the pushes in it, which ``update`` does not count; the optimizer steps
    of an iteration, bytes of one gradient, and seconds of its all-reduce between two learners, as
    two threads here or by the link between two GPUs; NaN where none was measured.
    """

    simulator: float
    inference: float
    update: float
    pushes: float
    num_updates: float
    gradient_bytes: int
    pair: float

    def costs(self, num_learners: int, cores: float) -> Costs:
        """For the model: of one of ``num_learners`` on ``cores`` of this machine together."""
        exchange = self.pushes
        if num_learners > 1 and not self.pushes:
            exchange = self.num_updates * all_reduce_seconds(self.pair, num_learners, cores)
        return Costs(self.simulator, self.inference, self.update, exchange)


class PartsOfOne:
    """The parts of one of ``num_learners`` learners of a run, ready to be measured.

    Raises:
        ValueError: the config cannot be had here.
    """

    def __init__(self, config: TrainConfig, num_learners: int) -> None:
        factory = config.env_factory
        spec = probe_spec(factory)
        self._config = alone(config, num_learners, spec.frame_stack)
        self._num_learners = num_learners
        few = dataclasses.replace(
            self._config.sampler, num_envs=_NUM_SIMULATORS, num_groups=1, decorrelation_steps=0
        )
        self._rng = np.random.default_rng(0)
        with contextlib.ExitStack() as undo:
            self._simulators = SerialSampler(factory, config=few, seed=config.seed)
            undo.callback(self._simulators.close)
            self._simulators.start()
            self._run = build_rollouts(self._config, self._config.seed)
            undo.callback(self._run.close)
            self._undo = undo.pop_all()
        is_small = has_small_updates(
            self._config, self._config.steps_per_iteration, self._run.exchange
        )
        self._num_threads = num_learning_threads(overlaps=config.overlap, is_small=is_small)
        self._steps = 0
        try:
            self._fill()
            while not self._run.exchange.num_updates:
                self._update()
        except BaseException:
            self.close()
            raise

    def measure(self, seconds: float) -> Measured:
        """Each part for a fourth of ``seconds``, and at least twice."""
        seconds /= 4
        self._run.exchange.take_metrics()
        before = self._run.exchange.num_updates
        simulator = median_seconds(self._simulate, seconds)
        inference = median_seconds(self._act, seconds)

        times: list[float] = []

        def update() -> None:
            began = perf_counter()
            self._update()
            times.append(perf_counter() - began)

        iteration, num = median_seconds(update, seconds), len(times)
        if self._run.exchange.num_updates - before < num:  # some iterations have no update
            iteration = statistics.fmean(times)
        pushes = self._run.exchange.take_metrics().get("push_seconds", 0.0) / num
        gradient = self._run.exchange.parameters.gradient
        return Measured(
            simulator=simulator / (_NUM_SIMULATORS * self._config.sampler.horizon),
            inference=inference,
            update=max(0.0, iteration - pushes),
            pushes=pushes,
            num_updates=(self._run.exchange.num_updates - before) / num,
            gradient_bytes=gradient.nbytes,
            pair=self._measure_pair(gradient, seconds),
        )

    def close(self) -> None:
        """Ends the simulators. Calling it again does nothing."""
        self._undo.close()

    def __enter__(self) -> PartsOfOne:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def parts(self) -> RolloutRun:
        """Of the one learner."""
        return self._run

    def _simulate(self) -> None:
        self._simulators.collect(self._random_actions)

    def _random_actions(self, step: PolicyInput) -> NDArray[np.int64]:
        return self._rng.integers(self._simulators.env_spec.num_actions, size=len(step.noise))

    def _fill(self) -> None:
        """The learner's rollout with observations of the few simulators, again and again."""
        self._simulate()
        rollout = self._run.sampler.rollout
        columns = np.arange(rollout.action.shape[1]) % _NUM_SIMULATORS
        rollout.observation[:] = self._simulators.rollout.observation[:, columns]
        rollout.action[:] = self._simulators.rollout.action[:, columns]
        rollout.valid[:] = True
        rollout.final_step[:] = -1

    def _act(self) -> None:
        sampler = self._config.sampler
        columns = slice(0, sampler.num_envs // sampler.num_groups)
        noise = self._rng.random(columns.stop)
        observation = self._run.sampler.rollout.observation[0, columns]
        is_first = np.zeros(columns.stop, np.bool_)
        reward = self._run.sampler.rollout.reward[0, columns]
        self._run.server(PolicyInput(observation, noise, 0, columns, is_first, reward))

    def _update(self) -> None:
        self._steps += self._config.steps_per_iteration
        with learning_threads(self._num_threads):
            self._run.learner.update(self._run.server.finish(), 0.0, self._steps)
        if self._run.device.type == "cuda":
            torch.cuda.synchronize(self._run.device)

    def _measure_pair(self, gradient: torch.Tensor, seconds: float) -> float:
        """NaN where there is no all-reduce."""
        if self._num_learners == 1 or self._config.parallel.sync == "store":
            return float("nan")
        if gradient.is_cuda and torch.cuda.device_count() >= self._num_learners:
            return link_seconds(gradient, seconds)
        return _all_reduce_pair(gradient, seconds)


def alone(config: TrainConfig, num_learners: int, frame_stack: int) -> TrainConfig:
    """The config of a run that does alone what one of ``num_learners`` does of the run ``config``.

    With a serial sampler; and in the DQN family it learns from the start, with a smaller replay.
    ``frame_stack``: the environment's.
    """
    share = sampler_share(config, Ranks(size=num_learners))
    learner, total_steps = config.learner, config.total_steps
    if config.parallel.sync != "store":
        for name, batch in learner.batches(config.sampler).items():
            if name != "num_envs":
                learner = dataclasses.replace(learner, **{name: batch.size // num_learners})
    if isinstance(learner, ReplayConfig):
        learner = with_small_replay(learner, share, frame_stack, _MOST_REPLAY_STEPS)
        total_steps = max(total_steps, learner.learning_starts + 1)
    return dataclasses.replace(
        config,
        sampler=dataclasses.replace(share, num_workers=0),
        learner=learner,
        total_steps=total_steps,
        schedule_steps=None,
        learners=1,
        gpus=None,
        device="cpu" if config.gpus == 0 else config.device,
        evaluation_interval=0,
    )


def median_seconds(act: Callable[[], None], seconds: float) -> float:
    """Of the times that ``act`` takes, after one that is not counted."""
    act()
    times: list[float] = []
    end = perf_counter() + seconds
    while not times or perf_counter() < end:
        began = perf_counter()
        act()
        times.append(perf_counter() - began)
    return statistics.median(times)


def link_seconds(gradient: torch.Tensor, seconds: float) -> float:
    """Seconds in which ``gradient`` crosses the link from the first GPU to the second.

    An all-reduce between two sends half of it each way, twice: that takes as long, by whatever link
    there is, NVLink or PCIe.
    """
    here, there = (gradient.to(torch.device("cuda", index)) for index in range(2))

    def send() -> None:
        there.copy_(here)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

    return median_seconds(send, seconds)


def _all_reduce_pair(gradient: torch.Tensor, seconds: float) -> float:
    """Seconds of one all-reduce through shared memory, between two threads of this process."""
    groups = [SharedGroup(rank, 2, timeout_seconds=30.0) for rank in range(2)]
    for group in groups:
        group.connect([each.address for each in groups])
    few = 8  # between two looks at the clock, which is one thread's

    def reduce(group: SharedGroup, x: torch.Tensor) -> None:
        for _ in range(few):
            group.sum_(x)

    first, second = torch.ones_like(gradient), torch.ones_like(gradient)

    def both() -> None:
        other = threading.Thread(target=reduce, args=(groups[1], second))
        other.start()
        reduce(groups[0], first)
        other.join()

    median = median_seconds(both, seconds) / few
    for group in groups:
        group.close()
    return median
