"""Making the environments of a block, and checking that they suit the sampler."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from accel_rl.envs.base import EnvFactory, Environment, EnvSpec, close_quietly
from accel_rl.envs.batched import Batched, BatchReset, Simulators, call_factory, is_batch, name_of
from accel_rl.envs.errors import naming
from accel_rl.envs.make import probe
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import Autoreset, SamplerConfig, SamplerError
from accel_rl.samplers.block import Block, BlockArrays
from accel_rl.samplers.generators import seed_generators
from accel_rl.samplers.steppers import AtOnce, OneByOne, Stepper
from accel_rl.spaces import describe

_OWN: dict[BatchReset, tuple[str, ...]] = {
    "disabled": ("immediate", "wait", "NextStep", "SameStep", "Disabled"),
    "next_step": ("immediate", "NextStep"),
    "same_step": ("immediate", "SameStep"),
}
"""what each kind of batch can be used for"""


def make_envs(
    factory: EnvFactory, columns: slice, spec: RolloutSpec, seed: np.random.SeedSequence
) -> list[Environment] | Simulators:
    """Make the environments of ``columns``, or their batch, with generators of ``seed``.

    A factory with a parameter ``env_index`` is called with the column of each environment.
    """
    envs: list[Any] = []
    has_batch = False
    seed_generators(seed)
    try:
        with naming(name_of(factory), "its constructor"):
            for index in range(columns.start, columns.stop):
                envs.append(call_factory(factory, index))
                if has_batch := isinstance(envs[0], Batched):
                    envs.append(envs.pop().make(columns.stop - columns.start, columns.start))
                    break
        for index, env in enumerate(envs, columns.start):
            _check_fits(env, index, spec)
        return cast("Simulators", envs[0]) if has_batch else envs
    except BaseException:
        for env in envs:
            close_quietly(env)
        raise


def make_block(
    envs: list[Environment] | Simulators,
    columns: slice,
    arrays: BlockArrays,
    config: SamplerConfig,
    seed: int,
    restart: int = 0,
    autoreset: Autoreset | None = None,
) -> Block:
    """Return what steps ``envs``, which `make_envs` has made. Arguments are those of `Block`."""
    stepper: Stepper
    if isinstance(envs, list):
        stepper = OneByOne(envs, arrays.rollout, columns, arrays.reset_info)
    else:
        wanted = config.reset_policy if autoreset is None else autoreset.value
        check_autoreset(envs.spec.name, envs.autoreset, wanted)
        stepper = AtOnce(envs, arrays.rollout, columns, arrays.reset_info)
    return Block(stepper, columns, arrays, config, seed, restart, autoreset)


def probe_spec_for(factory: EnvFactory, config: SamplerConfig) -> EnvSpec:
    """Return the spec of the factory's environments, if they can be reset as ``config`` says."""
    spec, own, rests = probe(factory, _look)
    check_autoreset(spec.name, own, config.reset_policy, rests=rests)
    return spec


def check_autoreset(name: str, own: BatchReset | None, wanted: str, *, rests: bool = True) -> None:
    """Raise ValueError if a batch that resets in its ``own`` way cannot be reset as ``wanted``.

    Args:
        own: None if it is no batch.
        wanted: a reset policy, or the value of a mode of Gymnasium's.
        rests: whether steps of the batch leave environments as they are whose episode has ended.
    """
    is_policy = wanted in ("immediate", "wait")
    given = f"{'reset_policy' if is_policy else 'autoreset_mode'} is {wanted}"
    waits = wanted == "wait" or (wanted == "NextStep" and own == "disabled")
    if own is not None and waits and not rests:
        raise ValueError(
            f"{given}, and environment {name} is a vector environment that cannot leave "
            f"environments out of a step, so that those that wait would go on; use "
            f"{'immediate' if is_policy else 'SameStep'}"
        )
    if own is None or wanted in _OWN[own]:
        return
    possible = [each for each in _OWN[own] if (each in ("immediate", "wait")) == is_policy]
    raise ValueError(
        f"{given}, and environment {name} is a batch with autoreset={own!r}, which resets its "
        f"environments itself; use {possible[0]}, or a batch with autoreset='disabled'"
    )


def _look(env: Environment | Simulators) -> tuple[EnvSpec, BatchReset | None, bool]:
    if is_batch(env):
        return env.spec, env.autoreset, getattr(env, "rests", True)
    return env.spec, None, True


def _check_fits(env: Any, index: int, expected: RolloutSpec) -> None:
    """Raise SamplerError if environment ``index`` is not like the one that was looked at."""
    spec: EnvSpec = env.spec
    found = (describe(spec.observation), describe(spec.action), spec.info_keys)
    wanted = (describe(expected.observation), describe(expected.action), expected.info_keys)
    if found != wanted:
        names = ("observation", "action", "info_keys")
        wrong = [i for i in range(len(names)) if found[i] != wanted[i]]
        differences = "; ".join(f"{names[i]} is {found[i]} and not {wanted[i]}" for i in wrong)
        raise SamplerError(
            f"environment {index} ({spec.name}) differs from environment 0: {differences}; all "
            f"environments of one sampler must be alike in these"
        )
