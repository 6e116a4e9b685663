"""From the name of an environment to a factory of it, which a worker process can be sent."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import (
    Array,
    EnvFactory,
    Environment,
    EnvSpec,
    close_quietly,
    is_environment,
)
from accel_rl.envs.batched import ADAPTERS, Batched, Results, call_factory, is_batch, name_of
from accel_rl.envs.catch import Catch
from accel_rl.envs.errors import EnvError, close_names, naming
from accel_rl.envs.minatar import PREFIX as MINATAR
from accel_rl.envs.minatar import MinAtarEnv, check_game
from accel_rl.spaces import ACTION_MASK, random_values, zeros
from accel_rl.system.extras import how_to_install
from accel_rl.system.functions import FAILURES, find_function, import_module, suggest_function
from accel_rl.system.process_settings import all_settings, directory, taking_back
from accel_rl.system.topology import warn_once

# Emulator, OpenCV and Gymnasium are imported in the functions that need them: they take 0.5 s.

ADAPTED = {
    "envpool": f"{ADAPTERS}envpool:make_envpool",
    "gymnasium-vec": f"{ADAPTERS}gymnasium_vector:make_gymnasium_vector",
}
"""functions that make a `Batched`, by what stands before the colon in the name of an environment"""
_MAIN = ("__main__:", "__mp_main__:")
"""what is in that module goes to workers by value: they have another main module"""
GIVEN: dict[str, Callable[..., Any]] = {}
"""functions that a program has given as environments, by the names that stand in configs"""
_NUM_PROBE_STEPS = 20

_Found = TypeVar("_Found")


def make_env_factory(
    env: str | Callable[[], Any],
    atari: AtariConfig = AtariConfig(),  # noqa: B008
    info_keys: Sequence[str] = (),
) -> EnvFactory:
    """Return a picklable factory of an environment.

    Args:
        env: an Atari game (``breakout``), a game of MinAtar (``minatar/breakout``), ``catch``,
            a Gymnasium id (``CartPole-v1``, or ``module:Id-v0`` if a module registers it), a batch
            (``envpool:Breakout-v5``, ``gymnasium-vec:CartPole-v1``), or ``module:function``. The
            function returns a `gymnasium.Env`, an `Environment` or a `Batched`. A function or a
            `Batched` itself may be given instead of a name. The function may have one parameter,
            ``env_index``, which receives the number of the environment.
        atari: how Atari games are played; ignored by other environments.
        info_keys: numbers to keep from the ``info`` of a Gymnasium environment (`StepResult.info`).
            An `Environment` names its own in its spec.

    Raises:
        ValueError: there is no such environment (the message suggests close names), it has no
            ``info``, or ``env`` is neither a name nor a function.
    """
    if not isinstance(env, str):
        if not callable(env):
            raise ValueError(f"env is {env!r}; it must be a name or a function that makes it")
        return _named(name_of(env), _call, env, name_of(env), info_keys)
    if env in GIVEN:
        return _named(env, _call, GIVEN[env], env, info_keys)
    if env == "catch" or is_atari_game(env) or env.startswith(MINATAR):
        if info_keys:
            raise ValueError(
                f"info_keys=[{','.join(info_keys)}] cannot be given with env={env}, which has no "
                f"info, as Gymnasium's environments have (ALE/Pong-v5); leave it out"
            )
        if env.startswith(MINATAR):
            return _named(env, MinAtarEnv, check_game(env))
        return Catch if env == "catch" else _named(env, _make_atari, env, atari)
    kind, _, task = env.partition(":")
    if kind in ADAPTED:
        batched = find_function("env", ADAPTED[kind])(task, info_keys=info_keys)
        return _named(env, batched)
    if ":" in env and not re.search(r"-v\d+$", env):
        if "<" in env or (env.startswith(_MAIN) and not hasattr(sys.modules.get(kind), task)):
            raise ValueError(
                f"env={env} is a function or class of the program that began the run; give it "
                f"again, as in accel_rl.load(RUN, env=FUNCTION)"
            )
        function = find_function("env", env)
        if env.startswith(_MAIN):
            return _named(env, _call, function, env, info_keys)
        return _named(env, _make_from_function, env, info_keys)
    # The registry of this process: a worker has only what its own imports register.
    return _named(env, _make_from_gymnasium, env, gymnasium_spec(env), info_keys)


@contextlib.contextmanager
def giving(name: str | None, function: Callable[..., Any] | None) -> Iterator[None]:
    """Let ``name`` stand for an environment that a program has given, within."""
    before = GIVEN.copy()
    if name is not None and function is not None:
        GIVEN[name] = function
    try:
        yield
    finally:
        GIVEN.clear()
        GIVEN.update(before)


def name_for_configs(env: Callable[..., Any]) -> str:
    """Return the name under which a config has an environment that a program gives.

    If other programs can import the function or class, the name is ``module:function``.
    """
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", None)
    if name is None or module is None:  # of an object that is called
        return f"__main__:<{name_of(env)}>"
    is_found = getattr(sys.modules.get(module), name, None) is env
    return f"{module}:{name}" if is_found or "<" in name else f"{module}:<{name}>"


def is_atari_game(env: str) -> bool:
    """Return whether a name is that of an Atari game, so that `AtariConfig` applies.

    Args:
        env: name of an environment.
    """
    return env in _atari_games()[0]


def _atari_games() -> tuple[tuple[str, ...], str]:
    """Return the games that can be played, and the package to install if there are none."""
    try:
        from accel_rl.envs.atari_games import atari_games
    except ImportError as error:
        return (), f"; Atari games need packages ({error}): {how_to_install('atari')}"
    return atari_games(), ""


def probe_spec(factory: EnvFactory) -> EnvSpec:
    """Return the spec of a factory's environments. One is made in this process and closed.

    Args:
        factory: makes an `Environment`.

    Raises:
        EnvError: the environment failed.
    """
    spec: EnvSpec = probe(factory, lambda env: env.spec)
    return spec


def probe_observations(factory: EnvFactory) -> Array:
    """Return two observations, ``[2, ...]``, from an environment made and closed in this process.

    The first of an episode, and the first one in a few steps that differs from it, if one does.
    """
    return probe(factory, _look_at_observations)


def probe(factory: EnvFactory, look: Callable[[Any], _Found]) -> _Found:
    """Return what ``look`` finds in an environment that is made for it and closed afterwards.

    It is an `Environment`, or `Simulators` with one environment.

    If closing fails, there is a warning.
    """
    if not callable(factory):
        raise EnvError(
            f"the factory is {factory!r}; it must be a function that makes an environment, as "
            f"accel_rl.envs.make_env_factory gives one for a name"
        )
    name = name_of(factory)
    with taking_back([*all_settings(), directory()]):  # nobody needs any more what it changes
        with naming(name, "its constructor"):
            made = env = call_factory(factory, 0)
            if isinstance(made, Batched):
                env = made.make(1)
            is_fitting = isinstance(made, Batched) or is_environment(made)
        if not is_fitting:
            close_quietly(env)
            raise EnvError(
                f"environment {name} is a {type(env).__name__}, which lacks methods of "
                f"accel_rl.envs.Environment; a function that makes a gymnasium.Env becomes a "
                f"factory by accel_rl.envs.make_env_factory(function)"
            )
        try:
            return look(env)
        finally:
            try:
                with naming(name, "close"):
                    env.close()
            except EnvError as error:
                warn_once(str(error))


def _look_at_observations(env: Any) -> Array:
    spec, everything = env.spec, np.ones(1, np.bool_)
    found, out = zeros(spec.observation, 2), zeros(spec.observation, 1)
    batched, results = is_batch(env), Results.allocate(spec, 1)

    def reset() -> None:
        env.reset(everything, out) if batched else env.reset(out[0, ...])

    with naming(spec.name, "its first reset"):
        seed = np.random.SeedSequence(0)
        env.seed([seed] if batched else seed)
        reset()
    found[:] = out
    rng = np.random.default_rng(0)
    with contextlib.suppress(*FAILURES):  # an action may not be allowed where it is taken
        for _ in range(_NUM_PROBE_STEPS):
            mask = None if spec.mask is None else out[ACTION_MASK]
            action = random_values(spec.action, rng, 1, mask)
            if batched:
                env.step(action, out, results)
                ended = results.episode_ended[0]
            else:
                _, _, _, _, ended, _ = env.step(action[0], out[0, ...])
            if not np.array_equal(out[0], found[0]):
                found[1] = out[0]
                break
            if ended:
                reset()
    return found


def _make_atari(game: str, config: AtariConfig) -> Environment:
    from accel_rl.envs.atari import AtariEnv

    return AtariEnv(game, config)


def _make_from_function(path: str, info_keys: Sequence[str], env_index: int = 0) -> Any:
    return _call(find_function("env", path), path, info_keys, env_index)


def _call(make: Callable[..., Any], name: str, info_keys: Sequence[str], env_index: int = 0) -> Any:
    """Call ``make``, and return the result as an `Environment` or a `Batched`."""
    env = call_factory(make, env_index)
    gymnasium = sys.modules.get("gymnasium")  # not loaded for an environment that needs it not
    if gymnasium is not None and isinstance(env, gymnasium.Env):
        from accel_rl.envs.gymnasium_env import GymnasiumEnv

        return GymnasiumEnv(lambda: env, name, info_keys)
    if isinstance(env, Batched) or is_environment(env):
        if info_keys:
            close_quietly(env)
            raise EnvError(
                f"info_keys=[{','.join(info_keys)}] cannot be given with env={name}, an "
                f"accel_rl.envs.{'Batched' if isinstance(env, Batched) else 'Environment'}: name "
                f"them in its spec, and leave info_keys out"
            )
        return env
    close_quietly(env)
    raise EnvError(
        f"environment {name} is a {type(env).__name__}; the function must return a gymnasium.Env, "
        f"an accel_rl.envs.Environment or an accel_rl.envs.Batched"
    )


def _make_from_gymnasium(env_id: str, spec: Any, info_keys: Sequence[str]) -> Environment:
    import gymnasium

    from accel_rl.envs.gymnasium_env import GymnasiumEnv

    module_name, _, _ = env_id.rpartition(":")
    if module_name:
        import_module(module_name, "env", env_id)  # for what else it does
    # Gymnasium's own checker is left out: it slows every step, and ours raises where it warns.
    make = functools.partial(gymnasium.make, spec, disable_env_checker=True)
    try:
        return GymnasiumEnv(make, env_id, info_keys)
    except gymnasium.error.DependencyNotInstalled as error:
        if not str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
            raise
        raise EnvError(
            f"environment {env_id} needs MuJoCo, which is not installed: {how_to_install('mujoco')}"
        ) from error


def gymnasium_spec(env: str) -> Any:
    """Return Gymnasium's ``EnvSpec`` of an id, ``module:Id-v0`` or ``Id-v0``."""
    import gymnasium

    module_name, _, env_id = env.rpartition(":")
    if module_name:
        import_module(module_name, "env", env)
    if env_id.startswith("ALE/"):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers its environments
    try:
        spec = gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        if here := suggest_function("env", env):
            raise ValueError(f"env={env} is no environment; {here}") from error
        games, how_to_install_them = _atari_games()
        close = close_names(env_id, ["catch", *games, *gymnasium.registry])
        raise ValueError(
            f"env={env} is neither an Atari game nor minatar/GAME, catch, a Gymnasium id or "
            f"module:function{close and f'; did you mean {close}?'}; for an id that a package "
            f"registers give package:Id-v0, such as minigrid:MiniGrid-Empty-5x5-v0"
            f"{how_to_install_them}"
        ) from error
    entry_point = spec.entry_point
    if isinstance(entry_point, str) and entry_point.startswith(_MAIN):
        spec = copy.copy(spec)
        spec.entry_point = find_function("env", entry_point)
    return spec


def _named(name: str, make: Callable[..., Environment], *arguments: Any) -> EnvFactory:
    """A factory that calls ``make`` with ``arguments``, and says which environment it is for."""
    factory = functools.partial(make, *arguments)
    factory.__name__ = name  # type: ignore[attr-defined]  # pickled with it
    return factory
