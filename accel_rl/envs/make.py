"""From the name of an environment to a factory of it, which a worker process can be sent."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import Array, EnvFactory, Environment, EnvSpec
from accel_rl.envs.catch import Catch
from accel_rl.envs.counting import CountingEnv
from accel_rl.envs.errors import EnvError, env_failure
from accel_rl.functions import FAILURES, find_function, import_module

# Emulator, OpenCV and Gymnasium are imported in the functions that need them: they take 0.5 s.

_OWN = {"catch": Catch, "counting": CountingEnv}
_MAIN = "__main__:"
"""what is in that module goes to workers by value: they have another main module"""
_NUM_PROBE_STEPS = 20


def make_env_factory(
    env: str | Callable[[], Any],
    atari: AtariConfig = AtariConfig(),  # noqa: B008
    info_keys: Sequence[str] = (),
) -> EnvFactory:
    """A picklable factory of the environment that ``env`` names.

    Args:
        env: an Atari game (``breakout``, ``ms_pacman``), ``catch``, ``counting``, a Gymnasium id
            (``CartPole-v1``, ``ALE/Pong-v5``; ``module:Id-v0`` for one that a module registers),
            or ``module:function`` with a function that takes no arguments and returns a
            ``gymnasium.Env`` or an `Environment`; or such a function itself.
        atari: how Atari games are played; the others ignore it.
        info_keys: numbers in the ``info`` of a Gymnasium environment that each step keeps
            (`StepResult.info`). An `Environment` names its own in its spec.

    Raises:
        ValueError: there is no such environment; the message offers close names. Or it has no
            ``info``, or ``env`` is neither a name nor a function.
    """
    if not isinstance(env, str):
        if not callable(env):
            raise ValueError(f"env is {env!r}; it must be a name or a function that makes it")
        return make_from_callable(env, info_keys)
    if env in _OWN or is_atari_game(env):
        if info_keys:
            raise ValueError(
                f"info_keys=[{','.join(info_keys)}] cannot be given with env={env}, which has no "
                f"info, as Gymnasium's environments have (ALE/Pong-v5); leave it out"
            )
        return _OWN[env] if env in _OWN else functools.partial(_make_atari, env, atari)
    if ":" in env and not re.search(r"-v\d+$", env):
        function = find_function("env", env)
        if env.startswith(_MAIN):
            return functools.partial(_call, function, env, info_keys)
        return functools.partial(_make_from_function, env, info_keys)
    # The registry of this process: a worker has only what its own imports register.
    return functools.partial(_make_from_gymnasium, env, _gymnasium_spec(env), info_keys)


def is_atari_game(env: str) -> bool:
    """Whether ``env`` names an Atari game, so that `AtariConfig` applies."""
    from accel_rl.envs.atari_games import atari_games

    return env in atari_games()


def make_from_callable(make: Callable[[], Any], info_keys: Sequence[str] = ()) -> EnvFactory:
    """A factory from any function that returns a ``gymnasium.Env`` or an `Environment`.

    ``info_keys``: as in `make_env_factory`.
    """
    return functools.partial(_call, make, _name(make), info_keys)


def probe_spec(factory: EnvFactory) -> EnvSpec:
    """The spec of the factory's environments, from one made and closed in this process.

    Raises:
        EnvError: the factory raises, or returns something that is no `Environment`.
    """
    env = probe_env(factory)
    spec = env.spec
    env.close()
    return spec


def probe_observations(factory: EnvFactory) -> Array:
    """Two observations, ``[2, ...]``, from an environment made and closed in this process.

    The first of an episode, and the first one in a few steps that differs from it, if one does.

    Raises:
        EnvError: the factory or the reset raises, or the factory returns no `Environment`.
    """
    with contextlib.closing(probe_env(factory)) as env:
        spec = env.spec
        found = np.zeros((2, *spec.observation_shape), spec.observation_dtype)
        out = np.zeros_like(found[0, ...])
        try:
            env.seed(np.random.SeedSequence(0))
            env.reset(out)
        except EnvError:
            raise
        except FAILURES as error:
            raise env_failure(spec.name, "its first reset", error) from error
        found[:] = out
        rng = np.random.default_rng(0)
        with contextlib.suppress(*FAILURES):  # an action may not be allowed where it is taken
            for _ in range(_NUM_PROBE_STEPS):
                result = env.step(int(rng.integers(spec.num_actions)), out)
                if not np.array_equal(out, found[0]):
                    found[1] = out
                    break
                if result.episode_ended:
                    env.reset(out)
    return found


def probe_env(factory: EnvFactory) -> Environment:
    """An environment made in this process, to be looked at and closed.

    Raises:
        EnvError: the factory raises, or returns something that is no `Environment`.
    """
    if not callable(factory):
        raise EnvError(
            f"the factory is {factory!r}; it must be a function that makes an environment, as "
            f"accel_rl.envs.make_env_factory gives one for a name"
        )
    try:
        env = factory()
    except EnvError:
        raise
    except FAILURES as error:
        raise env_failure(_name(factory), "its constructor", error) from error
    if not isinstance(env, Environment):
        raise EnvError(
            f"environment {_name(factory)} is a {type(env).__name__}, which lacks methods of "
            f"accel_rl.envs.Environment; a function that makes a gymnasium.Env becomes a factory "
            f"by accel_rl.envs.make_env_factory(function)"
        )
    return env


def _make_atari(game: str, config: AtariConfig) -> Environment:
    from accel_rl.envs.atari import AtariEnv

    return AtariEnv(game, config)


def _make_from_function(path: str, info_keys: Sequence[str]) -> Environment:
    return _call(find_function("env", path), path, info_keys)


def _call(make: Callable[[], Any], name: str, info_keys: Sequence[str]) -> Environment:
    import gymnasium

    from accel_rl.envs.gymnasium_env import GymnasiumEnv

    try:
        env = make()
    except FAILURES as error:
        raise env_failure(name, "its constructor", error) from error
    if isinstance(env, gymnasium.Env):
        return GymnasiumEnv(lambda: env, name, info_keys)
    if isinstance(env, Environment):
        if info_keys:
            raise EnvError(
                f"info_keys=[{','.join(info_keys)}] cannot be given with env={name}, an "
                f"accel_rl.envs.Environment: name them in its spec, and leave info_keys out"
            )
        return env
    raise EnvError(
        f"environment {name} is a {type(env).__name__}; the function must return a gymnasium.Env "
        f"or an accel_rl.envs.Environment"
    )


def _make_from_gymnasium(env_id: str, spec: Any, info_keys: Sequence[str]) -> Environment:
    import gymnasium

    from accel_rl.envs.gymnasium_env import GymnasiumEnv

    module_name, _, _ = env_id.rpartition(":")
    if module_name:
        import_module(module_name, "env", env_id)  # for what else it does
    # Gymnasium's own checker is left out: it slows every step, and ours raises where it warns.
    make = functools.partial(gymnasium.make, spec, disable_env_checker=True)
    return GymnasiumEnv(make, env_id, info_keys)


def _gymnasium_spec(env: str) -> Any:
    """The ``gymnasium.envs.registration.EnvSpec`` of an id; ValueError where there is none."""
    import gymnasium

    from accel_rl.envs.atari_games import atari_games, close_names

    module_name, _, env_id = env.rpartition(":")
    if module_name:
        import_module(module_name, "env", env)
    if env_id.startswith("ALE/"):
        importlib.import_module("ale_py")  # registers its environments
    try:
        spec = gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        close = close_names(env_id, [*_OWN, *atari_games(), *gymnasium.registry])
        raise ValueError(
            f"env={env} is neither an Atari game nor catch, counting, a Gymnasium id or "
            f"module:function{close and f'; did you mean {close}?'}"
        ) from error
    entry_point = spec.entry_point
    if isinstance(entry_point, str) and entry_point.startswith(_MAIN):
        spec = copy.copy(spec)
        spec.entry_point = find_function("env", entry_point)
    return spec


def _name(factory: EnvFactory) -> str:
    return getattr(factory, "__name__", repr(factory))
