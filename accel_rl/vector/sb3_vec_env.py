"""The samplers' worker processes behind Stable-Baselines3's interface for vector environments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv

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

    Environments live in worker processes and can be neither reached nor changed from here: of their
    attributes only ``render_mode``, ``spec``, ``metadata``, ``observation_space`` and
    ``action_space`` can be read, and `set_attr` and `env_method` raise. `seed` takes effect with
    the next `reset`.

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
        options = next(filter(None, self._options), None)  # which `VectorEnv` refuses
        observation, _ = self._env.reset(seed=self._seeds, options=options)
        self._reset_seeds()
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
        """What all environments have in common, once for each."""
        known = {
            "render_mode": None,
            "spec": self._env.spec,
            "metadata": self._env.metadata,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
        }
        if attr_name not in known:
            raise AttributeError(
                f"{attr_name!r} cannot be read, since environments live in worker processes; only "
                f"{', '.join(known)} can"
            )
        return [known[attr_name] for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        raise AttributeError(
            f"{attr_name!r} cannot be set, since environments live in worker processes; set it in "
            f"the function that makes them"
        )

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        raise AttributeError(
            f"{method_name!r} cannot be called, since environments live in worker processes; call "
            f"it in the function that makes them"
        )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """False for each: wrappers inside workers are not looked at."""
        return [False for _ in self._get_indices(indices)]
