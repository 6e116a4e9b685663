"""Returns and advantages of a rollout, time-major ``[T, B]``. No gradient passes through them.

How episodes end is expressed once, by `fold_truncation`, as a reward and a discount for each step;
everything after it sees only these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.models import Sequences
from accel_rl.spaces import map_leaves

Values = Callable[[Any, Sequences | None], Tensor]
"""Gives the values ``[N]`` of observations ``[N, ...]``, and of their order to a network that
remembers."""


@torch.no_grad()
def fold_truncation(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    final_value: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Express the ends of episodes as rewards and discounts.

    | step | reward | discount |
    |---|---|---|
    | in between | ``r`` | ``gamma`` |
    | terminated (also if truncated) | ``r`` | 0 |
    | truncated only | ``r + gamma * final_value`` | 0 |
    | truncated, not valid | ``final_value`` | 0 |

    In the last row a worker was lost before it took this step. The final observation is then the
    observation at which the step would have begun, so its value is not discounted.

    Args:
        reward: ``[T, B]`` float.
        terminated: ``[T, B]`` bool.
        truncated: ``[T, B]`` bool.
        valid: ``[T, B]`` bool.
        final_value: ``[T, B]`` float, value of the final observation of each truncated step;
            ignored elsewhere. Pass 0 to treat a time limit as the end of the task.
        gamma: discount of one step.

    Returns:
        Rewards and discounts, ``[T, B]`` each, without gradient.
    """
    _check_shapes(reward, terminated, truncated, valid, final_value)
    value = final_value.where(truncated & ~terminated, 0.0)
    folded = reward + torch.where(valid, gamma * value, value)
    discount = gamma * (~(terminated | truncated)).to(reward.dtype)
    return folded, discount


@torch.no_grad()
def discounted_returns(reward: Tensor, discount: Tensor, bootstrap_value: Tensor) -> Tensor:
    """Return n-step returns up to the end of the rollout.

    ``return_[t] = reward[t] + discount[t] * return_[t + 1]`` and ``return_[T] = bootstrap_value``
    (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

    Args:
        reward: ``[T, B]`` float.
        discount: ``[T, B]`` float, of `fold_truncation`.
        bootstrap_value: ``[B]`` float, value of the last observation.

    Returns:
        Returns ``[T, B]``, without gradient.
    """
    _check_shapes(reward, discount, bootstrap_value.expand_as(reward))
    following, returns = bootstrap_value, []
    for row, factor in zip(reversed(reward.unbind()), reversed(discount.unbind()), strict=True):
        following = torch.addcmul(row, factor, following)
        returns.append(following)
    return torch.stack(returns[::-1])


@torch.no_grad()
def lambda_returns(reward: Tensor, discount: Tensor, next_value: Tensor, q_lambda: float) -> Tensor:
    """Mixtures of all n-step returns, weighted by powers of ``q_lambda``.

    ``return_[t] = reward[t] + discount[t] * (q_lambda * return_[t + 1] + (1 - q_lambda) *
    next_value[t])``, where ``return_[T] = next_value[T - 1]``. With ``q_lambda`` 1 these are
    `discounted_returns`, with 0 they end after one reward.

    With ``next_value[t] = max_a Q(observation[t + 1], a)`` it is the Q(lambda) of Gallici et al.
    2024 (arXiv:2407.04811), after Peng and Williams 1994: nothing is cut off behind a random
    action.

    All but ``q_lambda`` are ``[T, B]``, as the result.
    """
    _check_shapes(reward, discount, next_value)
    ends = torch.addcmul(reward, discount, next_value, value=1 - q_lambda)
    return discounted_returns(ends, q_lambda * discount, next_value[-1])


@torch.no_grad()
def generalized_advantages(
    reward: Tensor, discount: Tensor, value: Tensor, bootstrap_value: Tensor, gae_lambda: float
) -> Tensor:
    """Return generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    ``td_error[t] = reward[t] + discount[t] * value[t + 1] - value[t]``;
    ``advantage[t] = td_error[t] + gae_lambda * discount[t] * advantage[t + 1]``.
    With ``gae_lambda`` 1 it is ``discounted_returns(...) - value``, with 0 it is ``td_error``.

    Args:
        reward: ``[T, B]`` float.
        discount: ``[T, B]`` float, of `fold_truncation`.
        value: ``[T, B]`` float.
        bootstrap_value: ``[B]`` float, value of the last observation.
        gae_lambda: lambda, from 0 to 1.

    Returns:
        Advantages ``[T, B]``, without gradient.
    """
    _check_shapes(reward, discount, value)
    next_value = torch.cat((value[1:], bootstrap_value.unsqueeze(0)))
    td_error = torch.addcmul(reward, discount, next_value) - value
    return discounted_returns(td_error, gae_lambda * discount, torch.zeros_like(bootstrap_value))


