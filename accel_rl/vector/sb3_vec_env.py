"""The samplers' worker processes behind Stable-Baselines3's interface for vector environments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv

from accel_rl.envs.reach import call, get_attr, is_wrapped, set_attr
from accel_rl.spaces import write_values, zeros
from accel_rl.vector.vector_env import Array, VectorEnv, check_wrapped

Indices = int | Iterable[int] | None


class SB3VecEnv(VecEnv):
    """A `VectorEnv` in SAME_STEP mode as a Stable-Baselines3 ``VecEnv``.

    Observations ``[num_envs, ...]``, rewards ``[num_envs]`` float32, dones ``[num_envs]`` bool (a
    lost life included, where lives count as episodes). The info of each environment has
    ``raw_reward``, ``episode_ended`` and what it told of the ``info_keys`` of ``env``; of one that
    is done also ``terminal_observation`` and ``TimeLimit.truncated``. ``is_success`` among these
    makes Stable-Baselines3 log a success rate.

    Environments are reached in their workers. `seed` and options take effect with the next `reset`.

    Raises:
        ValueError: ``env`` is no `VectorEnv`, is in another mode, has several groups (this steps
            all of them at once), or gives views.
    """

    def __init__(self, env: VectorEnv) -> None:
        check_wrapped(env, AutoresetMode.SAME_STEP, "Stable-Baselines3")
        self._env = env
        actions = env.single_action_space
        if isinstance(actions, spaces.Discrete):  # from 0, as all policies there count
            actions = spaces.Discrete(int(actions.n))
        super().__init__(env.num_envs, env.single_observation_space, actions)

    def reset(self) -> Any:
        """First observations of new episodes."""
        options = next(filter(None, self._options), None)
        observation, _ = self._env.reset(seed=self._seeds, options=options)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: Array) -> None:
        """Release all environments; ``actions``: ``[num_envs, ...]``."""
        spec = self._env.env_spec
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
        for source in (columns, columns.get("final_info", {})):
            for key in self._env.info_keys:
                for i in np.flatnonzero(source.get(f"_{key}", ())):
                    values = source[key][i]
                    infos[i][key] = values.copy() if np.ndim(values) else float(values)
        done = terminated | truncated
        for i in np.flatnonzero(done):
            infos[i]["terminal_observation"] = columns["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        return observation, reward.astype(np.float32), done, infos

    def close(self) -> None:
        """End the workers. Calling it again does nothing."""
        self._env.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of each environment."""
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
        return self._env.reach(get_attr, dict.fromkeys(chosen, (attr_name,)))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of each environment."""
        self._env.reach(set_attr, dict.fromkeys(self._get_indices(indices), (attr_name, value)))

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each environment."""
        arguments = (method_name, method_args, method_kwargs)
        return self._env.reach(call, dict.fromkeys(self._get_indices(indices), arguments))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether each environment has such a wrapper."""
        arguments = dict.fromkeys(self._get_indices(indices), (wrapper_class,))
        return self._env.reach(is_wrapped, arguments)
