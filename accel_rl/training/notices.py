"""What people should know of a run before it begins: the first lines that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_rl.runs.yaml_file import UNSIGNED
from accel_rl.samplers import ParallelSampler
from accel_rl.samplers.layout import even_num_envs
from accel_rl.signing import user_key
from accel_rl.spaces import Leaf
from accel_rl.training.build import AnyRun
from accel_rl.training.devices import computes_bfloat16_slowly
from accel_rl.training.resume import describe_idleness, describe_resumed
from accel_rl.training.torch_setup import is_forked


def notices(run: AnyRun, saved: Mapping[str, Any] | None) -> list[str]:
    """What people are told of ``run``, which may go on from the checkpoint ``saved``."""
    config, team = run.config, run.team
    notices = [f"run directory: {run.run_dir}", run.describe()]
    if team.ranks.size > 1:
        how = "make each update together"
        if config.parallel.sync == "store":
            how = "update one store of parameters"
        notices.append(f"the first of {team.ranks.size} learners, which {how}")
    if not team.is_signed:
        notices.append(
            "learners do not sign what they say to each other, so whoever reaches their store can "
            "change the run; give all of them the same ACCEL_RL_SECRET_FILE (docs/safety.md)"
        )
    if user_key() is None:
        notices.append(f"the run is {UNSIGNED}")
    if saved is not None:
        notices.append(describe_resumed(saved, config, team.ranks.size))
        if idleness := describe_idleness(saved, config):
            notices.append(idleness)
    if config.planned_steps != config.total_steps:
        is_far = config.planned_steps > 2 * config.total_steps
        advice = "; a smaller horizon or num_envs takes fewer" if is_far else ""
        notices.append(
            f"total_steps={config.total_steps:,} is rounded up to {config.planned_steps:,}, whole "
            f"rollouts of {config.sampler.num_envs} environments x {config.sampler.horizon}{advice}"
        )
    if advice := _uneven(run):
        notices.append(advice)
    if config.sampler.decorrelation_steps and (saved is None or saved["sampler"] is None):
        notices.append(
            f"simulators begin with up to {config.sampler.decorrelation_steps:,} random steps each "
            f"(decorrelation_steps)"
        )
    if config.lstm and config.sampler.horizon == 1:
        notices.append("lstm=true with horizon=1 hardly learns what to remember; use a longer one")
    if is_forked():
        notices.append(
            "this process was forked, so torch computes in one thread; start it by spawn for more"
        )
    if _counts_states(run):
        notices.append(
            f"observations of {config.env} are single integers, which the network takes as they "
            f"are; where they only name states, wrap it in gymnasium.wrappers.FlattenObservation"
        )
    if computes_bfloat16_slowly(config, run.device):
        notices.append(
            "precision=bfloat16 is slower than float32 on this processor, which has no AVX-512"
        )
    return notices


def _uneven(run: AnyRun) -> str:
    """Which ``num_envs`` keeps all workers busy alike, if this one does not."""
    config, sampler = run.config, run.sampler
    if not isinstance(sampler, ParallelSampler):
        return ""
    num_workers = len(sampler.plan.worker_cpus)
    num_shares = config.sampler.num_envs // sampler.config.num_envs  # one for each learner
    better = [str(num_shares * each) for each in even_num_envs(sampler.config, num_workers)]
    if not better:
        return ""
    return (
        f"num_envs={config.sampler.num_envs} gives some of {num_workers} workers more to do than "
        f"others; num_envs={' or '.join(better)} keeps all evenly busy"
    )


def _counts_states(run: AnyRun) -> bool:
    spec = run.sampler.env_spec
    space = spec.observation
    return isinstance(space, Leaf) and space.shape == () and space.dtype.kind in "iu"
