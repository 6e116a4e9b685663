"""Q-learning: its agents, and targets and losses for values and distributions over atoms of value.

``N`` transitions, ``A`` actions, ``K`` atoms. Suffixes: ``tm1`` is the step that the action was
taken in, ``t`` the one its return ends in; ``reward_t`` is the (n-step) return, ``discount_t`` the
weight of what comes after, 0 where the episode terminated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import QAgent
from accel_rl.agents.distributions import masked, split_mask
from accel_rl.algos.replay import SequenceBatch, Transitions
from accel_rl.algos.specs import NetworkSpec
from accel_rl.models import QHead, QModel, RecurrentModel, Sequences, make_model
from accel_rl.models.memory import run
from accel_rl.spaces import first_leaf, map_leaves, without_mask

INITIAL_EPSILON = 1.0
MIN_PRIORITY = 1e-6
"""a priority of 0 could never be drawn, and so never change, again"""
MAX_PRIORITY = 1e6
RESCALE_EPS = 1e-3
"""of `rescale`, as in R2D2; it keeps the slope of large values away from 0"""


class QLoss(NamedTuple):
    """``loss``: ``[N]``, with gradient. ``priority``: ``[N]``, how surprising each was, without."""

    loss: Tensor
    priority: Tensor


def make_q_agent(
    name: str,
    network: NetworkSpec,
    support: Tensor | None = None,
    *,
    is_dueling: bool = False,
) -> QAgent:
    """Return an agent that takes the best action or, now and then, any, with fresh parameters.

    Args:
        name: Name of the algorithm, for messages.
        network: Which network, and where.
        support: Values of the atoms ``[K]``; None: the network gives values.
        is_dueling: Whether the network has two streams.

    Raises:
        ValueError: There is no such network, it does not fit the environment, or actions are not
            one of several.
    """
    device = network.device
    env = replace(network.env, observation=without_mask(network.env.observation))
    env.check_plain(name)
    head = QHead(env.num_actions, 1 if support is None else len(support), is_dueling)
    start = torch.tensor([INITIAL_EPSILON], device=device)
    model = make_model(
        network.model, env.observation, head, network.memory_spec, device, network.unmasked
    )
    return QAgent(model, support, start, network.graphs)


def evaluate_q(
    model: Any, observation: Any, precision: str, sequences: Sequences | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return outputs ``[N, A, K]`` float32 of a network, computed in ``precision``.

    Args:
        model: the network.
        observation: ``[N, ...]``.
        precision: number format of the products.
        sequences: in which order observations came, for a network with a memory.

    Returns:
        The outputs, and the recurrent state after them, ``[B, S]``, or None.
    """
    if precision != "bfloat16":
        output, state = run(model, observation, sequences)
        return output, state
    with torch.autocast(first_leaf(observation).device.type, torch.bfloat16):
        output, state = run(model, observation, sequences)
    return output.float(), None if state is None else state.float()


def linear_epsilon(final: Tensor, progress: float) -> Tensor:
    """Return epsilon, ``[B]`` or ``[1]`` as ``final``, with ``progress`` of its schedule done."""
    # Not initial + progress * (final - initial), in which rounding loses a final one of 1e-8.
    return (1 - progress) * INITIAL_EPSILON + progress * final


class QOutputs(NamedTuple):
    """Of ``M`` steps: `QModel`'s outputs, ``[M, A, K]``, of which `online` alone has a gradient.

    ``choosing``: where the return ends, of the network that chooses the action there, and
    ``target`` of the one that values it. ``mask``, ``next_mask``: action masks ``[M, A]``, or None.
    """

    online: Tensor
    mask: Tensor | None
    target: Tensor
    choosing: Tensor
    next_mask: Tensor | None


def transition_outputs(
    agent: QAgent, target: QModel, batch: Transitions, precision: str, *, double: bool
) -> QOutputs:
    """Return what is needed of ``N`` transitions. ``double``: the online network chooses."""
    observation, mask = split_mask(batch.observation)
    online, _ = evaluate_q(agent.model, observation, precision)
    next_observation, next_mask = split_mask(batch.next_observation)
    with torch.no_grad():
        behind, _ = evaluate_q(target, next_observation, precision)
        choosing = behind
        if double:
            choosing, _ = evaluate_q(agent.model, next_observation, precision)
    return QOutputs(online, mask, behind, choosing, next_mask)


