"""Running moments of observations and rewards, by which both are normalized.

They change once for each rollout, when it is learned from. What acted in a rollout is kept with it,
and it is learned from with the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.agents import Normalizer, RolloutTensors
from accel_rl.algos.returns import discounted_returns
from accel_rl.algos.task import Task
from accel_rl.models.joined import indicated
from accel_rl.parallel import Exchange
from accel_rl.spaces import ACTION_MASK, OBSERVATION, Leaf, without_mask

if TYPE_CHECKING:
    from accel_rl.algos.actor_critic import ActorCriticAgent, ActorCriticConfig

EPS = 1e-8
"""added to variances"""
REWARD_LIMIT = 10.0
"""normalized rewards are clipped to this, on both sides"""


@dataclass
class Moments:
    """Mean and variance of all numbers so far, element by element, in float64.

    Attributes:
        count: 0-d, of samples.
        mean: ``[...]``.
        variance: ``[...]``, of the population; ones while there are no samples.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def none(cls, shape: tuple[int, ...], device: torch.device) -> Moments:
        """Return those of no samples."""
        count, mean = (torch.zeros(s, dtype=torch.float64, device=device) for s in ((), shape))
        return cls(count, mean, torch.ones_like(mean))

    def add(self, x: Tensor, valid: Tensor, exchange: Exchange) -> None:
        """Count in the samples of all learners that share the update.

        By the formula for two sets of samples of Chan, Golub and LeVeque (1979).

        Args:
            x: ``[N, ...]``.
            valid: ``[N]`` bool, which of them count.
            exchange: Adds up what the learners have.
        """
        x, weight = x.double(), valid.double()
        rows = weight.view(-1, *(1,) * (x.ndim - 1))
        sums = torch.cat(((x * rows).sum(0).flatten(), weight.sum(0, keepdim=True)))
        sums = exchange.sum(sums)
        count, mean = sums[-1], (sums[:-1] / sums[-1].clamp(min=1)).view(self.mean.shape)
        square = exchange.sum(((x - mean).square() * rows).sum(0))
        whole = (self.count + count).clamp(min=1)
        shift = mean - self.mean
        square += self.variance * self.count + shift.square() * (self.count * count / whole)
        is_new = self.count + count > 0
        self.variance = torch.where(is_new, square / whole, self.variance)
        self.mean = self.mean + shift * (count / whole)
        self.count = self.count + count


