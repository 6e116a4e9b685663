"""The samplers' worker processes behind TorchRL's interface for batched environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase

from accel_rl.spaces import Leaf, Space, write_values, zeros
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
        B, spec = env.num_envs, env.env_spec
        super().__init__(batch_size=torch.Size([B]))
        self._env = env
        self._next_seed: int | None = None
        flag = Categorical(2, shape=(B, 1), dtype=torch.bool)
        self.observation_spec = Composite(
            observation=_observation_spec(spec.observation, B),
            raw_reward=Unbounded(shape=(B, 1), dtype=torch.float32),
            shape=(B,),
        )
        action_spec = _action_spec(spec.action, B)
        if not isinstance(spec.action, Leaf):
            action_spec = Composite(action=action_spec, shape=(B,))
        self.action_spec = action_spec
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
        env, space = self._env, self._env.env_spec.action
        action = zeros(space, env.num_envs)
        write_values(space, _arrays(space, tensordict["action"]), action)
        results = env.step(action + env.first_action if env.first_action else action)
        observation, reward, terminated, truncated, infos = results
        flags = {"terminated": terminated, "truncated": truncated}
        return self._results(observation, infos["raw_reward"], flags, reward)

    def _results(
        self,
        observation: Any,
        raw_reward: Array,
        flags: dict[str, Array],
        reward: Array | None = None,
    ) -> Any:
        values: dict[str, Any] = {name: _column(flag) for name, flag in flags.items()}
        if reward is not None:
            values["reward"] = _column(reward.astype(np.float32))
        values["done"] = values["terminated"] | values["truncated"]
        values["observation"] = _tensors(observation, self.batch_size)
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


def _observation_spec(space: Space, B: int) -> Any:
    if not isinstance(space, Leaf):
        parts = {name: _observation_spec(each, B) for name, each in space.items()}
        return Composite(parts, shape=(B,))
    return Unbounded(shape=(B, *space.shape), dtype=_dtype(space))


def _action_spec(space: Space, B: int) -> Any:
    if not isinstance(space, Leaf):
        parts = {name: _action_spec(each, B) for name, each in space.items()}
        return Composite(parts, shape=(B,))
    if space.num_values is not None and not space.low:
        return Categorical(space.num_values, shape=(B,), dtype=_dtype(space))
    if space.counts is not None and space.low == 0 and len(space.shape) == 1:
        counts = torch.tensor(space.counts).expand(B, -1)
        return MultiCategorical(counts, shape=(B, *space.shape), dtype=_dtype(space))
    low, high = space.bounds
    if low is None or high is None:
        return Unbounded(shape=(B, *space.shape), dtype=_dtype(space))
    bounds = (torch.from_numpy(bound.copy()).expand(B, *space.shape) for bound in (low, high))
    return Bounded(*bounds, shape=(B, *space.shape), dtype=_dtype(space))


def _dtype(leaf: Leaf) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, leaf.dtype.name)
    return dtype


def _arrays(space: Space, values: Any) -> Any:
    """The arrays in a tensor or a TensorDict."""
    if isinstance(space, Leaf):
        return values.cpu().numpy()
    return {name: _arrays(each, values[name]) for name, each in space.items()}


def _tensors(values: Any, batch_size: torch.Size) -> Any:
    """The tensors over Gymnasium's observations; a TensorDict for a dict or a tuple."""
    if isinstance(values, tuple):
        values = {str(i): each for i, each in enumerate(values)}
    if isinstance(values, dict):
        parts = {name: _tensors(each, batch_size) for name, each in values.items()}
        return TensorDict(parts, batch_size=batch_size)
    return torch.from_numpy(values)
