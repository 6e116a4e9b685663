"""Networks that remember: a recurrent layer between what reads observations and the heads.

As in "A3C, LSTM" (Mnih et al. 2016, arXiv:1602.01783), and for Q-learning in R2D2 (Kapturowski et
al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.spaces import Space, describe, follow, leaves_of

_MOST_VALUES = 1000
"""values that an action may have in all, for each of which there is an indicator"""


class Sequences(NamedTuple):
    """The order of observations ``[T * B, ...]``, time-major, for a network with a memory.

    ``state``: ``[B, S]``, the recurrent state before row 0. ``is_first``: ``[T, B]`` bool, True
    where an observation is the first of its episode, so that nothing is remembered before it.
    ``previous``: ``[T, B, P]``, the `PreviousInputs` of each, or None where the network has none.
    """

    state: Tensor
    is_first: Tensor
    previous: Tensor | None = None

    def rows(self, rows: slice) -> Sequences:
        """Return the sequences of ``rows`` alone, with the same state."""
        previous = None if self.previous is None else self.previous[rows]
        return Sequences(self.state, self.is_first[rows], previous)

    def of(self, columns: Tensor | slice) -> Sequences:
        """Return the sequences of ``columns``, ``[n]`` int64, alone."""
        previous = None if self.previous is None else self.previous[:, columns]
        return Sequences(self.state[columns], self.is_first[:, columns], previous)


class RecurrentModel(nn.Module):
    """A network with a memory. The state of an environment begins as zeros.

    Attributes:
        state_size: size of the state of one environment, ``S``.
        previous: inputs besides observations: the previous action and reward. None: no such inputs.
    """

    state_size: int
    previous: PreviousInputs | None = None

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[Any, Tensor]:
        """Return the output of the network, and the recurrent state after the last row.

        Args:
            observation: ``[T * B, ...]``, time-major.
            sequences: in which order the observations came, and what came before them.

        Returns:
            Outputs as of a `PolicyValueModel` or a `QModel`, and ``[B, S]`` after row T - 1.
        """
        raise NotImplementedError


def remembers(model: nn.Module) -> bool:
    """Return whether a network has a memory."""
    return hasattr(model, "state_size")


def run(model: Any, observation: Any, sequences: Sequences | None) -> tuple[Any, Tensor | None]:
    """Return a network's output and recurrent state; a network without a memory has none."""
    return (model(observation), None) if sequences is None else model(observation, sequences)


def one_step(state: Tensor, previous: Tensor | None) -> Sequences:
    """Return what a network must know of one row of observations.

    Args:
        state: ``[N, S]``, before it.
        previous: ``[N, P]``, or None.
    """
    is_first = torch.zeros(1, state.shape[0], dtype=torch.bool, device=state.device)
    return Sequences(state, is_first, None if previous is None else previous.unsqueeze(0))


def joined_state(model: RecurrentModel, after: Tensor, action: Any) -> Tensor:
    """Return ``[N, S + P]``: the state ``after`` a step, and behind it what tells its action.

    The last number is for the action's reward, which is to come, and 0. Without `PreviousInputs`
    that is ``after`` itself, ``[N, S]``.
    """
    if model.previous is None:
        return after
    return torch.cat((after, model.previous(action, torch.zeros_like(after[:, 0]))), 1)


