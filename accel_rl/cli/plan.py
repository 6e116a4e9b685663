"""``--plan``: who would run where, and how fast it samples, without training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from accel_rl.cli.tune import Trial
from accel_rl.config import TrainConfig
from accel_rl.parallel import Ranks
from accel_rl.samplers.layout import plan_workers
from accel_rl.system.topology import Machine, Seat, format_cpus, read_machine
from accel_rl.training.build import sampler_share
from accel_rl.training.devices import gpu_nodes, learner_device
from accel_rl.training.torch_setup import sampling_threads

PLAN = "--plan"


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

    Raises:
        ValueError: the config cannot be had.
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
        has_server = num_gpus > 0 and not config.serial
        plan = plan_workers(share, list(config.cpus) or None, has_server, seat, machine)
        where = f"cuda:{rank % num_gpus}" if num_gpus else "the CPU"
        how = plan.describe()
        if config.serial:
            how = f"all in its process on CPUs {format_cpus(plan.server_cpus)}"
        yield f"learner {rank} on {where}: {share.num_envs} x {spec.name}, {how}"
    if is_here:
        whose = " (one learner's, the others idle)" if num > 1 else ""
        speed = f"{_measure(config):,.0f} steps/s are sampled with the policy{whose}"
        yield f"measured here for a second: {speed}"


def _measure(config: TrainConfig) -> float:
    """Steps a second that one learner samples on its share of the cores."""
    with sampling_threads(), closing(Trial(config)) as trial:
        with closing(trial.make(trial.first)) as simulators:
            simulators.start()
            simulators.measure()  # gets warm; what is captured is compiled
            return simulators.measure(1.0)


def _num_gpus(config: TrainConfig) -> int:
    """That the learners of a run here use."""
    if learner_device(config, Ranks()).type == "cpu":
        return 0
    import torch

    return min(config.gpus or config.num_learners, torch.cuda.device_count())
