"""Any `gymnasium.vector.VectorEnv` as a batch of simulators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from accel_rl.envs.base import Array
from accel_rl.envs.batched import Batched, BatchReset, Results
from accel_rl.envs.errors import EnvError
from accel_rl.envs.gymnasium_env import number_of, reset_seeded, seed_spaces
from accel_rl.envs.make import gymnasium_spec
from accel_rl.spaces import follow
from accel_rl.vector.adapters.spec import check_array, check_observations, read_spec, write_info
from accel_rl.vector.vector_env import VectorEnv

PAUSE = "accel_rl.pause"
"""option of a reset that pauses environments"""

_OWN_MODES: dict[AutoresetMode, BatchReset] = {
    AutoresetMode.DISABLED: "disabled",
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
}


def make_gymnasium_vector(env_id: str, *, info_keys: Sequence[str] = (), **options: Any) -> Batched:
    """Return a factory of batches that `gymnasium.make_vec` makes.

    An environment that has a vector entry point, such as ``CartPole-v1``, resets as that does. Of
    others a `gymnasium.vector.SyncVectorEnv` is made, which is reset by the sampler.

    Args:
        env_id: a Gymnasium id, ``module:Id-v0`` for one that a module registers.
        info_keys: numbers in the infos of each step that the rollout keeps.
        options: more arguments of `gymnasium.make_vec`, ``vectorization_mode`` for example.
    """
    spec = gymnasium_spec(env_id)
    mode = options.pop("vectorization_mode", None)
    mode = mode or ("vector_entry_point" if spec.vector_entry_point else "sync")
    if mode != "vector_entry_point":
        vector_options = {"autoreset_mode": AutoresetMode.DISABLED}
        options["vector_kwargs"] = vector_options | (options.pop("vector_kwargs", None) or {})
        options["wrappers"] = (*(options.pop("wrappers", None) or ()), Pausing)
    name = f"gymnasium-vec:{env_id}"
    make = partial(_make, spec, name, tuple(info_keys), options | {"vectorization_mode": mode})
    return Batched(make, name=name)


def _make(
    spec: Any, name: str, info_keys: Sequence[str], options: dict[str, Any], n: int
) -> GymnasiumVector:
    made = GymnasiumVector(gymnasium.make_vec(spec, num_envs=n, **options), n, name, info_keys)
    made.rests = Pausing in options.get("wrappers", ())
    return made


class Pausing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that takes no step from a reset with the option `PAUSE` to its next reset.

    A vector environment without autoreset refuses to step environments that have ended. So those
    that wait for their reset are paused, and are reset only once.
    """

    _last: Any = None
    _is_paused = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._is_paused = bool(options and PAUSE in options)
        if self._is_paused:
            return self._last, {}
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._is_paused:
            return self._last, 0.0, False, False, {}
        results = self.env.step(action)
        self._last = results[0]
        return results


