"""From a gradient to new parameters: one learner alone, or several together.

A `GradientSync` is all that an algorithm knows of other learners. It computes its gradient into
``parameters.gradient`` and calls `GradientSync.step`; what happens in between (nothing, an
all-reduce, a parameter store) is not its business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.rules import ParameterRule, UpdateRule
from accel_rl.parallel.running import Running

State = dict[str, dict[str, Tensor]]
"""Tensors to save, by kind ("parameters", or one of the rule's), then by parameter name; and
"counts", with "num_updates", 0-d int64."""


class GradientSync:
    """Applies the gradient of one learner to its parameters, alone or together with others.

    The methods of this class are those of a learner without others.

    Attributes:
        parameters: parameters and gradients of the learner's network, as flat tensors.
        num_sharing: number of learners whose gradients make up one update, this one included. Each
            has its part of the batch.
    """

    parameters: FlatParameters
    num_sharing: int = 1

    @property
    def num_updates(self) -> int:
        """Number of updates so far."""
        raise NotImplementedError

    def step(self, lr: float, weight: Tensor | None = None) -> Tensor:
        """Update the parameters with the gradient in ``parameters.gradient``.

        Its parts are `advance`, `pack`, `reduce` and `apply`. CUDA graphs of `Local` and
        subclasses hold `pack` and `apply`.

        Args:
            lr: learning rate.
            weight: see `pack`.

        Returns:
            See `apply`.
        """
        rate = self.advance(lr)
        self.pack(weight)
        self.reduce()
        return self.apply(rate)

    def advance(self, lr: float) -> float:
        """Count one update, and return the argument of `apply`.

        Args:
            lr: learning rate.
        """
        return lr

    def pack(self, weight: Tensor | None) -> None:
        """Prepare the gradient in ``parameters.gradient`` for `reduce`.

        Args:
            weight: number of samples that the gradient is a mean over, 0-d. It weights this
                learner's gradient where several share the update. None: all have equally many.
        """

    def reduce(self) -> None:
        """Combine the gradients of all learners that share the update. Alone: nothing to do."""

    def apply(self, rate: float | Tensor) -> Tensor:
        """Clip the gradient and update the parameters.

        Afterwards ``parameters.gradient`` holds the gradient that was used, clipped.

        Args:
            rate: result of `advance`.

        Returns:
            L2 norm of the gradient that was used, before clipping: 0-d, on the device.
        """
        raise NotImplementedError

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over the learners that share an update. All must call it.

        Args:
            x: the tensor of this learner.
        """
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """Return the element-wise maximum over the learners that share an update. All must call it.

        Args:
            x: the tensor of this learner.
        """
        return x

    def running(self, name: str, value: Tensor, /) -> Running:
        """Return numbers that all learners of a parameter store share. All must call it, once.

        Learners in step have numbers of their own, which they change alike.

        Args:
            name: name of the numbers.
            value: first value, ``[n]``.
        """
        return Running(value)

    def take_metrics(self) -> dict[str, float]:
        """Return metrics of the synchronization since the last call, by name.

        The names are the same each time. A row of metrics has the smallest of all learners' numbers
        that end in ``_min``, the largest of those that end in ``_max``, and the mean of others.
        """
        return {}

    def state_dict(self) -> State:
        """Return the state to save."""
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        raise NotImplementedError


class Local(GradientSync):
    """The synchronization of a single learner: clip the gradient and apply the update rule.

    Args:
        parameters: parameters and gradients of the network.
        rule: the update rule.
        max_gradient_norm: largest L2 norm of the whole gradient, which is scaled down to it. None:
            no limit.
    """

    num_updates: int = 0

    def __init__(
        self,
        parameters: FlatParameters,
        rule: UpdateRule,
        max_gradient_norm: float | None,
    ) -> None:
        self.parameters = parameters
        self._rule = rule
        self._rule_state = rule.make_state(parameters.parameter)
        self._max_norm = max_gradient_norm
        self._lr = math.nan

    def advance(self, lr: float) -> float:
        """Count one update, and return the rule's rate in it."""
        self.num_updates += 1
        self._lr = lr
        return self._rule.rate(lr, self.num_updates)

    def rates(self, num: int) -> list[float]:
        """Return the rates of the last counted update and of those after it, of its learning rate.

        Args:
            num: number of updates.
        """
        return [self._rule.rate(self._lr, self.num_updates + number) for number in range(num)]

    def apply(self, rate: float | Tensor) -> Tensor:
        """Clip the gradient and apply the rule; see `GradientSync.apply`."""
        flat = self.parameters
        norm = clip_gradient_(flat.gradient, self._max_norm)
        if isinstance(self._rule, ParameterRule):
            self._step_each_(self._rule, rate)
        else:
            self._rule.step_(flat.parameter, flat.gradient, self._rule_state, rate)
        return norm

    @torch.no_grad()
    def _step_each_(self, rule: ParameterRule, rate: float | Tensor) -> None:
        flat = self.parameters
        gradient = flat.views(flat.gradient)
        state = {kind: flat.views(each) for kind, each in self._rule_state.items()}
        for name, parameter in flat.views(flat.parameter).items():
            own = {kind: views[name] for kind, views in state.items()}
            rule.step_parameter_(name, parameter, gradient[name], own, rate)

    def take_metrics(self) -> dict[str, float]:
        """Return ``learning_rate``, of the last update; NaN before the first one."""
        return {"learning_rate": self._lr}

    def state_dict(self) -> State:
        """Return the parameters and the optimizer's state, on the CPU."""
        flats = {"parameters": self.parameters.parameter, **self._rule_state}
        return make_state(self.parameters, flats, self.num_updates)

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state.

        Args:
            state: of `state_dict`.

        Raises:
            ValueError: the state is of another model or rule.
        """
        flats = {"parameters": self.parameters.parameter, **self._rule_state}
        self.num_updates = load_state(self.parameters, flats, state)


def make_state(parameters: FlatParameters, flats: Mapping[str, Tensor], num_updates: int) -> State:
    """Return the state of ``flats``, ``[P]`` each, which are laid out like ``parameters``."""
    named = {kind: parameters.to_named(flat) for kind, flat in flats.items()}
    return {**named, "counts": {"num_updates": torch.tensor(num_updates)}}


def load_state(parameters: FlatParameters, flats: Mapping[str, Tensor], state: State) -> int:
    """Fill ``flats`` from a result of `make_state`; return its ``num_updates``."""
    check_kinds(state, flats)
    for kind, flat in flats.items():
        parameters.from_named_(flat, state[kind])
    return int(state["counts"]["num_updates"])


def check_kinds(state: State, flats: Iterable[str]) -> None:
    """Raise ValueError unless ``state`` holds ``flats`` and counts, and nothing else."""
    expected = {*flats, "counts"}
    if state.keys() != expected:
        raise ValueError(
            f"the saved state holds {', '.join(sorted(state))}; this learner's update rule "
            f"needs {', '.join(sorted(expected))}"
        )


@torch.no_grad()
def clip_gradient_(gradient: Tensor, max_norm: float | None) -> Tensor:
    """Scale ``gradient`` ``[P]`` down to L2 norm ``max_norm``; return its norm before.

    A gradient within the limit stays as it is, as with TensorFlow's ``clip_by_global_norm``.
    """
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if max_norm is None or (norm.is_cpu and norm.item() <= max_norm):  # on a GPU looking would wait
        return norm
    tiny = torch.finfo(norm.dtype).tiny
    gradient.mul_(norm.clamp(max=max_norm) / norm.clamp(min=tiny))
    return norm
