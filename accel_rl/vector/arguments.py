"""Checks the arguments of `VectorEnv`, and brings them into the form that it works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import EnvFactory, Environment, EnvSpec
from accel_rl.envs.batched import BatchReset, Simulators, is_batch
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.envs.make import is_atari_game, make_env_factory, probe
from accel_rl.options import check_kind
from accel_rl.samplers.block import LEAVE, NEW_GAME, NEXT_EPISODE
from accel_rl.spaces import ACTION_MASK, OBSERVATION, to_gymnasium

OWN_INFOS = ("raw_reward", "episode_ended", "final_obs", "final_info", "env_id")
"""what `VectorEnv` puts into infos itself, each with a mask whose name begins with _"""

_MAX_SEED = 2**63 - 1


class Kind(NamedTuple):
    """Facts about one environment; ``gymnasium_spec`` and ``metadata`` are Gymnasium's."""

    spec: EnvSpec
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    first_action: int
    is_gymnasium: bool
    gymnasium_spec: Any
    metadata: dict[str, Any]
    own_reset: BatchReset | None = None  # of a batch; None: it is no batch
    rests: bool = True  # as in `check_autoreset`
    render_mode: str | None = None


def find_factory(
    env: str | Callable[[], Any], atari: AtariConfig | None, info_keys: Sequence[str]
) -> tuple[EnvFactory, Kind]:
    """Return a factory of the environments that ``env`` names, and facts about them."""
    factory = make_env_factory(env, atari or AtariConfig(), info_keys)
    if atari is not None and not (isinstance(env, str) and is_atari_game(env)):
        raise ValueError(f"atari is given, and {env!r} is not an Atari game; leave atari out")
    kind = probe(factory, _kind_of)
    _check_names(kind.spec.info_keys)
    if not isinstance(env, str) and not kind.is_gymnasium:
        return env, kind  # without an environment of Gymnasium's, workers need not load Gymnasium
    return factory, kind


def find_mode(mode: AutoresetMode | str, affinity: str) -> AutoresetMode:
    """Return an autoreset mode from itself or its value."""
    if affinity not in ("auto", "off"):
        raise ValueError(f"affinity is {affinity!r}; it must be auto or off")
    try:
        return AutoresetMode(mode)
    except ValueError:
        values = ", ".join(repr(known.value) for known in AutoresetMode)
        raise ValueError(
            f"autoreset_mode is {mode!r}; it must be a gymnasium.vector.AutoresetMode or one of "
            f"{values}"
        ) from None


def reset_orders(
    num_envs: int,
    seed: int | Sequence[int | None] | None,
    options: dict[str, Any] | None,
    own_reset: BatchReset | None = None,
) -> NDArray[np.int64]:
    """Return the orders of `Block.reset` for the arguments of `VectorEnv.reset`, ``[num_envs]``."""
    mask = _find_mask(num_envs, options)
    orders = np.full(num_envs, NEW_GAME if mask is None else NEXT_EPISODE)
    for i, number in enumerate(_find_seeds(num_envs, seed)):
        if number is not None:
            orders[i] = number
    if mask is not None:
        orders[~mask] = LEAVE
    is_seeded = orders >= 0
    if own_reset is not None and is_seeded.any() and not is_seeded.all():
        raise ValueError(
            "seed seeds only some environments of a batch; give a seed to all, in a reset of all"
        )
    if own_reset not in (None, "disabled") and (orders == LEAVE).any():
        raise ValueError(
            f"reset_mask leaves out some environments of a batch with autoreset={own_reset!r}, "
            f"which it cannot; leave reset_mask out, or use a batch with autoreset='disabled'"
        )
    return orders


def _kind_of(env: Environment | Simulators) -> Kind:
    spec = env.spec
    if not isinstance(env, GymnasiumEnv):
        space = to_gymnasium(spec.observation)
        kind = Kind(spec, space, to_gymnasium(spec.action), 0, False, None, {})
        if is_batch(env):
            space, rests = getattr(env, "observation_space", space), getattr(env, "rests", True)
            kind = kind._replace(observation_space=space, own_reset=env.autoreset, rests=rests)
        return kind
    inner = env.env
    observation = inner.observation_space
    if spec.mask is not None:
        parts = {OBSERVATION: observation}
        if isinstance(observation, gymnasium.spaces.Dict):
            parts = dict(observation.spaces)
        parts.setdefault(ACTION_MASK, to_gymnasium(spec.mask))
        observation = gymnasium.spaces.Dict(parts)
    action = inner.action_space
    return Kind(
        spec,
        observation,
        action,
        env.first_action,
        True,
        inner.spec,
        inner.metadata,
        render_mode=inner.render_mode,
    )


def _check_names(info_keys: Sequence[str]) -> None:
    """Raise ValueError if names and masks in a vector environment's infos would collide."""
    names = [*OWN_INFOS, *info_keys]
    masks = {f"_{name}" for name in names}
    for key in info_keys:
        if key in OWN_INFOS or key in masks:
            raise ValueError(
                f"info_keys has {key}, a name that this vector environment gives to something "
                f"else in its infos; leave it out, or let the environment use another"
            )


def _find_mask(num_envs: int, options: dict[str, Any] | None) -> NDArray[np.bool_] | None:
    if not options:
        return None
    if not isinstance(options, dict):
        raise ValueError(f"options is {options!r}; it must be a dict, or None")
    if "reset_mask" not in options:
        return None
    mask = np.asarray(options["reset_mask"])
    if mask.shape != (num_envs,) or mask.dtype != np.bool_ or not mask.any():
        raise ValueError(
            f"reset_mask is {mask.dtype}, of shape {mask.shape} and True {np.count_nonzero(mask)} "
            f"times; it must be bool, of shape ({num_envs},) and True somewhere"
        )
    return mask


def _find_seeds(num_envs: int, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
    if seed is None:
        return [None] * num_envs
    if not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str):
        check_kind(int, seed=seed)
        seed = range(int(seed), int(seed) + num_envs)
    if len(seed) != num_envs:
        raise ValueError(
            f"seed has {len(seed)} numbers for num_envs={num_envs}; give one for each "
            f"environment, or a single number"
        )
    for number in seed:
        check_kind(int | None, seed=number)
        if number is not None and not 0 <= number <= _MAX_SEED:
            raise ValueError(f"seed has {number}; seeds must be in 0 .. 2**63 - 1")
    return seed