def split_state(model: RecurrentModel, state: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the two parts of a `joined_state`: the state, and the previous inputs or None."""
    size = model.state_size
    return state[:, :size], None if model.previous is None else state[:, size:]


def joined_size(model: RecurrentModel) -> int:
    """Return the numbers of a `joined_state`, ``S + P``."""
    return model.state_size + (0 if model.previous is None else model.previous.size)


class PreviousInputs:
    """The inputs of a memory besides features: the previous action and its reward.

    As in R2D2 (Kapturowski et al. 2019, section 2.3) and A3C for partial observations (Wang et al.
    2016, arXiv:1611.05763). An action is an indicator of each integer's value, or the floats in
    units of half the width of their bounds, around their middle. The reward is a number as the
    learner sees it. Where an episode begins all are 0.

    Args:
        action: The space of actions.

    Attributes:
        size: Numbers for each observation, ``P``.

    Raises:
        ValueError: Integers have too many values.
    """

    def __init__(self, action: Space) -> None:
        self._leaves = list(leaves_of(action))
        self.size = 1  # the reward
        for _, leaf in self._leaves:
            counts = leaf.counts
            if counts is not None and sum(counts) > _MOST_VALUES:
                raise ValueError(
                    f"previous_action_reward=true indicates each value of an action, and actions "
                    f"are {describe(action)}, with more than {_MOST_VALUES} values; leave it out"
                )
            self.size += prod(leaf.shape) if counts is None else sum(counts)

    def __call__(self, action: Any, reward: Tensor) -> Tensor:
        """Return ``[..., P]`` float32 of actions ``[..., *shape]`` and rewards ``[...]``."""
        parts = []
        for path, leaf in self._leaves:
            flat = follow(action, path).reshape(*reward.shape, -1)
            counts = leaf.counts
            if leaf.dtype.kind == "f":
                # By numbers, which CUDA graphs and exports hold as they are.
                pairs = zip(*(each.ravel().tolist() for each in leaf.units), strict=True)
                scaled = [(flat[..., i] - middle) / unit for i, (middle, unit) in enumerate(pairs)]
                flat = torch.stack(scaled, -1)
            if counts is None:
                parts.append(flat.to(torch.float32))
                continue
            assert leaf.bounds[0] is not None, "what is counted has bounds"
            for i, (low, count) in enumerate(zip(leaf.bounds[0].ravel(), counts, strict=True)):
                indicator = F.one_hot(flat[..., i].long() - int(low), count)
                parts.append(indicator.to(torch.float32))
        return torch.cat((*parts, reward.unsqueeze(-1).to(torch.float32)), -1)


class MemorySpec(NamedTuple):
    """The recurrent layer of a network.

    Attributes:
        kind: ``lstm`` or ``gru``.
        previous: inputs besides features: the previous action and reward. None: no such inputs.
    """

    kind: Literal["lstm", "gru"] = "lstm"
    previous: PreviousInputs | None = None


PLAIN_LSTM = MemorySpec()
"""of features alone"""


class WithMemory(RecurrentModel):
    """A network with a memory before its heads.

    Args:
        network: has the methods ``features``, from observations ``[N, ...]`` to ``[N, F]``, and
            ``heads``, from ``[N, W]`` to the output. With ``make_heads``: computes the features.
        num_features: ``F``.
        memory: which memory.
        width: units of the memory, ``W``. None: ``F``.
        make_heads: makes the module that takes the outputs of the memory. None: ``network.heads``.
    """

    def __init__(
        self,
        network: Any,
        num_features: int,
        memory: MemorySpec = PLAIN_LSTM,
        width: int | None = None,
        make_heads: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.previous = memory.previous
        num_inputs = num_features + (0 if memory.previous is None else memory.previous.size)
        self.memory = _MEMORIES[memory.kind](width or num_features, num_inputs)
        self.state_size = self.memory.state_size
        self.heads = None if make_heads is None else make_heads()

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[Any, Tensor]:
        (state, is_first, previous), network, heads = sequences, self.network, self.heads
        x = network.features(observation) if heads is None else network(observation)
        if previous is not None:
            x = torch.cat((x, previous.flatten(0, 1).to(x.dtype)), 1)  # [T * B, F + P]
        x, state = self.memory(x, state, is_first)
        return (network.heads(x) if heads is None else heads(x)), state


class Memory(nn.Module):
    """A recurrent layer over sequences in which episodes begin anywhere.

    Orthogonal initial weights and biases of 0, as in OpenAI baselines.

    Args:
        width: ``F``, numbers of its output.
        num_inputs: ``I``, numbers of its input.

    Attributes:
        state_size: numbers of the state, ``S``.
    """

    num_gates: ClassVar[int]
    num_parts: ClassVar[int]
    """parts of the state, each ``[B, F]``; the first is the output"""

    def __init__(self, width: int, num_inputs: int) -> None:
        super().__init__()
        self.state_size = self.num_parts * width
        self.input = nn.Linear(num_inputs, self.num_gates * width)
        self.recurrent = nn.Linear(width, self.num_gates * width, bias=False)
        for layer in (self.input, self.recurrent):
            nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(self.input.bias)

    def forward(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Go through ``T`` steps. Whatever ``x`` is computed in, the recurrence is in float32.

        Args:
            x: inputs ``[T * B, I]``.
            state: ``[B, S]``, before them.
            is_first: ``[T, B]`` bool, where the state becomes zeros first.

        Returns:
            Outputs ``[T * B, F]``, and the state after them.
        """
        pushes = self.input(x).view(*is_first.shape, -1)  # of all rows in one product
        weight = self.recurrent.weight
        dtype = weight.dtype
        keeps = (~is_first).unsqueeze(2).to(dtype)
        is_autocast = pushes.dtype != dtype
        parts = state.to(dtype).chunk(self.num_parts, 1)
        outputs = []
        with torch.autocast(x.device.type, enabled=False) if is_autocast else nullcontext():
            for push, keep in zip(pushes.to(dtype).unbind(), keeps.unbind(), strict=True):
                parts = self.step(push, keep, weight, *parts)
                outputs.append(parts[0])
        return torch.cat(outputs), torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def step(self, push: Tensor, keep: Tensor, weight: Tensor, *parts: Tensor) -> Any:
        """Return the parts of the state after one step.

        Args:
            push: what the inputs add to the gates, ``[B, G * F]``.
            keep: ``[B, 1]``, 0 where an episode begins, else 1.
            weight: of the recurrent product, ``[G * F, F]``.
            parts: of the state before the step, ``[B, F]`` each.
        """
        raise NotImplementedError


class LSTM(Memory):
    """Long short-term memory with forget gates (Gers et al. 2000, without peepholes).

    The state is the output, then the cells.
    """

    num_gates, num_parts = 4, 2  # input, forget, output; then candidates

    def step(self, push: Tensor, keep: Tensor, weight: Tensor, *parts: Tensor) -> Any:
        output, cell = parts
        F = weight.shape[1]
        gates = torch.addmm(push, output * keep, weight.t())
        i, f, o = gates[:, : 3 * F].sigmoid().chunk(3, 1)
        cell = torch.addcmul(f * (cell * keep), i, gates[:, 3 * F :].tanh())
        return o * cell.tanh(), cell


class GRU(Memory):
    """Gated recurrent units (Cho et al. 2014, arXiv:1406.1078), as in `torch.nn.GRU`.

    ``h[t] = (1 - z) * n + z * h[t - 1]``, where ``n = tanh(W_n x[t] + b_n + r * (U_n h[t - 1]))``,
    and ``r`` and ``z`` are sigmoids of ``W x[t] + b + U h[t - 1]``. The state is the output.
    """

    num_gates, num_parts = 3, 1  # reset, update; then candidates

    def step(self, push: Tensor, keep: Tensor, weight: Tensor, *parts: Tensor) -> Any:
        h, F = parts[0] * keep, weight.shape[1]
        pull = h @ weight.t()
        reset, update = (push[:, : 2 * F] + pull[:, : 2 * F]).sigmoid().chunk(2, 1)
        candidate = torch.addcmul(push[:, 2 * F :], reset, pull[:, 2 * F :]).tanh()
        return (candidate.lerp(h, update),)


_MEMORIES: dict[str, type[Memory]] = {"lstm": LSTM, "gru": GRU}