@torch.no_grad()
def values_beyond(
    value_of: Values, batch: RolloutTensors, *, bootstrap_on_truncation: bool
) -> tuple[Tensor, Tensor]:
    """Values ``[B]`` of the last observations; ``[T, B]`` of final ones, 0 where none is.

    Behind the final observation of a truncated step the value goes on; without
    ``bootstrap_on_truncation`` only where no step was taken, because the worker was lost.
    """
    observation = map_leaves(lambda each: each[-1], batch.observation)
    final_value = torch.zeros_like(batch.reward)
    sequences = _beyond(batch)
    # A shape: known without asking the device.
    if len(batch.final_step) == 0:
        return value_of(observation, sequences), final_value
    B, finals = batch.reward.shape[1], (batch.final_step, batch.final_env)
    both = map_leaves(lambda *pair: torch.cat(pair), observation, batch.final_observation)
    with _choosing_by_itself():
        value = value_of(both, sequences)
    behind = value[B:]
    if not bootstrap_on_truncation:
        behind = behind.masked_fill(batch.valid[finals], 0)
    final_value[finals] = behind
    return value[:B], final_value


@contextmanager
def _choosing_by_itself() -> Iterator[None]:
    """Let cuDNN time no algorithms within, for numbers of observations that hardly come again."""
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, False
    try:
        yield
    finally:
        cudnn.benchmark = before


def _beyond(batch: RolloutTensors) -> Sequences | None:
    """Of the last observations and the final ones, to a recurrent network: one row of ``B + M``."""
    states, sequences = batch.recurrent_state, batch.sequences(slice(0, len(batch.reward)))
    if states is None or sequences is None:
        return None
    steps, envs = batch.final_step, batch.final_env
    # If not, its worker was lost, and the final observation is that from which it was to be taken.
    is_taken = batch.valid[steps, envs]
    is_first = sequences.is_first[steps, envs] & ~is_taken
    is_first = torch.cat((torch.zeros_like(batch.valid[-1]), is_first)).unsqueeze(0)
    rows, previous = (steps + is_taken, envs), batch.previous
    state = torch.cat((states[-1], states[rows]))
    if previous is not None:
        previous = torch.cat((previous[-1], previous[rows])).unsqueeze(0)
        previous = previous.masked_fill(is_first.unsqueeze(2), 0)
    return Sequences(state, is_first, previous)


@torch.no_grad()
def importance_ratio(log_prob: Tensor, behaviour_log_prob: Tensor, valid: Tensor) -> Tensor:
    """``exp(log_prob - behaviour_log_prob)``, and 1 where no step was taken: ``[T, B]``.

    ``log_prob``, ``behaviour_log_prob``: ``[T, B]`` float, of the actions, under the policy that
    learns and under the one that chose them. ``valid``: ``[T, B]`` bool.
    """
    _check_shapes(log_prob, behaviour_log_prob, valid)
    return (log_prob - behaviour_log_prob).exp().where(valid, 1.0)


@torch.no_grad()
def vtrace(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    bootstrap_value: Tensor,
    ratio: Tensor,
    gae_lambda: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace returns and advantages (Espeholt et al. 2018, arXiv:1802.01561, section 4).

    With ``rho[t] = min(ratio[t], rho_clip)``, ``c[t] = gae_lambda * min(ratio[t], c_clip)`` and the
    ``td_error`` of `generalized_advantages`:

    ``correction[t] = rho[t] * td_error[t] + discount[t] * c[t] * correction[t + 1]`` (remark 1);
    ``return_[t] = value[t] + correction[t]`` (equation 1);
    ``advantage[t] = rho[t] * (td_error[t] + gae_lambda * discount[t] * correction[t + 1])``.

    With ``gae_lambda`` 1, as in the paper but for its remark 2, the last is ``rho[t] * (reward[t] +
    discount[t] * return_[t + 1] - value[t])``. With ratios of 1 and limits of at least 1 the
    advantages are those of `generalized_advantages`.

    ``reward``, ``discount``, ``value``, ``ratio``: ``[T, B]``; ``bootstrap_value``: ``[B]``, of the
    rollout's last observation. Returns two of ``[T, B]``.
    """
    _check_shapes(reward, discount, value, ratio)
    next_value = torch.cat((value[1:], bootstrap_value.unsqueeze(0)))
    td_error = torch.addcmul(reward, discount, next_value) - value
    rho, decay = ratio.clamp(max=rho_clip), gae_lambda * discount
    nothing = torch.zeros_like(bootstrap_value)
    correction = discounted_returns(rho * td_error, decay * ratio.clamp(max=c_clip), nothing)
    following = torch.cat((correction[1:], nothing.unsqueeze(0)))
    return value + correction, rho * torch.addcmul(td_error, decay, following)


def _check_shapes(reward: Tensor, *others: Tensor) -> None:
    if reward.ndim != 2 or not reward.is_floating_point():
        raise ValueError(
            f"expected a floating-point [T, B], got {reward.dtype} {list(reward.shape)}"
        )
    for other in others:
        if other.shape != reward.shape:
            raise ValueError(f"expected [T, B] {list(reward.shape)}, got {list(other.shape)}")
