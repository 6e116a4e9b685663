"""Q-learning: its agents, and what its networks compute for the steps of a batch.

``N`` transitions, ``A`` actions, ``K`` atoms or quantiles.
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
from accel_rl.algos.value_distributions import MIN_PRIORITY
from accel_rl.models import QHead, QModel, RecurrentModel, Sequences, make_model
from accel_rl.models.memory import run
from accel_rl.models.q_value import levels
from accel_rl.spaces import first_leaf, map_leaves, without_mask

INITIAL_EPSILON = 1.0


def make_q_agent(
    name: str, network: NetworkSpec, support: Tensor | None = None, **outputs: Any
) -> QAgent:
    """Return an agent that takes the best action or, now and then, any, with fresh parameters.

    Args:
        support: Values of the atoms ``[K]``; None: the network gives values, or quantiles.
        outputs: Further attributes of the `QHead`.
    """
    device = network.device
    env = replace(network.env, observation=without_mask(network.env.observation))
    env.check_plain(name)
    head = QHead(env.num_actions, **outputs)
    if ":" in network.model and (head.is_implicit or head.is_noisy):
        raise ValueError(
            f"model={network.model} is a network of your own, which lacks the layers of noisy=true "
            f"and quantiles=implicit; leave them out, or use another model"
        )
    start = torch.tensor([INITIAL_EPSILON], device=device)
    model = make_model(
        network.model, env.observation, head, network.memory_spec, device, network.unmasked
    )
    return QAgent(model, support, start, network.graphs)


def evaluate_q(
    model: Any, observation: Any, precision: str, sequences: Sequences | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return outputs ``[N, A, K]`` float32 of a network, computed in ``precision``.

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
    ``level``: `levels` of ``online``; None if ``K`` is 1. ``before``: what the target network has
    instead of ``online``; None if nobody asked.
    """

    online: Tensor
    mask: Tensor | None
    target: Tensor
    choosing: Tensor
    next_mask: Tensor | None
    level: Tensor | None
    before: Tensor | None


def transition_outputs(
    agent: QAgent,
    target: QModel,
    batch: Transitions,
    precision: str,
    *,
    double: bool,
    before: bool = False,
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
        seen = evaluate_q(target, observation, precision)[0] if before else None
    level = _levels(agent.model, online)
    return QOutputs(online, mask, behind, choosing, next_mask, level, seen)


def _levels(model: QModel, online: Tensor) -> Tensor | None:
    num_rows, _, num_levels = online.shape
    return None if num_levels == 1 else levels(model, num_rows, num_levels)


def sequence_outputs(
    agent: QAgent,
    target: RecurrentModel,
    batch: SequenceBatch,
    precision: str,
    *,
    burn_in: int,
    double: bool,
    before: bool = False,
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
    seen = _columns(value, C, slice(0, N))[: L * N] if before else None
    online = online[: L * N]
    level = _levels(agent.model, online)
    return QOutputs(online, own_mask, value[index], choosing[index], next_mask, level, seen)


@torch.no_grad()
def best_values(q_value: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest value that ``mask`` allows: ``[N, A] -> [N]``; 0 where it allows none.

    ``mask``: ``[N, A]``; None: all are allowed.
    """
    if mask is None:
        return q_value.amax(1)
    return masked(q_value, mask).amax(1).where(mask.ne(0).any(1), 0.0)


def sequence_priority(priority: Tensor, valid: Tensor, share_of_largest: float) -> Tensor:
    """``share * max + (1 - share) * mean`` of the valid steps' priorities, ``[L, N] -> [N]``.

    R2D2 (Kapturowski et al. 2019, section 2.3); at least `MIN_PRIORITY`.
    """
    priority = priority * valid
    mean = priority.sum(0) / valid.sum(0).clamp(min=1)
    mixed = share_of_largest * priority.amax(0) + (1 - share_of_largest) * mean
    return mixed.clamp(min=MIN_PRIORITY)


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
