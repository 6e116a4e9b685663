"""The recurrent state of every environment, at every step of a rollout."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents.agent import Agent
from accel_rl.agents.distributions import Drawn
from accel_rl.models.memory import joined_size, joined_state, one_step, split_state


class Remembered(NamedTuple):
    """The states before each of the ``T`` steps of a rollout, and after the last one.

    Row 0 is what was there before step 0, zeros where an episode began with it; row t + 1 what was
    there after step t, also where an episode ended with it.
    """

    state: Tensor  # [T + 1, B, S]
    previous: Tensor | None  # [T + 1, B, P], the `PreviousInputs`, if the network has some


class RecurrentStates:
    """Chooses actions with a recurrent agent, and keeps the state of each environment.

    Args:
        agent: the agent.
        horizon: steps of a rollout.
        num_envs: number of environments.
        device: device of the tensors.
        keeps_rollout: True: the tensors that `finish` returns stay valid until the next `finish`.
            False: until the next `act`.

    Attributes:
        choose: the method of the agent that `act` calls.
    """

    def __init__(
        self,
        agent: Agent,
        horizon: int,
        num_envs: int,
        device: torch.device,
        *,
        keeps_rollout: bool = False,
    ) -> None:
        assert agent.remembers
        self.choose: Any = agent.act
        self._model: Any = agent.model
        self._previous = agent.model.previous
        self._size = agent.model.state_size  # behind it lie the previous action and reward
        size = joined_size(agent.model)
        self._state = torch.zeros(num_envs, size, device=device)  # the last one
        self._rows = self._state.repeat(horizon + 1, 1, 1)  # as `finish` gives them
        self._before = torch.zeros_like(self._rows) if keeps_rollout else self._rows

    @property
    def needs_reward(self) -> bool:
        """True if `act` and `finish` need rewards."""
        return self._previous is not None

    def act(
        self,
        observation: Any,
        noise: Tensor,
        t: int,
        env_slice: slice,
        is_first: Tensor,
        reward: Tensor | None = None,
    ) -> Any:
        """Choose actions at one step.

        Args:
            observation: ``[n, ...]``.
            noise: ``[n]`` random numbers in [0, 1).
            t: the step.
            env_slice: the environments, as columns of the rollout.
            is_first: ``[n]``, True where an episode begins. The state is zeros there.
            reward: ``[n]``, rewards of the previous step, if they are needed and `finish` did not
                get them.

        Returns:
            Actions ``[n, ...]``, or `Drawn` ones, as `choose` gives them.
        """
        if self._previous is not None and reward is not None:
            self._state[env_slice, -1] = reward
            if t > 0:
                self._rows[t, env_slice, -1] = reward.to(self._rows.dtype)
        state = self._state[env_slice].masked_fill(is_first.unsqueeze(1), 0)
        if t == 0:
            self._rows[0, env_slice] = state
        own, previous = split_state(self._model, state)
        chosen, after = self.choose(observation, noise, env_slice, one_step(own, previous))
        action = chosen.action if isinstance(chosen, Drawn) else chosen
        after = joined_state(self._model, after, action)
        self._rows[t + 1, env_slice] = after
        self._state[env_slice] = after
        return chosen

    def finish(self, reward: Tensor | None = None) -> Remembered:
        """Return the states of a complete rollout.

        Args:
            reward: ``[B]``, rewards of the last step, if they are needed.
        """
        if self._previous is not None and reward is not None:
            self._state[:, -1] = reward
            self._rows[-1, :, -1] = reward
        self._rows, self._before = self._before, self._rows
        if self._previous is None:
            return Remembered(self._before, None)
        size = self._size
        return Remembered(self._before[..., :size], self._before[..., size:])

    @property
    def num_envs(self) -> int:
        return len(self._state)

    def get_state(self) -> Tensor:
        """Return the states after the last step, ``[B, S + P]`` float32 on the CPU."""
        return self._state.cpu().clone()

    def set_state(self, state: Tensor) -> None:
        """Set the states of the first ``n`` environments.

        Args:
            state: ``[n, S + P]``, of `get_state`.
        """
        self._state[: len(state)].copy_(state)
