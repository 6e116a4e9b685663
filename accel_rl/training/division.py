"""How many learners a run has, and what each of them does of it."""

from __future__ import annotations

import dataclasses
import os

import torch

from accel_rl.algos import DQNConfig, PPOConfig
from accel_rl.config import TrainConfig
from accel_rl.parallel import Ranks
from accel_rl.parallel.team import STORE_VARIABLE
from accel_rl.samplers import SamplerConfig


def check_learners(config: TrainConfig, ranks: Ranks) -> None:
    """Raises ValueError where the learners that were started are not those of ``config``.

    Or where it cannot be divided among them, or has more GPUs than there are.
    """
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
    if config.learners is not None and config.learners != ranks.size:
        raise ValueError(
            f"learners={config.learners}, but the launcher has started {ranks.size}; {advice}"
        )
    if config.learners is None and config.gpus and config.gpus != ranks.local_size:
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
    whole = num * config.sampler.num_groups
    counts = {"num_envs": (config.sampler.num_envs, whole)}
    if isinstance(config.learner, DQNConfig):
        counts["batch_size"] = config.learner.batch_size, num
    if isinstance(config.learner, PPOConfig):
        counts["minibatch_size"] = config.learner.minibatch_size, num
    for name, (count, divisor) in counts.items():
        if count % divisor:
            near = max(divisor, count // divisor * divisor)
            groups = f" of {config.sampler.num_groups} groups each" * (name == "num_envs")
            raise ValueError(
                f"{name}={count} does not divide among {num} learners{groups}; use "
                f"{name}={near}, or another number of learners"
            )


def sampler_share(config: TrainConfig, ranks: Ranks) -> SamplerConfig:
    """The sampler settings of one learner: its part of the environments, or all with a store."""
    if config.parallel.sync == "store":
        return config.sampler
    num_envs = config.sampler.num_envs // ranks.size
    return dataclasses.replace(config.sampler, num_envs=num_envs)
