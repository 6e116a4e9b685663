"""``--plan``: who would run where, and how fast it samples, without training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter

import psutil
import torch

from accel_rl.cli.help import PLAN
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvSpec
from accel_rl.parallel import Ranks
from accel_rl.samplers import ActionServer
from accel_rl.samplers.layout import plan_workers
from accel_rl.system.topology import (
    Machine,
    Seat,
    format_cpus,
    free_memory,
    plan_cores,
    read_machine,
)
from accel_rl.training.build import agent_of, make_sampler, sampler_share
from accel_rl.training.devices import gpu_nodes, learner_device, make_graphs
from accel_rl.training.torch_setup import sampling_threads

_MOST_STEPS = 20  # of a measured rollout, so that no rollout takes long


def describe_plan(
    config: TrainConfig,
    *,
    machine: Machine | None = None,
    num_gpus: int | None = None,
    nodes: Sequence[int | None] | None = None,
) -> Iterator[str]:
    """The plan, line by line; sampling is measured for a second, on this machine.

    Tests plan for another one: ``machine``, its ``num_gpus``, and the NUMA node of each learner's
    GPU; nothing is measured then.
    """
    if not config.learner.in_rollouts:
        raise ValueError(
            f"{PLAN} is for algorithms that collect and learn in turns; the numbers of algo="
            f"{config.algo} are found while it runs, by its tuner"
        )
    is_here = machine is None
    machine = machine or read_machine()
    num = config.num_learners
    if num_gpus is None:
        num_gpus = _num_gpus(config)
    if nodes is None and num_gpus and is_here:
        nodes = gpu_nodes(num, num_gpus)
    spec = config.probe_spec()
    share = sampler_share(config, Ranks(size=num))
    yield f"plan of {config.title}, on {machine.describe()}"
    for rank in range(num):
        seat = Seat(rank, num, None if nodes is None else tuple(nodes))
        where = f"cuda:{rank % num_gpus}" if num_gpus else "the CPU"
        if share.num_workers == 0:
            own = plan_cores(machine=machine, **seat._asdict()).server_cpus
            how = f"all in its process on CPUs {format_cpus(own)}"
        else:
            how = plan_workers(share, None, num_gpus > 0, seat, machine).describe()
        yield f"learner {rank} on {where}: {share.num_envs} x {spec.name}, {how}"
    if is_here:
        whose = " (one learner's, the others idle)" if num > 1 else ""
        steps, memory = _measure(config, spec)
        yield f"measured here for a second: {steps:,.0f} steps/s sampled with the policy{whose}"
        free = f"{free_memory() / 1e9:.1f} GB free"
        yield f"memory{whose}: {memory / 1e9:.1f} GB without learning; {free}"


def _measure(config: TrainConfig, spec: EnvSpec) -> tuple[float, int]:
    """Steps a second that one learner samples on its share of the cores, and bytes of memory."""
    num = config.num_learners
    ranks = Ranks(size=num, local_size=num)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    device = learner_device(config, ranks)
    share = sampler_share(config, ranks)
    share = replace(share, horizon=min(share.horizon, _MOST_STEPS), decorrelation_steps=0)
    try:
        with sampling_threads():
            agent = agent_of(config, spec, device, graphs=make_graphs(config, device))
            with (
                closing(make_sampler(config, share, config.seed, device, ranks)) as sampler,
                closing(ActionServer(agent, sampler, device)) as server,
            ):
                sampler.start()
                for seconds in (0.5, 1.0):  # the first half second warms up
                    began, steps = perf_counter(), 0
                    while (gone := perf_counter() - began) < seconds or not steps:
                        steps += sampler.collect(server).action.size
                        server.finish()
                me = psutil.Process()
                processes = [me, *me.children(recursive=True)]
                return steps / gone, sum(each.memory_full_info().uss for each in processes)
    finally:
        if cpus is not None:
            os.sched_setaffinity(0, cpus)


def _num_gpus(config: TrainConfig) -> int:
    """That the learners of a run here use."""
    if learner_device(config, Ranks()).type == "cpu":
        return 0
    return min(config.gpus or config.num_learners, torch.cuda.device_count())
