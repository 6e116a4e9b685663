"""The samplers' worker processes behind Stable-Baselines3's interface for vector environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from accel_rl.envs.reach import call, get_attr, has_attr, is_wrapped, set_attr
from accel_rl.spaces import write_values, zeros
from accel_rl.vector.vector_env import Array, VectorEnv

Indices = int | Iterable[int] | None


class SB3VecEnv(VecEnv):
    """A `VectorEnv` in SAME_STEP mode as a Stable-Baselines3 ``VecEnv``.

    Observations ``[num_envs, ...]``, rewards ``[num_envs]`` float32, dones ``[num_envs]`` bool (a
    lost life included, where lives count as episodes). The info of each environment has
    ``raw_reward``, ``episode_ended`` and what it told of the ``info_keys`` of ``env``. If it is
    done, it also has ``terminal_observation`` and ``TimeLimit.truncated``. ``is_success`` among the
    keys makes Stable-Baselines3 log a success rate. ``reset_infos`` has the numbers of resets.

    When a game ends, the info has ``episode`` as Stable-Baselines3's ``Monitor`` writes it: the
    return ``r`` (of the whole game, unclipped and over all lives), the length ``l`` in steps, and
    the time ``t`` in seconds since this object was made. So `env_is_wrapped` answers True for a
    ``Monitor``, and no ``VecMonitor`` is needed.

    Environments are reached in their workers. `seed` and options take effect with the next `reset`.

    Raises:
        ValueError: ``env`` is no `VectorEnv`, is in another mode, has several groups (this steps
            all of them at once), or gives views.
    """

    def __init__(self, env: VectorEnv) -> None:
        _check_fits(env)
        self._env = env
        self._began = perf_counter()
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        actions = env.single_action_space
        if isinstance(actions, spaces.Discrete):  # from 0, as all policies there count
            actions = spaces.Discrete(int(actions.n))
        super().__init__(env.num_envs, env.single_observation_space, actions)

    def reset(self) -> Any:
        """Return first observations of new episodes."""
        observation, told = self._env.reset_each(self._seeds, None, self._options)
        self._returns[:] = self._lengths[:] = 0
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._add_numbers(told, self.reset_infos)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: Array) -> None:
        """Release all environments with ``actions``, ``[num_envs, ...]``."""
        spec = self._env.env_spec
        if isinstance(self.action_space, spaces.MultiBinary):  # policies there give 0.0 and 1.0
            switches = np.asarray(actions).astype(np.int8)
            actions = switches if np.array_equal(switches, actions) else actions
        given = zeros(spec.action, self.num_envs)
        write_values(spec.action, actions, given)
        self._env.send(given + self._env.first_action if self._env.first_action else given)

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Wait for what `step_async` has released."""
        observation, reward, terminated, truncated, columns = self._env.recv()
        infos: list[dict[str, Any]] = [
            {"raw_reward": raw_reward, "episode_ended": ended}
            for raw_reward, ended in zip(
                columns["raw_reward"].tolist(), columns["episode_ended"].tolist(), strict=True
            )
        ]
        done = terminated | truncated
        self._returns += columns["raw_reward"]
        self._lengths += 1
        for i in np.flatnonzero(done):
            infos[i]["terminal_observation"] = columns["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        for i in np.flatnonzero(columns["episode_ended"]):
            seconds = round(perf_counter() - self._began, 6)
            episode = {"r": float(self._returns[i]), "l": int(self._lengths[i]), "t": seconds}
            infos[i]["episode"] = episode
            self._returns[i] = self._lengths[i] = 0
        if self._env.info_keys:
            if done.any():  # what `columns` has of these is of their resets
                self.reset_infos = [
                    {} if each else old for each, old in zip(done, self.reset_infos, strict=True)
                ]
                self._add_numbers(columns, self.reset_infos, done)
            self._add_numbers(columns, infos, ~done)
            self._add_numbers(columns.get("final_info", {}), infos, done)
        return observation, reward.astype(np.float32), done, infos

    def _add_numbers(
        self, told: dict[str, Any], infos: list[dict[str, Any]], mask: Array | bool = True
    ) -> None:
        """Copy the numbers in ``told`` to the infos of the environments in ``mask``."""
        for key in self._env.info_keys:
            for i in np.flatnonzero(told.get(f"_{key}", False) & mask):
                infos[i][key] = float(told[key][i])

    def close(self) -> None:
        """End the workers. Calling it again does nothing."""
        self._env.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of each environment."""
        known = {
            "render_mode": self._env.render_mode,
            "spec": self._env.spec,
            "metadata": self._env.metadata,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
        }
        chosen = self._get_indices(indices)
        if attr_name in known:  # before the first reset, too
            return [known[attr_name] for _ in chosen]
        return self._reach(get_attr, indices, attr_name)

    def has_attr(self, attr_name: str) -> bool:
        """Return whether each environment has an attribute, which stays in its worker."""
        return all(self._reach(has_attr, None, attr_name))

    def get_images(self) -> Sequence[Any]:
        """Return each environment's picture; None without ``render_mode="rgb_array"``."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return self.env_method("render")

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        self._reach(set_attr, indices, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        return self._reach(call, indices, method_name, method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Return whether each environment has such a wrapper."""
        if wrapper_class is Monitor:  # which this is for all
            return [True for _ in self._get_indices(indices)]
        return self._reach(is_wrapped, indices, wrapper_class)

    def _reach(self, function: Callable[..., Any], indices: Indices, *arguments: Any) -> list[Any]:
        """Call a function with the environments of ``indices``, which may count from the end."""
        chosen = [range(self.num_envs)[i] for i in self._get_indices(indices)]
        return self._env.reach(function, dict.fromkeys(chosen, arguments))


def _check_fits(env: object) -> None:
    if not isinstance(env, VectorEnv):
        raise ValueError(
            f"env is {env!r}; it must be a VectorEnv, as in "
            f'VectorEnv("CartPole-v1", num_envs=8, autoreset_mode="SameStep")'
        )
    if env.autoreset_mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            f"the VectorEnv has autoreset_mode={env.autoreset_mode}; Stable-Baselines3 needs "
            f'SAME_STEP: give autoreset_mode="SameStep"'
        )
    if len(env.groups) > 1 or not env.copy:
        raise ValueError(
            f"the VectorEnv has num_groups={len(env.groups)} and copy={env.copy}; "
            f"Stable-Baselines3 steps all at once and keeps observations: leave both out"
        )
