"""Actors choose an agent's actions for an `ActionServer`, and add tensors to its rollout."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import torch
from torch import Tensor

from accel_rl.agents import Agent, Drawn, RecurrentStates
from accel_rl.samplers.base import PolicyInput, PolicyOutput


class Reader(Protocol):
    """Reads what comes with the observations of a step, on the agent's device."""

    def read_is_first(self, step: PolicyInput) -> Tensor:
        """Return where episodes begin, ``[n]`` bool."""
        ...

    def read_reward(self, step: PolicyInput) -> Tensor:
        """Return the rewards of the step before, ``[n]`` float32."""
        ...


class Actor:
    """Chooses actions by an agent without a memory.

    Attributes:
        choose: the method of the agent that chooses actions, or `Drawn` ones.
    """

    def __init__(self, agent: Any) -> None:
        self.choose: Any = agent.act_with_log_prob if agent.tells_log_prob else agent.act

    def prepare(self, step: PolicyInput) -> Hashable:
        """Do the host's part of a step. Return the kind of the step; each kind has a graph."""
        return None

    def act(
        self, observation: Any, noise: Tensor, step: PolicyInput, reader: Reader
    ) -> PolicyOutput:
        """Return actions, and what is kept of the step: tensors ``[n, ...]``."""
        return _output(self.choose(observation, noise, step.env_slice))

    def finish(self, reward: Tensor) -> dict[str, Any]:
        """Return further tensors of a complete rollout, by field of `RolloutTensors`."""
        return {}

    def get_state(self) -> Tensor | None:
        """Return the recurrent states between two rollouts; None: there are none."""
        return None

    def set_state(self, state: Tensor) -> None:
        """Continue with the recurrent states of another actor."""


class Remembering(Actor):
    """Chooses actions by an agent with a memory, and leaves its states in the rollout."""

    def __init__(
        self, agent: Agent, horizon: int, num_envs: int, device: torch.device, keeps_rollout: bool
    ) -> None:
        super().__init__(agent)
        sizes = horizon, num_envs, device
        self._states = RecurrentStates(agent, *sizes, keeps_rollout=keeps_rollout)
        self._has_acted = False  # so that the sampler's last rewards are those of this server
        self._takes_reward = False  # of the step before, in the step that is acted in

    def prepare(self, step: PolicyInput) -> Hashable:
        """Return whether the step takes the reward of the one before."""
        if self._states.needs_reward:
            self._takes_reward = self._has_acted or step.t > 0  # before, only a state has it
        self._has_acted |= step.t > 0
        return self._takes_reward

    def act(
        self, observation: Any, noise: Tensor, step: PolicyInput, reader: Reader
    ) -> PolicyOutput:
        """Return actions, and keep the states after them."""
        self._states.choose = self.choose
        reward = reader.read_reward(step) if self._takes_reward else None
        is_first = reader.read_is_first(step)
        given = observation, noise, step.t, step.env_slice, is_first, reward
        return _output(self._states.act(*given))

    def finish(self, reward: Tensor) -> dict[str, Any]:
        self._has_acted = True
        state, previous = self._states.finish(reward)
        return {"recurrent_state": state, "previous": previous}

    def get_state(self) -> Tensor:
        return self._states.get_state()

    def set_state(self, state: Tensor) -> None:
        self._states.set_state(state)


class Kept:
    """The tensors of all steps of a rollout, ``[T, B, ...]``, each like the first one."""

    def __init__(self, horizon: int, num_envs: int, first: Tensor, *, keeps_rollout: bool) -> None:
        self._rows = first.new_zeros(horizon, num_envs, *first.shape[1:])
        self._before = torch.zeros_like(self._rows) if keeps_rollout else self._rows

    def keep(self, values: Tensor, t: int | Tensor, env_slice: slice) -> None:
        """Keep ``[n, ...]`` of step ``t``, a number or ``[1]`` int64 on the device."""
        if isinstance(t, int):
            self._rows[t, env_slice] = values
        else:
            self._rows[:, env_slice].index_copy_(0, t, values.unsqueeze(0))

    def finish(self) -> Tensor:
        self._rows, self._before = self._before, self._rows
        return self._before


def _output(chosen: Any) -> PolicyOutput:
    if isinstance(chosen, Drawn):
        return PolicyOutput(chosen.action, {"log_prob": chosen.log_prob, "value": chosen.value})
    return PolicyOutput(chosen, {})
