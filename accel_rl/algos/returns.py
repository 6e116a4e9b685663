"""Returns and advantages of a rollout, time-major ``[T, B]``. No gradient passes through them.

How episodes end is expressed once, by `fold_truncation`, as a reward and a discount for each step;
everything after it sees only these.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def fold_truncation(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    final_value: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Express where episodes end as ``(reward, discount)``, each ``[T, B]``.

    | step | reward | discount |
    |---|---|---|
    | in between | ``r`` | ``gamma`` |
    | terminated (also if truncated) | ``r`` | 0 |
    | truncated only | ``r + gamma * final_value`` | 0 |
    | truncated, not valid | ``final_value`` | 0 |

    The last: a worker was lost before it took this step. What the step before led to, the final
    observation, is where the step would have begun, so that nothing more is discounted.

    ``reward``, ``final_value``: ``[T, B]`` float; the others: ``[T, B]`` bool. ``final_value``:
    value of the final observation where a step is truncated, of no effect elsewhere. To treat a
    time limit as the end of the task, give ``final_value`` 0.
    """
    _check_shapes(reward, terminated, truncated, valid, final_value)
    value = final_value.where(truncated & ~terminated, 0.0)
    folded = reward + torch.where(valid, gamma * value, value)
    discount = gamma * (~(terminated | truncated)).to(reward.dtype)
    return folded, discount


@torch.no_grad()
def discounted_returns(reward: Tensor, discount: Tensor, bootstrap_value: Tensor) -> Tensor:
    """``return_[t] = reward[t] + discount[t] * return_[t + 1]``; ``return_[T] = bootstrap_value``.

    The n-step return of advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3):
    as many rewards as the rollout still has, then the value of its last observation.

    ``reward``, ``discount``: ``[T, B]``; ``bootstrap_value``: ``[B]``. Returns ``[T, B]``.
    """
    _check_shapes(reward, discount, bootstrap_value.expand_as(reward))
    return_ = torch.empty_like(reward)
    following = bootstrap_value
    for t in reversed(range(len(reward))):
        following = torch.addcmul(reward[t], discount[t], following, out=return_[t])
    return return_


@torch.no_grad()
def generalized_advantages(
    reward: Tensor, discount: Tensor, value: Tensor, bootstrap_value: Tensor, gae_lambda: float
) -> Tensor:
    """Generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    ``td_error[t] = reward[t] + discount[t] * value[t + 1] - value[t]``;
    ``advantage[t] = td_error[t] + gae_lambda * discount[t] * advantage[t + 1]``.
    With ``gae_lambda`` 1 it is ``discounted_returns(...) - value``, with 0 it is ``td_error``.

    ``reward``, ``discount``, ``value``: ``[T, B]``; ``bootstrap_value``: ``[B]``, of the rollout's
    last observation. Returns ``[T, B]``.
    """
    _check_shapes(reward, discount, value)
    next_value = torch.cat((value[1:], bootstrap_value.unsqueeze(0)))
    td_error = torch.addcmul(reward, discount, next_value) - value
    return discounted_returns(td_error, gae_lambda * discount, torch.zeros_like(bootstrap_value))


def _check_shapes(reward: Tensor, *others: Tensor) -> None:
    if reward.ndim != 2 or not reward.is_floating_point():
        raise ValueError(
            f"expected a floating-point [T, B], got {reward.dtype} {list(reward.shape)}"
        )
    for other in others:
        if other.shape != reward.shape:
            raise ValueError(f"expected [T, B] {list(reward.shape)}, got {list(other.shape)}")
