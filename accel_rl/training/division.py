"""How many learners a run has, and what each of them does of it."""

from __future__ import annotations

import dataclasses
import os
import sys

import torch

from accel_rl.config import TrainConfig
from accel_rl.parallel import Ranks
from accel_rl.parallel.meeting import STORE_VARIABLE
from accel_rl.samplers import SamplerConfig


def check_learners(config: TrainConfig, ranks: Ranks) -> None:
    """Raises ValueError where the learners that were started are not those of ``config``.

    Or where it cannot be divided among them, has more GPUs than there are, or this is not Linux.
    """
    if sys.platform != "linux" and max(ranks.size, config.num_learners) > 1:
        raise ValueError(
            f"several learners need Linux, and this is {sys.platform}; leave learners and gpus out"
        )
    found = torch.cuda.device_count()
    if config.gpus is not None and config.gpus > found:
        raise ValueError(
            f"gpus={config.gpus}, but torch finds {found} here; use gpus={found}"
            + (f" learners={config.num_learners} to share them" if found else "")
        )
    if ranks.size > 1:
        _check_against_launcher(config, ranks)
    _check_division(config, max(ranks.size, config.num_learners))


def _check_against_launcher(config: TrainConfig, ranks: Ranks) -> None:
    advice = "leave it out, or start as many with torchrun --nproc-per-node"
    if config.learners not in ("auto", ranks.size):
        raise ValueError(
            f"learners={config.learners}, but the launcher has started {ranks.size}; {advice}"
        )
    if config.learners == "auto" and config.gpus and config.gpus != ranks.local_size:
        raise ValueError(
            f"gpus={config.gpus}, but the launcher has started {ranks.local_size} learners on "
            f"this machine; {advice}, or give learners={ranks.size} to share the GPUs"
        )
    if config.parallel.sync == "store" and ranks.local_size != ranks.size:
        raise ValueError(
            "sync=store is for learners of one machine, whose memory they share; use "
            "sync=all_reduce across machines"
        )
    if config.parallel.on_learner_failure == "continue" and STORE_VARIABLE not in os.environ:
        raise ValueError(
            "on_learner_failure=continue: torchrun ends all learners when one fails; start the run "
            "with python launch/train.py learners=N instead, or use on_learner_failure=stop"
        )


def _check_division(config: TrainConfig, num: int) -> None:
    """Raises ValueError where ``num`` learners cannot have equal parts."""
    if num == 1 or config.parallel.sync == "store":
        return
    sampler, learner = config.sampler, config.learner
    num_envs = sampler.num_envs
    if num_envs % (num * sampler.num_groups):
        groups = f" of {sampler.num_groups} groups each"
        raise _indivisible("num_envs", num_envs, num, _near_envs(config, num), groups)
    for name, (size, whole) in learner.batches(sampler).items():
        if size % num:
            raise _indivisible(name, size, num, f"{name}={_near_batch(size, num, whole)}")
        if learner.gradient_cosine_interval and size < 2 * num:
            raise ValueError(
                f"gradient_cosine_interval={learner.gradient_cosine_interval} compares half a "
                f"batch with all of it, but {name}={size} gives each of {num} learners one; use "
                f"{name}={2 * num} or more, or gradient_cosine_interval=0"
            )


def _indivisible(name: str, size: int, num: int, near: str, groups: str = "") -> ValueError:
    return ValueError(
        f"{name}={size} does not divide among {num} learners{groups}; use {near}, or another "
        "number of learners"
    )


def _near_envs(config: TrainConfig, num: int) -> str:
    """Options with about as many environments, which ``num`` learners can divide."""
    whole = num * config.sampler.num_groups
    few = max(whole, config.sampler.num_envs // whole * whole)
    return config.learner.suggest_envs(few, config, num)


def _near_batch(size: int, num: int, whole: int | None) -> int:
    """The largest that ``num`` learners divide, no larger than ``size`` if one is not.

    ``whole``: so many samples are to be whole batches.
    """
    fits = [each for each in range(num, max(size, num) + 1, num) if (whole or 0) % each == 0]
    return fits[-1]


def sampler_share(config: TrainConfig, ranks: Ranks) -> SamplerConfig:
    """The sampler settings of one learner: its part of the environments, or all with a store."""
    if config.parallel.sync == "store":
        return config.sampler
    num_envs = config.sampler.num_envs // ranks.size
    return dataclasses.replace(config.sampler, num_envs=num_envs)
