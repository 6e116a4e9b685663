"""What ``learners=auto`` stands for: how many learners a run of the command line has, and why."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Collection, Mapping

from accel_rl.algos import Task
from accel_rl.config import TrainConfig
from accel_rl.options import list_options
from accel_rl.parallel import Ranks
from accel_rl.system.stopping import LAUNCHER_VARIABLE
from accel_rl.system.topology import Machine, free_memory, read_machine
from accel_rl.training.build import sampler_share
from accel_rl.training.devices import check_learners, learner_device

LEAST_STEPS = 100_000
"""of a run with several learners. To start two took 4 s of CPU more than to start one, which runs
of Breakout that are 1.1 to 1.2 times as fast make up for in 70,000 to 140,000 steps"""
LEAST_MINUTES = 1.0
"""of its ``max_minutes``"""
_EVALUATIONS = 4  # the interval between evaluations, in evaluations
_BYTES_EACH = 2**30
"""memory of a process with torch, simulators and a network, without its replay"""


def choose_learners(
    config: TrainConfig,
    given: Collection[str],
    machine: Machine | None = None,
    variables: Mapping[str, str] = os.environ,
) -> tuple[TrainConfig, str]:
    """Return ``config`` with a number for ``learners=auto``, and a sentence for people about it.

    Several learners on a CPU step their simulators themselves: ``serial=true``. The sentence is
    empty if the config has a number already, as that of a resumed run does.

    Args:
        config: Options of a run.
        given: Names, without groups, of those that the user has given.
        machine: What this process may use; None: it is read.
        variables: Environment variables, by which launchers are known.

    Raises:
        ValueError: The device or the environment that the config asks for is not here.
    """
    if config.learners != "auto":
        return config, ""
    machine = machine or read_machine()
    num = int(min(len(machine.cores), machine.quota or len(machine.cores)))
    reason = _why_started(config, variables) or _why_one(config, num)
    if not reason:
        several = dataclasses.replace(config, learners=num, serial=True)
        reason = _why_workers(several, given) or _why_undivided(several)
        if not reason:
            return several, f"learners={num} serial=true, because that is faster here"
    number = config.num_learners
    return dataclasses.replace(config, learners=number), f"learners={number}, because {reason}"


def is_faster(config: TrainConfig, num: int) -> bool:
    """Return whether ``num`` learners, one on each core, were measured to be faster than one.

    That is one with its simulators in workers, on as many cores. Steps a second of two learners
    on two cores, divided by those of one (95 %, benchmarks/results/learners_speed_2cores.json):
    1.29 to 1.57 for A2C on Breakout with 16 environments and 1.76 to 1.99 on Catch, 1.16 to 1.30
    for PPO on Breakout with 8 and 1.52 to 2.91 on CartPole, 0.70 to 0.76 for DQN on Breakout.
    More cores were not measured.
    """
    return num == 2 and vars(type(config.learner)).get("faster_divided", False)


def _why_started(config: TrainConfig, variables: Mapping[str, str]) -> str:
    """Return why no learners are to be started here for the cores; empty: they may be."""
    if config.gpus:
        return f"gpus={config.gpus}"
    if "WORLD_SIZE" in variables:
        return "torchrun has started it"
    if LAUNCHER_VARIABLE in variables:
        return "it is a run of a sweep"
    if learner_device(config, Ranks()).type != "cpu":
        return "it has a GPU"
    return "" if sys.platform == "linux" else "several need Linux"


def _why_one(config: TrainConfig, num: int) -> str:
    """Return why ``num`` learners on the cores would be slower than one, or learn otherwise."""
    minutes, interval = config.max_minutes, config.evaluation_interval
    reasons = {
        f"sync={config.parallel.sync}": config.parallel.sync != "all_reduce",
        "overlap=true": config.overlap,
        "affinity=off": config.sampler.affinity == "off",
        f"{config.memory}=true": config.has_memory,
        f"model={config.model}": ":" in config.model,
        f"algo={config.algo} is not divided among learners": not config.learner.divides(),
        f"total_steps={config.total_steps:,} is below {LEAST_STEPS:,}": (
            config.total_steps < LEAST_STEPS
        ),
        f"max_minutes={minutes} is below {LEAST_MINUTES:g}": (
            minutes is not None and minutes < LEAST_MINUTES
        ),
        "evaluations take more than a fourth of the steps": (
            0 < interval < _EVALUATIONS * config.evaluation_steps
        ),
        "there is one core": num < 2,
        f"several were not measured to be faster with algo={config.algo} on {num} cores": (
            not is_faster(config, num)
        ),
    }
    found = next((reason for reason, holds in reasons.items() if holds), "")
    if not found:
        try:
            dataclasses.replace(config, learners=num, serial=True)
        except ValueError as error:
            found = str(error).partition(";")[0]
    return found


def _why_workers(several: TrainConfig, given: Collection[str]) -> str:
    """Return which of the ``given`` options asks for another place of the simulators."""
    own = {"serial", "cpus"}
    own |= {each.name for each in list_options(several) if each.idle and each.idle(several)}
    return next((f"{name} is given" for name in sorted(own & set(given))), "")


def _why_undivided(several: TrainConfig) -> str:
    """Return why learners cannot divide the environments, batches or memory of a run."""
    num = several.num_learners
    spec = several.probe_spec()
    try:
        check_learners(several, Ranks())
        share = sampler_share(several, Ranks(size=num))
        task = Task(spec, share.num_envs, share.horizon, several.seed, Ranks(0, num, 0, num))
        needed = num * (_BYTES_EACH + several.learner.nbytes(task))
    except ValueError as error:
        return str(error).partition(";")[0]
    free = free_memory()
    if needed > free:
        return f"{num} would take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    return ""