class GymnasiumVector:
    """A vector environment of Gymnasium's as `accel_rl.envs.Simulators`.

    `SyncVectorEnv`, `AsyncVectorEnv` and `accel_rl.vector.VectorEnv` take a seed for each
    environment; environments there are seeded as they are alone. Others are seeded with the number
    of the first environment, whose rollouts then depend on how many environments a worker has.

    Args:
        env: the vector environment. The mode in its ``metadata`` says how it resets.

    Attributes:
        rests: True: `step` leaves environments as they are whose episode has ended.
    """

    def __init__(self, env: Any, n: int, name: str, info_keys: Sequence[str] = ()) -> None:
        self.env = env
        self._n = n
        if env.num_envs != n:
            raise EnvError(f"environment {name} has num_envs={env.num_envs}; it must have {n}")
        self.spec, self._first_action = read_spec(
            name, env.single_observation_space, env.single_action_space, info_keys, env=env
        )
        self.observation_space = env.single_observation_space
        try:
            mode = AutoresetMode(env.metadata.get("autoreset_mode"))
        except ValueError:
            raise EnvError(
                f"environment {name} has the autoreset_mode {env.metadata.get('autoreset_mode')!r} "
                f"in its metadata; it must be a gymnasium.vector.AutoresetMode"
            ) from None
        self.autoreset = _OWN_MODES[mode]
        if self.autoreset == "disabled" and type(env) is SyncVectorEnv:
            env.envs = [each if isinstance(each, Pausing) else Pausing(each) for each in env.envs]
        self.rests = type(env) is SyncVectorEnv
        self.reset_info = np.full((n, len(self.spec.info_keys)), np.nan, np.float32)
        self._takes_seeds = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv | VectorEnv)
        self._seeds: list[int | None] = [None] * n
        self._has_ended = np.zeros(n, np.bool_)  # and was not reset, in a mode without autoreset

    def seed(self, seeds: Sequence[np.random.SeedSequence | None]) -> None:
        if self._takes_seeds or None not in seeds:
            self._seeds = [None if seed is None else number_of(seed) for seed in seeds]

    def reset(self, mask: NDArray[np.bool_], out: Array) -> None:
        options = None if mask.all() else {"reset_mask": mask.copy()}
        seeds = self._take_seeds(mask)
        if isinstance(seeds, list):
            for env, seed in zip(getattr(self.env.unwrapped, "envs", ()), seeds, strict=False):
                if seed is not None:
                    seed_spaces(env, seed)
        observation, infos = reset_seeded(self.env.reset, seeds, options=options)
        for path, given in check_observations(self.spec, observation, self._n):
            follow(out, path)[mask] = given[mask]
        self._has_ended &= ~mask
        if self.spec.info_keys:
            self.reset_info.fill(np.nan)
            write_info(self.spec.info_keys, infos, self.reset_info, mask)

    def step(self, action: NDArray[np.int64], out: Array, results: Results) -> None:
        if self.autoreset == "disabled" and self._has_ended.any():
            # The caller does not look at these, and Gymnasium does not step them as they are.
            self.env.reset(options={"reset_mask": self._has_ended.copy(), PAUSE: True})
        if self._first_action:
            action = action + self._first_action
        returned = self.env.step(action)
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise EnvError(
                f"environment {self.spec.name}: step must return observation, reward, terminated, "
                f"truncated, info"
            )
        observation, reward, terminated, truncated, infos = returned
        for path, given in check_observations(self.spec, observation, self._n):
            follow(out, path)[...] = given
        name, shape = self.spec.name, (self._n,)
        reward = check_array(name, "a reward", reward, shape, np.float32)
        terminated = check_array(name, "terminated", terminated, shape, np.bool_)
        truncated = check_array(name, "truncated", truncated, shape, np.bool_)
        results.reward[:] = results.raw_reward[:] = reward
        results.terminated[:] = terminated
        results.truncated[:] = truncated
        ended = np.logical_or(terminated, truncated, out=results.episode_ended)
        if self.autoreset == "disabled":
            self._has_ended = ended.copy()
        if self.spec.info_keys:
            write_info(self.spec.info_keys, infos, results.info)
        if self.autoreset == "same_step" and ended.any():
            self._write_finals(ended, infos, results)

    def close(self) -> None:
        self.env.close()

    def _take_seeds(self, mask: NDArray[np.bool_]) -> Any:
        """Return the seeds of the environments in ``mask``, and clear them for later resets."""
        seeds: list[int | None] = [
            seed if each else None for seed, each in zip(self._seeds, mask.tolist(), strict=True)
        ]
        if seeds.count(None) == self._n:
            return None
        self._seeds = [
            None if each else seed for seed, each in zip(self._seeds, mask.tolist(), strict=True)
        ]
        if self._takes_seeds or seeds[0] is None:
            return seeds
        return seeds[0] & 0x7FFFFFFF  # simulators in C take no more

    def _write_finals(self, ended: NDArray[np.bool_], infos: Any, results: Results) -> None:
        finals = infos.get("final_obs")
        if finals is None:
            raise EnvError(
                f"environment {self.spec.name} has autoreset_mode=SAME_STEP and returned no "
                f"final_obs in its infos"
            )
        rows, out = np.flatnonzero(ended), results.final_observation
        if isinstance(finals, np.ndarray) and finals.dtype == object:
            for i in rows:
                for path, given in check_observations(self.spec, finals[i]):
                    follow(out, path)[i] = given
        else:
            for path, given in check_observations(self.spec, finals, self._n):
                follow(out, path)[rows] = given[rows]
        if self.spec.info_keys:
            self.reset_info[rows] = results.info[rows]
            results.info[rows] = np.nan
            final_infos = infos.get("final_info", {})
            write_info(self.spec.info_keys, final_infos, results.info, ended)
