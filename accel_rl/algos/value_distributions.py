"""What Q-learning learns of an action: its value, quantiles of its return, or weights of atoms.

Each is a class with the same three methods. A new distribution of values is one more of them.

``N`` transitions, ``A`` actions, ``K`` atoms or quantiles. Suffixes: ``tm1`` is the step that the
action was taken in, ``t`` the one its return ends in; ``reward_t`` is the (n-step) return,
``discount_t`` the weight of what comes after, 0 where the episode terminated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from accel_rl.agents.distributions import masked

MIN_PRIORITY = 1e-6
"""a priority of 0 could never be drawn, and so never change, again"""
MAX_PRIORITY = 1e6
RESCALE_EPS = 1e-3
"""of `rescale`, as in R2D2; it keeps the slope of large values away from 0"""
MUNCHAUSEN_ALPHA, MUNCHAUSEN_TEMPERATURE, MUNCHAUSEN_LOWEST = 0.9, 0.03, -1.0
"""factor of the bonus, temperature of the policy, and lower limit of the bonus before the factor,
all as in arXiv:2007.14430"""
_FORBIDDEN = -1e4
"""difference from the largest value, below which a softmax is 0 in any case"""


class QLoss(NamedTuple):
    """``loss``: ``[N]``, with gradient. ``priority``: ``[N]``, how surprising each was, without."""

    loss: Tensor
    priority: Tensor


class Values:
    """One value of each action, ``K`` = 1.

    Args:
        is_rescaled: whether the network computes `rescale` of values.
    """

    def __init__(self, *, is_rescaled: bool = False) -> None:
        self.is_rescaled = is_rescaled

    def decode(self, output: Tensor) -> Tensor:
        """Return ``output`` of the network, ``[..., K]``, in units of the reward."""
        return rescale_back(output) if self.is_rescaled else output

    def target(self, reward_t: Tensor, discount_t: Tensor, decoded_t: Tensor) -> Tensor:
        """Return what the network learns, ``reward + discount * Z``, ``[N, K]``.

        Args:
            reward_t: ``[N]``.
            discount_t: ``[N]``.
            decoded_t: ``Z``, `decode` of the state where the return ends, ``[N, K]``.
        """
        _check_shapes(reward_t, discount_t)
        target = reward_t.unsqueeze(1) + discount_t.unsqueeze(1) * decoded_t
        return rescale(target) if self.is_rescaled else target

    def loss(
        self, output_tm1: Tensor, action_tm1: Tensor, target: Tensor, level: Tensor | None
    ) -> QLoss:
        """Return losses and priorities.

        Args:
            output_tm1: output of the network, ``[N, A, K]``.
            action_tm1: ``[N]`` int64.
            target: of `target`, ``[N, K]``.
            level: levels of the quantiles, ``[N, K]`` or ``[1, K]``; None if ``K`` is 1.
        """
        return huber_loss(output_tm1.squeeze(2), action_tm1, target.flatten())


class Quantiles(Values):
    """Values at ``K`` levels of the distribution of each action's return."""

    def loss(
        self, output_tm1: Tensor, action_tm1: Tensor, target: Tensor, level: Tensor | None
    ) -> QLoss:
        """Return losses and priorities, see `Values.loss`."""
        assert level is not None, "there are several"
        return quantile_loss(output_tm1, action_tm1, target, level)


class Atoms:
    """Weights of ``K`` atoms of each action's return, given as logits.

    Args:
        support: values of the atoms, ``[K]``.
    """

    def __init__(self, support: Tensor) -> None:
        self.support = support

    def decode(self, output: Tensor) -> Tensor:
        """Return the weights, ``[..., K]``."""
        return output.softmax(-1)

    def target(self, reward_t: Tensor, discount_t: Tensor, decoded_t: Tensor) -> Tensor:
        """Return the weights to learn, ``[N, K]``, see `Values.target` and `project`."""
        return project(reward_t, discount_t, decoded_t, self.support)

    def loss(
        self, output_tm1: Tensor, action_tm1: Tensor, target: Tensor, level: Tensor | None
    ) -> QLoss:
        """Return losses and priorities, see `Values.loss`."""
        return categorical_loss(output_tm1, action_tm1, target)


def rescale(x: Tensor) -> Tensor:
    """``sign(x) * (sqrt(|x| + 1) - 1) + eps * x`` with ``eps`` = 0.001, of any shape.

    It makes large returns small, and leaves their order (Pohlen et al. 2018, arXiv:1805.11593,
    section 3.2; R2D2, Kapturowski et al. 2019).
    """
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + RESCALE_EPS * x