def sequence_outputs(
    agent: QAgent,
    target: RecurrentModel,
    batch: SequenceBatch,
    precision: str,
    *,
    burn_in: int,
    double: bool,
) -> QOutputs:
    """Return what is needed of the ``L * N`` steps of sequences.

    Both networks begin with the stored state, which the burn-in renews, each with its own
    parameters and without gradient. ``double``: the online network chooses.
    """
    observation, mask = split_mask(batch.observation)
    (R, C), (L, N) = batch.is_first.shape, batch.action.shape

    def unroll(model: RecurrentModel, columns: slice) -> Tensor:
        """``[(R - burn_in) * n, A, K]``."""
        seen = observation
        if columns != slice(0, C):
            seen = map_leaves(lambda each: _columns(each, C, columns), observation)
        own = batch.sequences.of(columns)
        first = burn_in * own.is_first.shape[1]
        if burn_in:
            burnt = map_leaves(lambda each: each[:first], seen)
            with torch.no_grad():
                _, state = evaluate_q(model, burnt, precision, own.rows(slice(0, burn_in)))
            assert state is not None, "the network has a memory"
            own = own.rows(slice(burn_in, R))._replace(state=state)
            seen = map_leaves(lambda each: each[first:], seen)
        return evaluate_q(model, seen, precision, own)[0]

    online = unroll(agent.model, slice(0, N))
    with torch.no_grad():
        value = choosing = unroll(target, slice(0, C))
        if double:
            choosing = online.detach()
            if C > N:
                finals = unroll(agent.model, slice(N, C))
                pair = [_by_rows(each, R - burn_in) for each in (choosing, finals)]
                choosing = torch.cat(pair, 1).flatten(0, 1)
    index = batch.end.flatten()
    own_mask = next_mask = None
    if mask is not None:
        own_mask = _by_rows(_columns(mask, C, slice(0, N)), R)[burn_in : burn_in + L].flatten(0, 1)
        next_mask = mask[index]
    index = index - burn_in * C
    return QOutputs(online[: L * N], own_mask, value[index], choosing[index], next_mask)


@torch.no_grad()
def best_values(q_value: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest value that ``mask`` allows: ``[N, A] -> [N]``; 0 where it allows none.

    ``mask``: ``[N, A]``; None: all are allowed.
    """
    if mask is None:
        return q_value.amax(1)
    return masked(q_value, mask).amax(1).where(mask.ne(0).any(1), 0.0)


@torch.no_grad()
def q_target(
    reward_t: Tensor, discount_t: Tensor, target_q_value_t: Tensor, action_t: Tensor
) -> Tensor:
    """``reward + discount * Q_target(s', action)``, ``[N]``.

    With ``action_t`` the best by ``target_q_value_t`` itself this is the target of Mnih et al. 2015
    (Nature 518), with the best by the online network that of double Q-learning (van Hasselt et al.
    2016, arXiv:1509.06461, equation 4).

    ``target_q_value_t``: ``[N, A]``; the others ``[N]``.
    """
    _check_shapes(reward_t, discount_t, action_t)
    value_t = target_q_value_t.gather(1, action_t.unsqueeze(1)).squeeze(1)
    return reward_t + discount_t * value_t


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


def sequence_priority(priority: Tensor, valid: Tensor, share_of_largest: float) -> Tensor:
    """``share * max + (1 - share) * mean`` of the valid steps' priorities, ``[L, N] -> [N]``.

    R2D2 (Kapturowski et al. 2019, section 2.3); at least `MIN_PRIORITY`.
    """
    priority = priority * valid
    mean = priority.sum(0) / valid.sum(0).clamp(min=1)
    mixed = share_of_largest * priority.amax(0) + (1 - share_of_largest) * mean
    return mixed.clamp(min=MIN_PRIORITY)


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
    error = target.detach() - q_value_tm1.gather(1, action_tm1.unsqueeze(1)).squeeze(1)
    size = error.abs()
    linear = size.clamp(max=delta)
    loss = linear * (size - linear / 2)
    return QLoss(loss, linear.detach().clamp(min=MIN_PRIORITY))


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


@torch.no_grad()
def importance_weights(probability: Tensor, least: Tensor, beta: float) -> Tensor:
    """``(1 / probability) ** beta``, divided by the largest of the batch: ``[N]`` float32.

    ``least``: 0-d, the smallest probability of the batch, the parts of other learners included.
    Schaul et al. 2016 (arXiv:1511.05952), section 3.4. The number of steps in the replay cancels.
    """
    return (least / probability).pow(beta).float()


def _columns(rows: Tensor, num: int, columns: slice) -> Tensor:
    """``[R * n, ...]`` of ``[R * num, ...]``."""
    return _by_rows(rows, len(rows) // num)[:, columns].flatten(0, 1)


def _by_rows(rows: Tensor, num: int) -> Tensor:
    """``[num, n, ...]`` of ``[num * n, ...]``."""
    return rows.view(num, -1, *rows.shape[1:])


def _check_shapes(first: Tensor, *others: Tensor) -> None:
    if first.ndim != 1 or any(each.shape != first.shape for each in others):
        shapes = ", ".join(str(list(each.shape)) for each in (first, *others))
        raise ValueError(f"expected [N] in all of these, found {shapes}")
