"""Environments of EnvPool, which steps them in threads of its own, as a batch of simulators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Array
from accel_rl.envs.batched import Batched, Results
from accel_rl.envs.gymnasium_env import number_of
from accel_rl.spaces import follow
from accel_rl.system.extras import how_to_install
from accel_rl.system.topology import available_cpus
from accel_rl.vector.adapters.spec import check_observations, read_spec, write_info

_OWN_OPTIONS = ("num_envs", "batch_size", "seed", "env_seed", "gym_reset_return_info")


def make_envpool(
    task: str,
    *,
    autoreset: Literal["next_step", "disabled"] = "next_step",
    num_threads: int | None = None,
    info_keys: Sequence[str] = (),
    **options: Any,
) -> Batched:
    """Return a factory of batches of an EnvPool task.

    Rewards of tasks that can clip them (Atari games) are clipped for the learner; returns of
    episodes are those of the game.

    Args:
        task: an id of EnvPool's, such as ``Breakout-v5``.
        autoreset: ``next_step``: EnvPool resets environments itself. ``disabled``: the sampler
            resets them, in a second call after each step in which an episode ends, so that no step
            of a rollout is left out, ``reset_policy="wait"`` can be used, and environments take
            different numbers of random first steps. EnvPool does not seed single environments, so
            what follows random first steps depends on the number of workers.
        num_threads: threads of each batch; None: one for each CPU that its worker may use.
        info_keys: numbers in the infos of each step that the rollout keeps.
        options: more options of the task, such as ``episodic_life=True``.
    """
    name = f"envpool:{task}"
    envpool = _import(name)
    if task not in envpool.list_all_envs():
        raise ValueError(
            f"env={name} is no task of EnvPool {envpool.__version__}; use one that "
            f"envpool.list_all_envs() lists, such as Breakout-v5"
        )
    if autoreset not in ("next_step", "disabled"):
        raise ValueError(f"autoreset is {autoreset!r}; it must be next_step or disabled")
    known = envpool.make_spec(task).config._fields
    for option in options:
        if option in _OWN_OPTIONS or option not in known:
            raise ValueError(
                f"option {option} cannot be given to {name}; use one of "
                f"{', '.join(sorted(set(known) - set(_OWN_OPTIONS)))}"
            )
    if "reward_clip" in known:
        options = {"reward_clip": True} | options
    make = partial(EnvPool, task, autoreset, num_threads, tuple(info_keys), options)
    return Batched(make, name=name)


def _import(name: str) -> Any:
    try:
        import envpool
    except ImportError as error:
        raise ValueError(
            f"env={name} needs the package envpool ({error}): {how_to_install('envpool')}"
        ) from error
    return envpool


class EnvPool:
    """A batch of environments of an EnvPool task: `accel_rl.envs.Simulators`.

    EnvPool seeds environments when it makes them, so they are made in the first reset, and made
    again when all of them have new seeds.
    """

    def __init__(
        self,
        task: str,
        autoreset: Literal["next_step", "disabled"],
        num_threads: int | None,
        info_keys: Sequence[str],
        options: dict[str, Any],
        n: int,
    ) -> None:
        name = f"envpool:{task}"
        self._envpool = _import(name)
        spec = self._envpool.make_spec(task, **options)
        self._frame_skip = int(getattr(spec.config, "frame_skip", 1))
        self.spec, self._first_action = read_spec(
            name, spec.gymnasium_observation_space, spec.gymnasium_action_space, info_keys,
            self._frame_skip,
        )  # fmt: skip
        self.observation_space = spec.gymnasium_observation_space
        self.autoreset = autoreset
        num_threads = num_threads or min(n, len(available_cpus()))
        make = self._envpool.make_gymnasium
        self._make = partial(make, task, num_envs=n, num_threads=num_threads, **options)
        self._has_raw_rewards = bool(options.get("reward_clip"))
        self._lives_end = bool(options.get("episodic_life"))
        self._n = n
        self._pool: Any = None
        self._seeds: list[int] | None = None

    def seed(self, seeds: Sequence[np.random.SeedSequence | None]) -> None:
        if None not in seeds:
            # Of 31 bits, as simulators in C take them.
            self._seeds = [number_of(seed) & 0x7FFFFFFF for seed in seeds if seed is not None]

    def reset(self, mask: NDArray[np.bool_], out: Array) -> None:
        if self._seeds is not None:
            self.close()
            self._pool = self._make(env_seed=self._seeds)
            self._seeds = None
        ids = np.flatnonzero(mask).astype(np.int32)
        observation, _ = self._pool.reset(ids)
        self._write(observation, ids, out)

    def step(self, action: NDArray[np.int64], out: Array, results: Results) -> None:
        if self._first_action:
            action = action + self._first_action
        observation, reward, terminated, truncated, infos = self._pool.step(action)
        self._write(observation, None, out)
        results.reward[:] = reward
        results.raw_reward[:] = infos["reward"] if self._has_raw_rewards else reward
        results.terminated[:] = terminated
        results.truncated[:] = truncated
        np.logical_or(terminated, truncated, out=results.episode_ended)
        if self._lives_end and terminated.any():
            # A game that has only lost a life goes on with a step whose action EnvPool ignores.
            has_lost_life = terminated & ~truncated & (infos["terminated"] == 0)
            results.episode_ended[has_lost_life] = False
            if has_lost_life.any():
                ids = np.flatnonzero(has_lost_life).astype(np.int32)
                observation, *_ = self._pool.step(action[ids], ids)
                self._write(observation, ids, out)
        if self.spec.info_keys:
            write_info(self.spec.info_keys, infos, results.info)

    def _write(self, observation: Any, ids: NDArray[np.int32] | None, out: Array) -> None:
        n, rows = (self._n, slice(None)) if ids is None else (len(ids), ids)
        for path, given in check_observations(self.spec, observation, n):
            follow(out, path)[rows] = given

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
