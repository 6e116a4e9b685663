"""The samplers' worker processes behind TorchRL's interface for batched environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from accel_rl.samplers.policy_output import write_actions
from accel_rl.vector.vector_env import Array, VectorEnv, check_wrapped


class TorchRLEnv(EnvBase):  # type: ignore[misc]
    """A `VectorEnv` in DISABLED mode as a TorchRL environment of batch size ``[num_envs]``.

    TorchRL resets where an episode is done, a lost life included where lives count as episodes (the
    game goes on then). Steps give ``observation`` ``[num_envs, ...]``, and ``raw_reward``,
    ``reward`` (both float32), ``done``, ``terminated`` and ``truncated`` ``[num_envs, 1]``, and
    none of the ``info_keys`` of ``env``. A seed takes effect with the next reset of all
    environments.

    Raises:
        ValueError: ``env`` is no `VectorEnv`, is in another mode, has several groups (this steps
            all of them at once), or gives views.
    """

    def __init__(self, env: VectorEnv) -> None:
        check_wrapped(env, AutoresetMode.DISABLED, "TorchRL")
        B, space = env.num_envs, env.single_observation_space
        super().__init__(batch_size=torch.Size([B]))
        self._env = env
        self._next_seed: int | None = None
        assert space.shape is not None
        dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype
        flag = Categorical(2, shape=(B, 1), dtype=torch.bool)
        self.observation_spec = Composite(
            observation=Unbounded(shape=(B, *space.shape), dtype=dtype),
            raw_reward=Unbounded(shape=(B, 1), dtype=torch.float32),
            shape=(B,),
        )
        self.action_spec = Categorical(env.num_actions, shape=(B,))
        self.reward_spec = Unbounded(shape=(B, 1), dtype=torch.float32)
        self.done_spec = Composite(
            done=flag.clone(), terminated=flag.clone(), truncated=flag.clone(), shape=(B,)
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            seed, self._next_seed = self._next_seed, None
            observation, _ = self._env.reset(seed=seed)
        else:
            options = {"reset_mask": mask.reshape(-1).cpu().numpy()}
            observation, _ = self._env.reset(options=options)
        none = np.zeros(self._env.num_envs)
        return self._results(observation, none, {"terminated": none > 0, "truncated": none > 0})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if tensordict.get("_step", None) is not None:
            raise NotImplementedError(
                "all environments step at once: leave break_when_all_done out"
            )
        action = np.zeros(self._env.num_envs, np.int64)
        write_actions(action, tensordict["action"].cpu().numpy(), self._env.num_actions)
        results = self._env.step(action + self._env.first_action)
        observation, reward, terminated, truncated, infos = results
        flags = {"terminated": terminated, "truncated": truncated}
        return self._results(observation, infos["raw_reward"], flags, reward)

    def _results(
        self,
        observation: Array,
        raw_reward: Array,
        flags: dict[str, Array],
        reward: Array | None = None,
    ) -> Any:
        values = {name: _column(flag) for name, flag in flags.items()}
        if reward is not None:
            values["reward"] = _column(reward.astype(np.float32))
        values["done"] = values["terminated"] | values["truncated"]
        values["observation"] = torch.from_numpy(observation)
        values["raw_reward"] = _column(raw_reward.astype(np.float32))
        results = TensorDict(values, batch_size=self.batch_size)
        return results if self.device is None else results.to(self.device)

    @property
    def is_closed(self) -> bool:
        """Whether the workers have ended."""
        return self._env.closed

    @is_closed.setter
    def is_closed(self, value: bool) -> None:
        """TorchRL's base classes set it as they see it."""

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def close(self, **options: Any) -> None:
        """End the workers. Calling it again does nothing."""
        self._env.close()
        super().close(**options)


def _column(values: Array) -> torch.Tensor:
    return torch.from_numpy(values)[:, None]
