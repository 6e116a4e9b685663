"""Is an environment as its spaces say? It is played with random actions in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from accel_rl.envs.base import Array, EnvFactory, EnvSpec, close_quietly
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.envs.make import make_env_factory
from accel_rl.rollout import Rollout
from accel_rl.samplers.sampler import SerialSampler
from accel_rl.spaces import ACTION_MASK, Space, describe, follow, leaves_of, random_values, zeros
from accel_rl.vector.check import Broken, NotTested, Report, find, leaving_nothing, once, require


class _Played(NamedTuple):
    spec: EnvSpec
    rollout: Rollout
    steps_per_second: float


def check_env(
    env: str | Callable[[], Any],
    *,
    num_envs: int = 2,
    num_steps: int = 300,
    seed: int = 7,
    timeout: float = 60.0,
) -> Report:
    """Play an environment with random actions, and report what is wrong with it.

    Args:
        env: as in `accel_rl.envs.make_env_factory`.
        num_envs: number of environments to play.
        num_steps: steps to play in each; enough of them that some episodes end.
        seed: of environments and actions.
        timeout: seconds after which a rule whose test has not ended counts as broken.

    Returns:
        A finding for each rule, and what the environment is like.

    Raises:
        ValueError: there is no such environment.
    """
    factory = make_env_factory(env)

    def play(seed: int, choose: Any = random_values) -> _Played:
        return _play(factory, num_envs, num_steps, seed, choose)

    first = once(lambda: play(seed))

    def played() -> _Played:
        try:
            found: _Played = first()
        except Exception:
            raise NotTested("it cannot be played") from None
        return found

    def take_bounds() -> None:
        floats = [leaf for _, leaf in leaves_of(played().spec.action) if leaf.dtype.kind == "f"]
        if not any(np.isfinite(bound).any() for leaf in floats for bound in leaf.limits):
            raise NotTested("no floats in actions have bounds")
        play(seed, _draw_bounds)

    rules: dict[str, Callable[[], object]] = {
        "it can be reset and stepped": first,
        "observations are in their space": lambda: _check_bounds(played()),
        "what it returns has the right dtypes": lambda: _check_dtypes(factory, played().spec, seed),
        "actions at their bounds are taken": take_bounds,
        "episodes end": lambda: _check_ends(played()),
        "same seed, same episodes": lambda: _check_seed(played(), play(seed)),
        "another seed, other episodes": lambda: _check_other(played(), play(seed + 1_000)),
        "no process is left behind": lambda: _check_close(factory),
    }
    report = find(rules, timeout)
    if report.findings[0].verdict != "holds":
        return report
    spec, _, speed = played()
    facts = {"environment": spec.name, "observations": describe(spec.observation)}
    facts |= {"actions": describe(spec.action), "steps a second": f"{speed:,.0f} in one process"}
    return report._replace(facts=facts)


def _play(factory: EnvFactory, num_envs: int, num_steps: int, seed: int, choose: Any) -> _Played:
    with SerialSampler(
        factory,
        num_envs=num_envs,
        horizon=num_steps,
        num_groups=1,
        decorrelation_steps=0,
        seed=seed,
    ) as sampler:
        spec, rng = sampler.env_spec, np.random.default_rng(seed)

        def policy(step: Any) -> Array:
            mask = None if spec.mask is None else step.observation[ACTION_MASK]
            actions: Array = choose(spec.action, rng, num_envs, mask)
            return actions

        began = perf_counter()
        rollout = sampler.collect(policy)
        return _Played(spec, rollout, num_envs * num_steps / (perf_counter() - began))


def _draw_bounds(space: Space, rng: np.random.Generator, n: int, mask: Any) -> Array:
    """Draw actions whose floats are at one of their bounds."""
    actions = random_values(space, rng, n, mask)
    for path, leaf in leaves_of(space):
        if leaf.dtype.kind == "f":
            part, (low, high) = follow(actions, path), leaf.limits
            drawn = np.where(rng.random(part.shape) < 0.5, low, high)
            np.copyto(part, drawn, "same_kind", where=np.isfinite(drawn))
    return actions


def _check_bounds(played: _Played) -> None:
    for path, leaf in leaves_of(played.spec.observation):
        name = "".join(f"[{each!r}]" for each in path)
        values = follow(played.rollout.observation, path)
        require(np.isfinite(values).all(), f"observation{name} is not finite")
        for bound, is_out, word in zip(leaf.bounds, _OUT, ("below", "above"), strict=True):
            if bound is not None and (outside := is_out(values, bound)).any():
                at = tuple(np.argwhere(outside)[0])
                limit = np.broadcast_to(bound, values.shape)[at]
                raise Broken(f"observation{name} is {values[at]} in step {at[0]}, {word} {limit}")


_OUT: tuple[Any, Any] = (np.less, np.greater)


class _Noted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps what the environment returned last."""

    returned: Any = None

    def reset(self, **options: Any) -> Any:
        self.returned = self.env.reset(**options)
        return self.returned

    def step(self, action: Any) -> Any:
        self.returned = self.env.step(action)
        return self.returned


def _check_dtypes(factory: EnvFactory, spec: EnvSpec, seed: int) -> None:
    """Look at what an environment of Gymnasium's returns itself, before it is converted."""
    env = factory()
    if not isinstance(env, GymnasiumEnv):
        close_quietly(env)
        raise NotTested("it is no environment of Gymnasium's")
    with closing(env):
        env.env = noted = _Noted(env.env)
        out = zeros(spec.observation, 1)
        env.seed(np.random.SeedSequence(seed))
        env.reset(out[0, ...])
        _check_observation(env, noted.returned[0], "reset")
        mask = None if spec.mask is None else out[ACTION_MASK]
        (action,) = random_values(spec.action, np.random.default_rng(seed), 1, mask)
        env.step(action, out[0, ...])
        observation, reward, *flags, _ = noted.returned
    _check_observation(env, observation, "step")
    is_number = isinstance(reward, int | float | np.number)
    require(is_number, f"step returned a reward of type {type(reward).__name__}")
    for flag in flags:
        is_bool = isinstance(flag, bool | np.bool_)
        require(is_bool, f"step returned a flag of type {type(flag).__name__}")


def _check_observation(env: GymnasiumEnv, given: Any, call: str) -> None:
    space = env.env.observation_space
    if not space.contains(given):
        dtype = getattr(given, "dtype", type(given).__name__)
        raise Broken(f"{call} returned {dtype}, which is not in its space {space!r:.80}")


def _check_ends(played: _Played) -> None:
    rollout = played.rollout
    if not rollout.episode_ended.any():
        raise NotTested(f"none has ended within {len(rollout.action)} steps")


def _is_equal(one: Rollout, other: Rollout) -> bool:
    """Return whether two rollouts are equal. Bytes are compared, so that NaN equals NaN."""
    names = ("observation", "reward", "terminated", "truncated")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)


def _check_seed(played: _Played, again: _Played) -> None:
    require(_is_equal(played.rollout, again.rollout), "the episodes differ")


def _check_other(played: _Played, other: _Played) -> None:
    if played.rollout.observation.tobytes() == other.rollout.observation.tobytes():
        raise NotTested("all observations are the same: nothing is random, or seeds are ignored")


def _check_close(factory: EnvFactory) -> None:
    with leaving_nothing():
        _play(factory, 1, 1, 0, random_values)
