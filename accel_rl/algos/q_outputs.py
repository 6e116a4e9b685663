"""What the online and the target network give for a batch from the replay, and its loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import QAgent
from accel_rl.agents.distributions import masked, split_mask
from accel_rl.algos.q_learning import (
    QLoss,
    best_actions,
    categorical_loss,
    evaluate_q,
    huber_loss,
    project,
    q_target,
    rescale,
    rescale_back,
)
from accel_rl.algos.replay import SequenceBatch, Transitions
from accel_rl.models import QModel, RecurrentModel
from accel_rl.spaces import map_leaves


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


def q_loss(
    agent: QAgent,
    outputs: QOutputs,
    batch: Transitions | SequenceBatch,
    *,
    huber_delta: float,
    rescales: bool,
) -> QLoss:
    """Return the loss and the priority of each step of ``batch``, ``[M]``.

    Args:
        agent: Whose values, or atoms, these are.
        outputs: What the networks gave for ``batch``.
        batch: What was done, and what came of it.
        huber_delta: As in `huber_loss`, for values.
        rescales: Whether the networks give `rescale` of the values.
    """
    action, reward, discount = (
        each.flatten() for each in (batch.action, batch.reward, batch.discount)
    )
    with torch.no_grad():
        mask = outputs.next_mask
        action_t = best_actions(masked(agent.q_values(outputs.choosing), mask))
        if mask is not None:  # behind an observation that allows nothing comes nothing
            discount = discount * mask.ne(0).any(1)
    if agent.support is None:
        value_t = agent.q_values(outputs.target)
        if rescales:
            value_t = rescale_back(value_t)
        goal = q_target(reward, discount, value_t, action_t)
        if rescales:
            goal = rescale(goal)
        return huber_loss(agent.q_values(outputs.online), action, goal, huber_delta)
    rows = torch.arange(len(action_t), device=action_t.device)
    probability_t = outputs.target[rows, action_t].softmax(1)
    goal = project(reward, discount, probability_t, agent.support)
    return categorical_loss(outputs.online, action, goal)


def _columns(rows: Tensor, num: int, columns: slice) -> Tensor:
    """``[R * n, ...]`` of ``[R * num, ...]``."""
    return _by_rows(rows, len(rows) // num)[:, columns].flatten(0, 1)


def _by_rows(rows: Tensor, num: int) -> Tensor:
    """``[num, n, ...]`` of ``[num * n, ...]``."""
    return rows.view(num, -1, *rows.shape[1:])