class Normalization:
    """The moments of a learner, and what it does with them to each rollout.

    Args:
        config: Which of observations and rewards are normalized.
        agent: It acts with the newest moments, see `PolicyAgent.normalizer`.
        exchange: Meets the learners that share updates.
        task: What the learner learns.

    Raises:
        ValueError: Observations are images, or there are no numbers to normalize.
    """

    def __init__(
        self,
        config: ActorCriticConfig,
        agent: ActorCriticAgent,
        exchange: Exchange,
        task: Task,
    ) -> None:
        device = exchange.parameters.parameter.device
        self._agent, self._exchange, self._gamma = agent, exchange, config.gamma
        self._observations: dict[str, Moments] | None = None
        self._rewards: Moments | None = None
        if config.normalize_observation:
            leaves = normalized_leaves(task.env.observation)
            self._observations = {
                name: Moments.none(leaf.shape, device) for name, leaf in leaves.items()
            }
            agent.normalizer = self._normalizer()
        if config.normalize_reward:
            self._rewards = Moments.none((), device)
            self._sums = torch.zeros(task.num_envs, dtype=torch.float64, device=device)

    def take(self, batch: RolloutTensors) -> RolloutTensors:
        """Count ``batch`` in; return it normalized.

        Observations by what acted in it, rewards by the moments with it. From now on the agent
        normalizes by the new moments.
        """
        if self._observations is not None:
            batch = self._take_observations(batch, self._observations)
        if self._rewards is not None:
            batch = self._take_rewards(batch, self._rewards)
        return batch

    def _take_observations(
        self, batch: RolloutTensors, observations: dict[str, Moments]
    ) -> RolloutTensors:
        acted = batch.normalizer
        assert acted is not None, "the ActionServer gives it"
        T = len(batch.reward)
        for name, moments in observations.items():
            is_one = isinstance(batch.observation, Tensor)
            raw = batch.observation if is_one else batch.observation[name]
            moments.add(raw[:T].flatten(0, 1), batch.valid.flatten(), self._exchange)
        self._agent.normalizer = self._normalizer()
        return batch._replace(
            observation=acted(batch.observation),
            final_observation=acted(batch.final_observation),
            normalizer=None,
        )

    def _take_rewards(self, batch: RolloutTensors, moments: Moments) -> RolloutTensors:
        over = batch.terminated | batch.truncated
        discount = self._gamma * (~over).double()
        # Forward in time: the running sum before a step is what an episode has collected so far.
        before = torch.cat((torch.ones_like(discount[:1]), discount[:-1]))
        reward = batch.reward.double()
        sums = discounted_returns(reward.flip(0), before.flip(0), self._sums).flip(0)
        self._sums = sums[-1] * discount[-1]
        moments.add(sums.flatten(), batch.valid.flatten(), self._exchange)
        scale = (moments.variance + EPS).rsqrt()
        scaled = (reward * scale).clamp_(-REWARD_LIMIT, REWARD_LIMIT)
        return batch._replace(reward=scaled.to(batch.reward.dtype))

    def _normalizer(self) -> Normalizer:
        assert self._observations is not None
        return Normalizer(
            {name: each.mean.float() for name, each in self._observations.items()},
            {
                name: (each.variance + EPS).rsqrt().float()
                for name, each in self._observations.items()
            },
        )

    def get_state(self) -> dict[str, Any]:
        """Return what is added to a learner's state: tensors on the CPU."""
        observations = self._observations or {}
        state: dict[str, Any] = {name: _to_tensors(each) for name, each in observations.items()}
        if self._rewards is None:
            return {"observation_moments": state}
        return {
            "observation_moments": state,
            "reward_moments": _to_tensors(self._rewards),
            "reward_sums": self._sums.cpu().clone(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a learner's state. With other environments their sums begin anew."""
        if self._observations is not None:
            for name, each in self._observations.items():
                _restore(each, state["observation_moments"][name])
            self._agent.normalizer = self._normalizer()
        if self._rewards is not None:
            _restore(self._rewards, state["reward_moments"])
            sums = state.get("reward_sums")
            if sums is not None and sums.shape == self._sums.shape:
                self._sums = sums.to(self._sums.device).clone()


def normalized_leaves(observation: Any) -> dict[str, Leaf]:
    """Return the leaves of an observation that are normalized, by their names.

    All but action masks, images, and the integers of a mapping that a network takes as names of
    their values (`indicated`). A single leaf is `OBSERVATION`.

    Raises:
        ValueError: There is none, or a leaf lies in an inner mapping.
    """
    leaves = {OBSERVATION: observation} if isinstance(observation, Leaf) else dict(observation)
    leaves.pop(ACTION_MASK, None)
    if not all(isinstance(each, Leaf) for each in leaves.values()):
        raise ValueError(
            "normalize_observation=true takes observations of one mapping, and there is another "
            "mapping in it; leave it out, or flatten the observations"
        )
    is_alone = isinstance(without_mask(observation), Leaf)
    numbers = {
        name: leaf
        for name, leaf in leaves.items()
        if not (leaf.dtype == np.uint8 and len(leaf.shape) == 3)
        and (is_alone or indicated(leaf) is None)
    }
    if not numbers:
        raise ValueError(
            "normalize_observation=true is for numbers, and observations are images, which "
            "networks scale themselves, or integers that are names; leave it out"
        )
    return numbers


def make_normalization(
    config: ActorCriticConfig, agent: ActorCriticAgent, exchange: Exchange, task: Task | None
) -> Normalization | None:
    """Return what ``config`` asks for; None: nothing."""
    if not (config.normalize_observation or config.normalize_reward):
        return None
    assert task is not None
    return Normalization(config, agent, exchange, task)


def _to_tensors(moments: Moments) -> dict[str, Tensor]:
    return {name: each.cpu().clone() for name, each in vars(moments).items()}


def _restore(moments: Moments, state: Mapping[str, Tensor]) -> None:
    for name, each in state.items():
        setattr(moments, name, each.to(moments.mean.device).clone())
