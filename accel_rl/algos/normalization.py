"""Running moments of observations and rewards, by which both are normalized.

They change once for each rollout, when it is learned from. What acted in a rollout is kept with it,
and it is learned from with the same. Learners with a parameter store share them by another one, in
which each counts in its rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.agents import Normalizer, PolicyAgent, RolloutTensors
from accel_rl.agents.normalizer import named_leaves
from accel_rl.algos.returns import discounted_returns
from accel_rl.algos.specs import LearnerSpec
from accel_rl.models.joined import convolves, indicated
from accel_rl.parallel import GradientSync
from accel_rl.spaces import ACTION_MASK, Leaf, without_mask

EPS = 1e-8
"""added to variances"""
_ROUNDING = 1e-14
"""share of a mean that a deviation may have by rounding alone"""
REWARD_LIMIT = 10.0
"""normalized rewards are clipped to this, on both sides"""


class Moments:
    """Mean and variance of all numbers so far, element by element, in float64."""

    def __init__(self, name: str, shape: tuple[int, ...], sync: GradientSync) -> None:
        self._shape, self._sync = shape, sync
        n, device = prod(shape), sync.parameters.parameter.device
        begin = torch.zeros(1 + 2 * n, dtype=torch.float64, device=device)
        begin[1 + n :] = 1.0
        self._running = sync.running(name, begin)

    def _divide(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = prod(self._shape)
        return flat[0], flat[1 : 1 + n].view(self._shape), flat[1 + n :].view(self._shape)

    @property
    def count(self) -> Tensor:
        """0-d, of samples."""
        return self._divide(self._running.value)[0]

    @property
    def mean(self) -> Tensor:
        """``[...]``, zeros while there are no samples."""
        return self._divide(self._running.value)[1]

    @property
    def variance(self) -> Tensor:
        """``[...]``, of the population; ones while there are no samples."""
        return self._divide(self._running.value)[2]

    def add(self, x: Tensor, valid: Tensor) -> None:
        """Count in the samples of all learners that share the update.

        By the formula for two sets of samples of Chan, Golub and LeVeque (1979).
        """
        x, weight, sum_ = x.double(), valid.double(), self._sync.sum
        rows = weight.view(-1, *(1,) * (x.ndim - 1))
        sums = sum_(torch.cat(((x * rows).sum(0).flatten(), weight.sum(0, keepdim=True))))
        new, mean = sums[-1], (sums[:-1] / sums[-1].clamp(min=1)).view(self._shape)
        square = sum_(((x - mean).square() * rows).sum(0))

        def combine(flat: Tensor) -> Tensor:
            count, before, variance = self._divide(flat)
            whole = (count + new).clamp(min=1)
            shift = mean - before
            squares = square + (variance * count + shift.square() * (count * new / whole))
            variance = torch.where(count + new > 0, squares / whole, variance)
            after = before + shift * (new / whole)
            return torch.cat(((count + new).view(1), after.flatten(), variance.flatten()))

        self._running.renew(combine)

    def get_state(self) -> dict[str, Tensor]:
        """Return count, mean and variance, on the CPU."""
        count, mean, variance = self._divide(self._running.newest().cpu().clone())
        return {"count": count.clone(), "mean": mean.clone(), "variance": variance.clone()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `get_state` returned."""
        flat = torch.cat([state[name].flatten() for name in ("count", "mean", "variance")])
        self._running.restore(flat.to(self._running.value.device))


class Normalization:
    """The moments of a learner, and what it does with them to each rollout."""

    def __init__(
        self,
        agent: PolicyAgent,
        sync: GradientSync,
        task: LearnerSpec,
        *,
        observation: bool,
        reward: bool,
        gamma: float,
    ) -> None:
        device = sync.parameters.parameter.device
        self._agent, self._gamma = agent, gamma
        self._observations: dict[str, Moments] | None = None
        self._rewards: Moments | None = None
        if observation:
            leaves = normalized_leaves(task.env.observation, agent.model)
            self._observations = {
                name: Moments(name, leaf.shape, sync) for name, leaf in leaves.items()
            }
            agent.normalizer = self._normalizer()
        if reward:
            self._rewards = Moments(" rewards", (), sync)
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
        T, leaves = len(batch.reward), dict(named_leaves(batch.observation))
        for name, moments in observations.items():
            moments.add(leaves[name][:T].flatten(0, 1), batch.valid.flatten())
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
        moments.add(sums.flatten(), batch.valid.flatten())
        scale = (moments.variance + EPS).rsqrt()
        scaled = (reward * scale).clamp_(-REWARD_LIMIT, REWARD_LIMIT)
        return batch._replace(reward=scaled.to(batch.reward.dtype))

    def _normalizer(self) -> Normalizer:
        assert self._observations is not None
        return Normalizer(
            {name: each.mean.clone() for name, each in self._observations.items()},
            {
                name: (each.variance + EPS + (_ROUNDING * each.mean).square()).rsqrt().float()
                for name, each in self._observations.items()
            },
        )

    def get_state(self) -> dict[str, Any]:
        """Return what is added to a learner's state: tensors on the CPU."""
        observations = self._observations or {}
        state: dict[str, Any] = {name: each.get_state() for name, each in observations.items()}
        if self._rewards is None:
            return {"observation_moments": state}
        return {
            "observation_moments": state,
            "reward_moments": self._rewards.get_state(),
            "reward_sums": self._sums.cpu().clone(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a learner's state. With other environments their sums begin anew."""
        if self._observations is not None:
            for name, each in self._observations.items():
                each.set_state(state["observation_moments"][name])
            self._agent.normalizer = self._normalizer()
        if self._rewards is not None:
            self._rewards.set_state(state["reward_moments"])
            sums = state.get("reward_sums")
            if sums is not None and sums.shape == self._sums.shape:
                self._sums = sums.to(self._sums.device).clone()


def normalized_leaves(observation: Any, network: nn.Module) -> dict[str, Leaf]:
    """Return the leaves of an observation that are normalized, by their names.

    All but action masks, pictures that ``network`` scales, and the integers of a mapping that it
    takes as names of their values (`indicated`). Names are those of `named_leaves`.
    """
    is_alone = isinstance(without_mask(observation), Leaf)

    def is_picture(leaf: Leaf) -> bool:
        is_bytes = len(leaf.shape) == 3 and leaf.dtype == np.uint8
        return is_bytes or convolves(network, leaf, is_alone)

    leaves = {
        name: leaf
        for name, leaf in named_leaves(observation)
        if name.split(".")[0] != ACTION_MASK and not is_picture(leaf)
    }
    if not leaves:
        raise ValueError(
            "normalize_observation=true is for numbers, and observations are pictures, which "
            "networks scale themselves; leave it out"
        )
    return {name: leaf for name, leaf in leaves.items() if is_alone or indicated(leaf) is None}
