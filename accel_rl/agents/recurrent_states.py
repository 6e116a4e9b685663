"""The recurrent state of every environment, at every step of a rollout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.agents.agent import AnyRecurrentAgent
from accel_rl.agents.recurrent import RecurrentAgent


class RecurrentStates:
    """Acts with ``agent`` for ``num_envs`` environments, in rollouts of ``horizon`` steps.

    ``keeps_rollout``: the states that `finish` gives stay as they are until the next `finish`.
    If ``agent.tells_log_prob``, `act` gives `Drawn` in place of actions.
    """

    def __init__(
        self,
        agent: AnyRecurrentAgent,
        horizon: int,
        num_envs: int,
        device: torch.device,
        *,
        keeps_rollout: bool = False,
    ) -> None:
        self._choose: Any = agent.act
        if isinstance(agent, RecurrentAgent) and agent.tells_log_prob:
            self._choose = agent.act_with_log_prob
        self._state = torch.zeros(num_envs, agent.model.state_size, device=device)  # the last one
        self._rows = self._state.repeat(horizon + 1, 1, 1)  # as `finish` gives them
        self._before = torch.zeros_like(self._rows) if keeps_rollout else self._rows

    def act(self, observation: Any, uniform: Tensor, t: int, columns: slice, begins: Tensor) -> Any:
        """Actions ``[n, ...]`` of step ``t`` of the environments ``columns``.

        ``observation``: ``[n, ...]``. ``uniform``: ``[n]`` in [0, 1). ``begins``: ``[n]``, where
        the observation is the first of an episode, and so the state zeros.
        """
        state = self._state[columns].masked_fill(begins.unsqueeze(1), 0)
        if t == 0:
            self._rows[0, columns] = state
        action, after = self._choose(observation, uniform, state, columns)
        self._rows[t + 1, columns] = after
        self._state[columns] = after
        return action

    def finish(self) -> Tensor:
        """States ``[T + 1, B, S]`` of the rollout that is complete.

        Row 0 is the state before step 0, zeros where an episode began with it; row t + 1 the one
        after step t, also where an episode ended with it.
        """
        self._rows, self._before = self._before, self._rows
        return self._before

    @property
    def num_envs(self) -> int:
        return len(self._state)

    def get_state(self) -> Tensor:
        """``[B, S]`` float32 on the CPU, after the last step, for the `set_state` of another."""
        return self._state.cpu().clone()

    def set_state(self, state: Tensor) -> None:
        """Go on with ``state``, ``[n, S]``, as that of the first ``n`` environments."""
        self._state[: len(state)].copy_(state)