def rescale_back(y: Tensor) -> Tensor:
    """The ``x`` of which ``y`` is `rescale`, of any shape.

    ``sign(y) * (((sqrt(1 + 4 eps (|y| + 1 + eps)) - 1) / (2 eps)) ** 2 - 1)`` (arXiv:1805.11593,
    proposition A.2), in a form that does not subtract what is nearly equal.
    """
    z = y.abs() + 1 + RESCALE_EPS
    root = 2 * z / ((1 + 4 * RESCALE_EPS * z).sqrt() + 1)
    return y.sign() * (root.square() - 1)


def huber_loss(
    q_value_tm1: Tensor, action_tm1: Tensor, target: Tensor, delta: float = 1.0
) -> QLoss:
    """Huber loss of the TD error ``target - Q(s, a)``, and its size as priority.

    ``error ** 2 / 2`` up to ``delta``, then ``delta * (|error| - delta / 2)``: its gradient is the
    error clipped to ``delta`` (Mnih et al. 2015, Methods). The priority is ``|error|``, at most
    ``delta`` and at least `MIN_PRIORITY`.

    ``q_value_tm1``: ``[N, A]``; ``action_tm1``: ``[N]`` int64; ``target``: ``[N]``.
    """
    _check_shapes(action_tm1, target)
    size = (target.detach() - q_value_tm1.gather(1, action_tm1.unsqueeze(1)).squeeze(1)).abs()
    priority = size.detach().clamp(MIN_PRIORITY, delta)
    return QLoss(_huber(size, delta), priority)


def squared_loss(q_value_tm1: Tensor, action_tm1: Tensor, target: Tensor) -> Tensor:
    """``(target - Q(s, a)) ** 2 / 2``, ``[N]``, with gradient but of the target.

    ``q_value_tm1``: ``[N, A]``; ``action_tm1``: ``[N]`` int64; ``target``: ``[N]``.
    """
    _check_shapes(action_tm1, target)
    q_value = q_value_tm1.gather(1, action_tm1.unsqueeze(1)).squeeze(1)
    return (target.detach() - q_value).square() / 2


@torch.no_grad()
def project(reward_t: Tensor, discount_t: Tensor, probability_t: Tensor, support: Tensor) -> Tensor:
    """The distribution of ``reward + discount * Z`` on the atoms of ``support``, ``[N, K]``.

    Each atom moves to ``reward + discount * z``, clipped to the support, and its probability is
    shared by the two atoms around that place, in proportion to nearness (Bellemare et al. 2017,
    arXiv:1707.06887, algorithm 1). Written with the weight ``clip(1 - |z' - z_i| / gap, 0, 1)`` of
    every pair, which gives all to an atom that is met exactly.

    ``probability_t``: ``[N, K]`` of ``Z``; ``support``: ``[K]``, evenly spaced; the others ``[N]``.
    """
    _check_shapes(reward_t, discount_t)
    gap = (support[-1] - support[0]) / (support.numel() - 1)
    moved = reward_t.unsqueeze(1) + discount_t.unsqueeze(1) * support  # [N, K]
    moved = torch.minimum(torch.maximum(moved, support[0]), support[-1])
    distance = (moved.unsqueeze(1) - support.unsqueeze(1)).abs()  # [N, K to, K from]
    weight = (1 - distance / gap).clamp(min=0)
    return (weight @ probability_t.unsqueeze(2)).squeeze(2)


def categorical_loss(logits_tm1: Tensor, action_tm1: Tensor, target: Tensor) -> QLoss:
    """Cross entropy of the target distribution, and KL(target || prediction) as priority.

    ``-sum_i target_i log p_i(s, a)`` (Bellemare et al. 2017, arXiv:1707.06887). The two differ by
    the entropy of the target, which is no measure of surprise (Hessel et al. 2018,
    arXiv:1710.02298). Probabilities are not clipped from below, so no gradient is lost.

    ``logits_tm1``: ``[N, A, K]``; ``action_tm1``: ``[N]`` int64; ``target``: ``[N, K]``.
    """
    if target.shape != (len(action_tm1), logits_tm1.shape[2]):
        raise ValueError(f"target has the shape {list(target.shape)}; expected [N, K]")
    index = action_tm1.view(-1, 1, 1).expand(-1, 1, logits_tm1.shape[2])
    log_probability = logits_tm1.gather(1, index).squeeze(1).log_softmax(1)
    target = target.detach()
    loss = -(target * log_probability).sum(1)
    divergence = loss.detach() + torch.special.xlogy(target, target).sum(1)
    return QLoss(loss, divergence.clamp(MIN_PRIORITY, MAX_PRIORITY))


