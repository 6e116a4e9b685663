"""Which worker steps which environments."""

from __future__ import annotations

import math

import numpy as np

from accel_rl.samplers.base import SamplerConfig
from accel_rl.topology import CorePlan, Machine, Seat, plan_cores

ALONE = Seat()


def plan_workers(
    config: SamplerConfig,
    cpus: list[int] | None = None,
    drives_gpu: bool = False,
    seat: Seat = ALONE,
    machine: Machine | None = None,
) -> CorePlan:
    """How many workers, and the CPUs of each.

    ``cpus``: the only ones to use. ``drives_gpu``: keep a core for the server. ``seat``: whose
    share of the cores this is. ``machine``: to plan for; None: this one.

    Raises:
        ValueError: ``num_workers`` does not fit ``num_envs`` and ``num_groups``, or ``cpus`` cannot
            be had.
    """
    most = config.num_envs // config.num_groups * config.workers_per_core
    num_workers = config.num_workers
    if num_workers is None:
        plan = plan_cores(
            workers_per_core=config.workers_per_core,
            drives_gpu=drives_gpu,
            cpus=cpus,
            machine=machine,
            **seat._asdict(),
        )
        num_workers = min(len(plan.worker_cpus), most)
    elif num_workers > most or num_workers % config.workers_per_core:
        multiple = config.workers_per_core
        raise ValueError(
            f"num_workers is {num_workers}; with num_envs={config.num_envs}, "
            f"num_groups={config.num_groups} and workers_per_core={multiple} it must be a multiple "
            f"of {multiple} and at most {most}: use fewer workers or more environments"
        )
    return plan_cores(
        num_workers=num_workers,
        workers_per_core=config.workers_per_core,
        drives_gpu=drives_gpu,
        cpus=cpus,
        machine=machine,
        **seat._asdict(),
    )


def assign_columns(config: SamplerConfig, num_workers: int) -> list[list[range]]:
    """``[worker][group]``: the columns that a worker steps of each group, contiguous or none.

    Group ``g`` is the ``g``-th equal run of columns; slices of it differ by one at most. Larger
    slices are dealt round over all groups, so that what a worker has of all groups together differs
    by one at most, too.
    """
    G = config.num_groups
    group_size = config.num_envs // G
    slices = num_workers // config.workers_per_core  # of each group
    size, num_larger = divmod(group_size, slices)
    places = np.arange(slices)
    bounds = []
    for g in range(G):
        sizes = size + ((places - g * num_larger) % slices < num_larger)
        bounds.append([0, *sizes.cumsum().tolist()])
    columns = []
    for worker in range(num_workers):
        own = worker // config.workers_per_core
        held = range(G) if config.workers_per_core == 1 else [worker % G]
        columns.append(
            [
                range(g * group_size + bounds[g][own], g * group_size + bounds[g][own + 1])
                if g in held
                else range(0)
                for g in range(G)
            ]
        )
    return columns


def assign_agents(num_agents: int, envs_per_agent: int) -> list[list[range]]:
    """``[worker][group]``, as `assign_columns`: each worker has one group, of its own number."""
    nothing = range(0)  # one object, for the square of the number of agents
    own = [range(a * envs_per_agent, (a + 1) * envs_per_agent) for a in range(num_agents)]
    return [[own[a] if g == a else nothing for g in range(num_agents)] for a in range(num_agents)]


def even_num_envs(config: SamplerConfig, num_workers: int) -> list[int]:
    """Return the nearest values of ``num_envs`` that keep all workers evenly busy.

    All wait for the workers with the most environments. An empty list stands for a ``num_envs`` of
    ``config`` that makes these work at most 5 % more than the mean.
    """
    slices = num_workers // config.workers_per_core
    mean = config.num_envs / slices
    if math.ceil(mean) <= 1.05 * mean:
        return []
    step = config.num_groups * slices
    below = config.num_envs // step * step
    return [each for each in (below, below + step) if each]
