"""From a gradient to new parameters: one learner alone, or several together.

An exchange is all that an algorithm knows of other learners. It computes its gradient into
``parameters.gradient`` and calls `Exchange.step`; what happens in between (nothing, an all-reduce,
a parameter store) is the exchange's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from accel_rl.capture import EAGER, Capture
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.rules import Rule
from accel_rl.parallel.running import Running

LASAGNE_EPS = 1e-7
"""in the factor of `clip_gradient_`"""

State = dict[str, dict[str, Tensor]]
"""What to save: by kind ("parameters", or one of the rule's), then by parameter name; and "counts",
with "num_updates", 0-d int64."""


class Exchange(Protocol):
    """What algorithms need of an exchange.

    ``num_sharing``: learners whose gradients make up one update, this one included; each has its
    part of the batch.
    """

    parameters: FlatParameters
    num_sharing: int

    @property
    def num_updates(self) -> int:
        """How often `step` was called."""
        ...

    def step(self, lr: float, weight: Tensor | None = None) -> Tensor:
        """Use up ``parameters.gradient``: bring ``parameters.parameter`` up to date.

        ``weight``: 0-d, how many samples this gradient is the mean over, so that the mean over all
        of those who share the update is right; None: all have equally many.
        ``parameters.gradient`` is then the gradient that was used, clipped.

        Returns the L2 norm, before clipping, of the gradient that was used: 0-d, on its device.
        """
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over the learners that share an update, each of which must ask."""
        ...

    def maximum(self, x: Tensor) -> Tensor:
        """Likewise the largest, element by element."""
        ...

    def running(self, name: str, value: Tensor) -> Running:
        """Numbers ``[n]`` that begin with ``value`` and that learners with a store share.

        All must ask for ``name``, once. Learners that share an update change their own alike.
        """
        ...

    def take_metrics(self) -> dict[str, float]:
        """What there is to tell of dealing with others since the last call.

        The same names each time. Those that end in ``_seconds``, ``_min`` or ``_max`` are such over
        several learners, too; of the others the mean is told.
        """
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Local:
    """One learner: clip the gradient, apply the rule.

    ``max_gradient_norm``: of the whole gradient, as L2 norm; None: no limit. ``gradient_norm_eps``:
    of `clip_gradient_`. ``capture``: of that.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        rule: Rule,
        max_gradient_norm: float | None,
        capture: Capture = EAGER,
        *,
        gradient_norm_eps: float = LASAGNE_EPS,
    ) -> None:
        self.parameters = parameters
        self._rule = rule
        self._rule_state = rule.make_state(parameters.parameter)
        self._clipping = max_gradient_norm, gradient_norm_eps
        self.num_updates = 0
        self.num_sharing = 1

        def update_(
            flat: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
        ) -> Tensor:
            norm = clip_gradient_(gradient, max_gradient_norm, gradient_norm_eps)
            rule.step_(flat, gradient, state, rate)
            return norm

        self._captured = None if capture is EAGER else capture(update_)

    def step(self, lr: float, weight: Tensor | None = None) -> Tensor:
        """As `Exchange.step`: its four parts, of which graphs have the second and the last."""
        rate = self.advance(lr)
        self.pack(weight)
        self.reduce()
        return self.apply(rate)

    def advance(self, lr: float) -> float:
        """Count one step, on the host; return the rate that the rule has in it."""
        self.num_updates += 1
        return self._rule.rate(lr, self.num_updates)

    def pack(self, weight: Tensor | None) -> None:
        """Make the gradient ready for `reduce`, on the device. ``weight``: as in `step`."""

    def reduce(self) -> None:
        """Make the gradient that of all learners that share the update: here this one's."""

    def apply(self, rate: float | Tensor) -> Tensor:
        """Clip the gradient and apply the rule, on the device; return as `step`."""
        flat = self.parameters
        if self._captured is not None:
            return self._captured(flat.parameter, flat.gradient, self._rule_state, rate)
        norm = clip_gradient_(flat.gradient, *self._clipping)
        self._rule.step_(flat.parameter, flat.gradient, self._rule_state, rate)
        return norm

    def sum(self, x: Tensor) -> Tensor:
        """``x``: nobody shares in it."""
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """``x``: nobody shares in it."""
        return x

    def running(self, name: str, value: Tensor) -> Running:
        """As `Exchange.running`: this learner's own."""
        return Running(value)

    def take_metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def state_dict(self) -> State:
        """Parameters and optimizer state, on the CPU."""
        flats = {"parameters": self.parameters.parameter, **self._rule_state}
        return make_state(self.parameters, flats, self.num_updates)

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError where ``state`` is of another model or rule."""
        flats = {"parameters": self.parameters.parameter, **self._rule_state}
        self.num_updates = load_state(self.parameters, flats, state)


def make_state(parameters: FlatParameters, flats: Mapping[str, Tensor], num_updates: int) -> State:
    """What to save of ``flats``, ``[P]`` each, that are laid out like ``parameters``."""
    named = {kind: parameters.to_named(flat) for kind, flat in flats.items()}
    return {**named, "counts": {"num_updates": torch.tensor(num_updates)}}


def load_state(parameters: FlatParameters, flats: Mapping[str, Tensor], state: State) -> int:
    """Fill ``flats`` from what `make_state` gave; returns its ``num_updates``.

    Raises:
        ValueError: ``state`` is of another model or rule.
    """
    check_kinds(state, flats)
    for kind, flat in flats.items():
        parameters.from_named_(flat, state[kind])
    return int(state["counts"]["num_updates"])


def check_kinds(state: State, flats: Iterable[str]) -> None:
    """Raises ValueError unless ``state`` holds ``flats`` and counts, and nothing else."""
    expected = {*flats, "counts"}
    if state.keys() != expected:
        raise ValueError(
            f"the saved state holds {', '.join(sorted(state))}; this learner's update rule "
            f"needs {', '.join(sorted(expected))}"
        )


@torch.no_grad()
def clip_gradient_(gradient: Tensor, max_norm: float | None, eps: float = LASAGNE_EPS) -> Tensor:
    """Scale ``gradient`` ``[P]`` down to L2 norm ``max_norm``; return its norm before.

    The factor is ``min(norm, max_norm) / (norm + eps)``, always applied. Lasagne has 1e-7 as
    ``eps``. With 0 it is ``max_norm / max(norm, max_norm)``, as TensorFlow's
    ``clip_by_global_norm``: a gradient within the limit stays as it is.
    """
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if max_norm is not None:
        divisor = norm + eps if eps else norm.clamp(min=torch.finfo(norm.dtype).tiny)
        gradient.mul_(norm.clamp(max=max_norm) / divisor)
    return norm
