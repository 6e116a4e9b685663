"""``--plan``: who would run where, and how fast that should be, without training."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from time import perf_counter

from accel_rl.algos import GA3CConfig
from accel_rl.cli.speed_model import Shape, find_limits, predict
from accel_rl.cli.speed_parts import Measured, PartsOfOne
from accel_rl.config import TrainConfig
from accel_rl.envs.make import probe_spec
from accel_rl.parallel import Ranks
from accel_rl.samplers.layout import plan_workers
from accel_rl.topology import CorePlan, Machine, Seat, available_cpus, format_cpus, read_machine
from accel_rl.training.agent import factory_of
from accel_rl.training.devices import gpu_nodes, learner_device
from accel_rl.training.division import sampler_share
from accel_rl.training.torch_setup import sampling_threads

PLAN = "--plan"
GPU_BYTES_PER_SECOND = 10e9
"""of an all-reduce between GPUs, assumed"""
GPU_LATENCY_SECONDS = 50e-6
"""likewise, of each"""
_MEASURED_SECONDS = 3.0
_HINTS = {
    "simulator": "more CPU cores, or learners of another machine",
    "inference": "a larger num_envs, a smaller model, or a GPU",
    "update": "a larger num_envs, a smaller model, or a GPU",
    "exchange": "fewer learners, or larger batches",
}


def describe_plan(
    config: TrainConfig,
    *,
    machine: Machine | None = None,
    num_gpus: int | None = None,
    nodes: Sequence[int | None] | None = None,
    measured: Measured | None = None,
) -> Iterator[str]:
    """The plan, line by line; parts are measured for a few seconds, on this machine.

    Tests plan for another one: ``machine``, its ``num_gpus``, the NUMA node of each learner's GPU,
    and what was ``measured`` there.

    Raises:
        ValueError: the config cannot be had.
    """
    if isinstance(config.learner, GA3CConfig):
        raise ValueError(
            f"{PLAN} is for algorithms that collect and learn in turns; the numbers of algo="
            f"{config.algo} are found while it runs, by its tuner"
        )
    here = machine is None
    machine = machine or read_machine()
    num = config.num_learners
    if num_gpus is None:
        num_gpus = _num_gpus(config)
    if nodes is None and num_gpus and here:
        nodes = gpu_nodes(num, num_gpus)
    spec = probe_spec(factory_of(config), config.sampler.reset_timeout_seconds)
    share = sampler_share(config, Ranks(size=num))
    yield f"plan of {config.title}, on {machine.describe()}"
    plans = []
    for rank in range(num):
        seat = Seat(rank, num, None if nodes is None else tuple(nodes))
        has_server = num_gpus > 0 and not config.serial
        plan = plan_workers(share, list(config.cpus) or None, has_server, seat, machine)
        where = f"cuda:{rank % num_gpus}" if num_gpus else "the CPU"
        how = plan.describe()
        if config.serial:
            how = f"all in its process on CPUs {format_cpus(plan.server_cpus)}"
        yield f"learner {rank} on {where}: {share.num_envs} x {spec.name}, {how}"
        plans.append(plan)
    began = perf_counter()
    if measured is None:
        measured = _measure(config, plans[0])
        yield f"measured here in {perf_counter() - began:.0f} s, each part alone:"
    else:
        yield "given:"
    yield from _tell_measured(config, measured, share.num_envs // share.num_groups)
    shapes = [_shape(config, plan, machine, num_gpus > 0) for plan in plans]
    yield from _tell_predicted(config, measured, shapes, machine, num_gpus, spec.frame_skip)


def _num_gpus(config: TrainConfig) -> int:
    """That the learners of a run here use."""
    if learner_device(config, Ranks()).type == "cpu":
        return 0
    import torch

    return min(config.gpus or config.num_learners, torch.cuda.device_count())


def _measure(config: TrainConfig, plan: CorePlan) -> Measured:
    with sampling_threads(), _as_many_cpus(config, len(plan.server_cpus)):
        with PartsOfOne(config, config.num_learners) as parts:
            return parts.measure(_MEASURED_SECONDS)


@contextlib.contextmanager
def _as_many_cpus(config: TrainConfig, number: int) -> Iterator[None]:
    """Within, this process keeps to as many CPUs as one learner of several has for its own."""
    cpus = available_cpus()
    is_pinned = config.num_learners > 1 and config.sampler.affinity != "off"
    if is_pinned:
        os.sched_setaffinity(0, cpus[:number])
    try:
        yield
    finally:
        if is_pinned:
            os.sched_setaffinity(0, cpus)


def _shape(config: TrainConfig, plan: CorePlan, machine: Machine, has_gpu: bool) -> Shape:
    """Of a learner that has this plan."""
    share, num = sampler_share(config, Ranks(size=config.num_learners)), config.num_learners
    if config.serial:
        cores = min(1.0, len(machine.cores) / num)
        return Shape(share.num_envs, share.horizon, 1, cores, has_gpu, config.overlap)
    own = {cpu for cpus in plan.worker_cpus for cpu in cpus}
    cores = float(sum(not own.isdisjoint(core.cpus) for core in machine.cores))
    cores /= max(1.0, num / len(machine.cores))
    if machine.quota is not None:
        cores = min(cores, machine.quota / num)
    groups = share.num_groups
    return Shape(share.num_envs, share.horizon, groups, cores, has_gpu, config.overlap)


def _tell_measured(config: TrainConfig, measured: Measured, group: int) -> Iterator[str]:
    one = 1000 * measured.simulator
    yield f"  simulator: {one:.3f} ms a step of one environment on one core, observation included"
    yield f"  inference: {1000 * measured.inference:.2f} ms for a group of {group}"
    steps = f"{measured.num_updates:g} optimizer step{'s' * (measured.num_updates != 1)}"
    yield f"  update: {1000 * measured.update:.1f} ms an iteration, of {steps}"
    yield f"  gradient: {measured.gradient_bytes / 1e6:.2f} MB"
    if config.parallel.sync == "store":
        yield f"  pushes into the store: {1000 * measured.pushes:.2f} ms an iteration"
    elif config.num_learners > 1 and not math.isnan(measured.pair):
        yield f"  all-reduce: {1000 * measured.pair:.2f} ms between two threads"


def _tell_predicted(
    config: TrainConfig,
    measured: Measured,
    shapes: Sequence[Shape],
    machine: Machine,
    num_gpus: int,
    frame_skip: int,
) -> Iterator[str]:
    num = config.num_learners
    if math.isnan(measured.pair) and num > 1 and config.parallel.sync == "all_reduce":
        seconds = measured.gradient_bytes / GPU_BYTES_PER_SECOND + GPU_LATENCY_SECONDS
        measured = measured._replace(pair=seconds)
        yield (
            f"assumed: all-reduce at {GPU_BYTES_PER_SECOND / 1e9:g} GB/s and "
            f"{1e6 * GPU_LATENCY_SECONDS:g} us, {1000 * seconds:.2f} ms between two GPUs"
        )
    # Learners wait for the one with the fewest cores; without waiting they have about as many.
    shape = min(shapes, key=lambda shape: shape.cores)
    # Between GPUs an all-reduce needs no cores.
    costs = measured.costs(num, math.inf if num_gpus else len(machine.cores))
    speed = predict(costs, shape, num)
    yield f"predicted by training/speed_model.py, for a learner on {shape.cores:g} of the cores:"
    yield (
        f"  training: {speed.steps_per_second:,.0f} steps/s"
        f" ({speed.steps_per_second * frame_skip:,.0f} frames/s);"
        f" sampling alone: {speed.sampling_steps_per_second:,.0f} steps/s"
    )
    names = {"sampling": speed.sampling, "update": speed.update}
    if num > 1 or config.parallel.sync == "store":
        names["pushes" if config.parallel.sync == "store" else "all-reduces"] = speed.exchange
    parts = (f"{name} {1000 * part:.1f} ms" for name, part in names.items())
    yield f"  an iteration of {num * shape.num_envs * shape.horizon:,} steps: {', '.join(parts)}"
    name, saved = next(iter(find_limits(costs, shape).items()))
    saving = f"without which {saved:.0%} of the time would be saved"
    yield f"  bottleneck: {name}, {saving}: {_HINTS[name]}"
