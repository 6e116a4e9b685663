"""How fast a run should be, from what its parts cost alone.

A learner has ``C`` cores (less than one where learners share cores), ``B`` environments in ``G``
groups, and rollouts of ``T`` steps. With ``s`` core-seconds for a step of one environment and ``i``
seconds for the actions of one group, one step of all its environments takes

    own device, G > 1    max(S, G * i, S / G + i): inference hides behind other groups' simulators
    on its cores, G > 1  max((B * s + G * i) / C, S, G * i, S / G + i): it takes core time from them
    G = 1                S + i: there is nothing to hide behind

where ``S = G * ceil(B / G / W) * s`` is the work of the busiest of ``W = min(C, B / G)`` workers.
An iteration is ``T`` such steps, the update, and the exchange with the others, one after another;
learners do the same side by side. What runs on less than a core takes 1 / C times as long. Not in
it: caches and memory that cores share, processes in each other's way, waiting for the slowest of
several workers or learners, logging and checkpoints. So it is a bound that runs come near to.

Pure functions of numbers; times in seconds.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Costs(NamedTuple):
    """What the parts take alone.

    ``simulator``: a step of one environment on one core, its observation included. ``inference``:
    actions of one group. ``update``: of one iteration, without ``exchange``, which is all that an
    iteration spends in all-reduces or in pushes.
    """

    simulator: float
    inference: float
    update: float
    exchange: float = 0.0


class Shape(NamedTuple):
    """Of one learner. ``cores``: that its simulators work on; on these its network runs too, unless
    ``has_device``.
    """

    num_envs: int
    horizon: int
    num_groups: int
    cores: float
    has_device: bool


class Speed(NamedTuple):
    """Of one iteration: seconds in each of its parts; and steps a second of all learners."""

    sampling: float
    update: float
    exchange: float
    steps_per_second: float
    sampling_steps_per_second: float

    @property
    def iteration(self) -> float:
        """Seconds in all."""
        return self.sampling + self.update + self.exchange


def predict(costs: Costs, shape: Shape, num_learners: int = 1) -> Speed:
    """The model."""
    slowness = 1.0 if shape.has_device else max(1.0, 1.0 / shape.cores)
    sampling = shape.horizon * _step_seconds(costs, shape, slowness)
    update = costs.update * slowness
    steps = num_learners * shape.num_envs * shape.horizon
    return Speed(
        sampling,
        update,
        costs.exchange,
        steps / (sampling + update + costs.exchange),
        steps / sampling,
    )


def find_limits(costs: Costs, shape: Shape) -> dict[str, float]:
    """By part, the share of an iteration's time that were saved if it took none; largest first."""
    whole = predict(costs, shape).iteration
    saved = {
        name: 1.0 - predict(costs._replace(**{name: 0.0}), shape).iteration / whole
        for name in Costs._fields
    }
    return dict(sorted(saved.items(), key=lambda item: -item[1]))


def all_reduce_seconds(pair_seconds: float, num_learners: int, cores: float) -> float:
    """Of one all-reduce among ``num_learners`` on ``cores``, from one between two.

    A ring passes ``2 * (n - 1) / n`` of the gradient over each link, at the same time but where
    learners have less than a core each.
    """
    share = 2 * (num_learners - 1) / num_learners
    return pair_seconds * share * max(1.0, num_learners / cores)


def _step_seconds(costs: Costs, shape: Shape, slowness: float) -> float:
    """One step of every environment of one learner."""
    groups, inference = shape.num_groups, costs.inference * slowness
    group = shape.num_envs / groups
    workers = min(shape.cores, group)
    slice_size = math.ceil(group / int(workers)) if workers >= 1 else group / workers
    simulating = groups * slice_size * costs.simulator
    if groups == 1:
        return simulating + inference
    step = max(simulating, groups * inference, simulating / groups + inference)
    if not shape.has_device:
        work = shape.num_envs * costs.simulator + groups * costs.inference
        step = max(step, work / shape.cores)
    return step
