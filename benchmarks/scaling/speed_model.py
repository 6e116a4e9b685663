"""How fast a run should be, from what its parts cost alone.

A learner has ``C`` cores (less than one where learners share cores), ``B`` environments in ``G``
groups, and rollouts of ``T`` steps. With ``s`` core-seconds for a step of one environment and ``i``
seconds for the actions of one group, one step of all its environments takes

    own device, G > 1    max(S, G * i, S / G + i): inference hides behind other groups' simulators
    on its cores, G > 1  max((B * s + G * i) / C, S, G * i, S / G + i): it takes core time from them
    G = 1                S + i: there is nothing to hide behind

where ``S = G * ceil(B / G / W) * s`` is the work of the busiest of ``W = min(C, B / G)`` workers.
An iteration is ``T`` such steps, the update, and the exchange with the others, one after another.
Where they overlap it is whichever takes longer, the sampling or the rest, and on the same cores no
less than the core time of both. Learners do the same side by side. What runs on less than a core
takes 1 / C times as long. Not in it: caches and memory that cores share, processes in each other's
way, waiting for the slowest of several workers or learners, logging and checkpoints. So it is a
bound that runs come near to.

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
    ``has_device``. ``overlaps``: it samples while it learns.
    """

    num_envs: int
    horizon: int
    num_groups: int
    cores: float
    has_device: bool
    overlaps: bool = False


class Speed(NamedTuple):
    """Of one iteration: seconds in each of its parts, and in all; and steps a second of all
    learners.
    """

    sampling: float
    update: float
    exchange: float
    iteration: float
    steps_per_second: float
    sampling_steps_per_second: float


def predict(costs: Costs, shape: Shape, num_learners: int = 1) -> Speed:
    """The model."""
    slowness = 1.0 if shape.has_device else max(1.0, 1.0 / shape.cores)
    sampling = shape.horizon * _step_seconds(costs, shape, slowness)
    update = costs.update * slowness
    iteration = sampling + update + costs.exchange
    if shape.overlaps:
        iteration = max(sampling, update + costs.exchange)
        if not shape.has_device:
            iteration = max(iteration, shape.horizon * _work(costs, shape) / shape.cores + update)
    steps = num_learners * shape.num_envs * shape.horizon
    return Speed(sampling, update, costs.exchange, iteration, steps / iteration, steps / sampling)


def all_reduce_seconds(pair_seconds: float, num_learners: int, cores: float) -> float:
    """Of one all-reduce among ``num_learners`` on ``cores``, from one between two.

    A ring of GPUs passes ``2 * (n - 1) / n`` of the gradient over each link, at the same time; in
    shared memory it is at most that, but where learners have less than a core each.
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
        step = max(step, _work(costs, shape) / shape.cores)
    return step


def _work(costs: Costs, shape: Shape) -> float:
    """Core-seconds of one step of every environment, where inference takes core time too."""
    return shape.num_envs * costs.simulator + shape.num_groups * costs.inference