def quantile_loss(quantile_tm1: Tensor, action_tm1: Tensor, target: Tensor, level: Tensor) -> QLoss:
    """Quantile Huber loss of ``K`` quantiles against ``J`` targets.

    ``sum_k mean_j |level_k - 1{error_kj < 0}| huber(error_kj)``, where ``error_kj`` is
    ``target_j - Z_k(s, a)`` (Dabney et al. 2018, arXiv:1806.06923, equation 3; with evenly spaced
    levels QR-DQN, arXiv:1710.10044, equation 10). The priority is the mean of all ``|error_kj|``.

    ``quantile_tm1``: ``[N, A, K]``; ``action_tm1``: ``[N]`` int64; ``target``: ``[N, J]``;
    ``level``: ``[N, K]`` or ``[1, K]``, in (0, 1).
    """
    if target.ndim != 2 or level.shape[-1:] != quantile_tm1.shape[2:]:
        shapes = list(target.shape), list(level.shape)
        raise ValueError(f"target and level have the shapes {shapes}; expected [N, J] and [N, K]")
    index = action_tm1.view(-1, 1, 1).expand(-1, 1, quantile_tm1.shape[2])
    predicted = quantile_tm1.gather(1, index).squeeze(1)
    error = target.detach().unsqueeze(1) - predicted.unsqueeze(2)  # [N, K, J]
    size = error.abs()
    weight = (level.unsqueeze(2) - (error < 0).to(level.dtype)).abs()
    loss = (weight * _huber(size, 1.0)).mean(2).sum(1)
    return QLoss(loss, size.detach().mean((1, 2)).clamp(MIN_PRIORITY, MAX_PRIORITY))


@torch.no_grad()
def munchausen(
    q_value_tm1: Tensor,
    action_tm1: Tensor,
    q_value_t: Tensor,
    decoded_t: Tensor,
    mask_tm1: Tensor | None = None,
    mask_t: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the bonus for the action taken, ``[N]``, and the soft value behind it, ``[N, K]``.

    With ``pi = softmax(Q / temperature)``: ``alpha * clip(temperature log pi(a | s), lowest, 0)``,
    and ``sum_b pi(b | s') (Z(s', b) - temperature log pi(b | s'))`` (Vieillard et al. 2020,
    arXiv:2007.14430, equations 2 and 3 and section 4).

    ``q_value_tm1``, ``q_value_t``: values, ``[N, A]``; ``decoded_t``: ``Z``, ``[N, A, K]``;
    ``action_tm1``: ``[N]`` int64; the masks ``[N, A]``, of the allowed actions.
    """
    log_policy = _scaled_log_policy(q_value_t, mask_t)
    policy = (log_policy / MUNCHAUSEN_TEMPERATURE).exp()
    soft = (policy.unsqueeze(2) * (decoded_t - log_policy.unsqueeze(2))).sum(1)
    taken = _scaled_log_policy(q_value_tm1, mask_tm1).gather(1, action_tm1.unsqueeze(1)).squeeze(1)
    return MUNCHAUSEN_ALPHA * taken.clamp(MUNCHAUSEN_LOWEST, 0.0), soft


def _scaled_log_policy(q_value: Tensor, mask: Tensor | None) -> Tensor:
    """``temperature * log pi``, ``[N, A]``, without underflow; far below 0 where not allowed."""
    q_value = masked(q_value, mask)
    q_value = (q_value - q_value.amax(1, keepdim=True)).clamp(min=_FORBIDDEN)
    return MUNCHAUSEN_TEMPERATURE * (q_value / MUNCHAUSEN_TEMPERATURE).log_softmax(1)


def _huber(size: Tensor, delta: float) -> Tensor:
    linear = size.clamp(max=delta)
    return linear * (size - linear / 2)


def _check_shapes(first: Tensor, *others: Tensor) -> None:
    if first.ndim != 1 or any(each.shape != first.shape for each in others):
        shapes = ", ".join(str(list(each.shape)) for each in (first, *others))
        raise ValueError(f"expected [N] in all of these, found {shapes}")
