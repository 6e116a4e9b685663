"""An update, and what is measured of it where the config asks for that.

Nothing here waits for the device; a measurement that is off costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.algos.learner_config import LearnerConfig
from accel_rl.algos.norms import Norms
from accel_rl.parallel import Exchange

COSINE = "gradient_cosine"


class Half(NamedTuple):
    """The loss over one half of its batch, from the same forward pass; 0-d each."""

    loss: Tensor
    num_samples: Tensor  # how many that is the mean over


class Measurements:
    """Takes a learner's updates for it, and collects their `Norms` and gradient cosines.

    ``names``: of what `take` gives.
    """

    def __init__(self, config: LearnerConfig, exchange: Exchange) -> None:
        self._exchange = exchange
        self._interval = config.gradient_cosine_interval
        self._norms = Norms(exchange.parameters) if config.log_norms else None
        self._values: dict[tuple[str, ...], list[Tensor]] = {}
        if self._norms is not None:
            self._values[self._norms.names] = []
        if self._interval:
            self._values[(COSINE,)] = []
        self.names = tuple(name for names in self._values for name in names)

    def get_state(self) -> dict[str, Any]:
        return {} if self._norms is None else self._norms.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        if self._norms is not None:
            self._norms.set_state(state)

    @property
    def wants_half(self) -> bool:
        """Whether the next update is to compare half a batch with all of it."""
        return self._interval > 0 and self._exchange.num_updates % self._interval == 0

    def update(
        self, loss: Tensor, half: Half | None, lr: float, weight: Tensor | None = None
    ) -> Tensor:
        """``loss.backward()`` into the zeroed flat gradient, then ``exchange.step(lr, weight)``.

        ``half``: None unless it is wanted. Where several learners share an update, their halves are
        added up as their batches are.
        Returns what the exchange does: the norm of the gradient, 0-d.
        """
        half_gradient = None if half is None else self._half_gradient(*half)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._norms is not None:
            self._norms.begin()
        gradient_norm = self._exchange.step(lr, weight)
        if half_gradient is not None:
            self._values[(COSINE,)].append(self._cosine(half_gradient))
        if self._norms is not None:
            self._values[self._norms.names].append(self._norms.end(gradient_norm))
        return gradient_norm

    def take(self) -> dict[str, Tensor]:
        """Means over the updates since the last time, 0-d; without those of which there is none."""
        means: dict[str, Tensor] = {}
        for names, values in self._values.items():
            if values:
                means |= zip(names, torch.stack(values).mean(0), strict=True)
                values.clear()
        return means

    def _half_gradient(self, half_loss: Tensor, count: Tensor) -> Tensor:
        """The sum of gradients over half of the whole batch, ``[P]``; the flat gradient is zero."""
        flat = self._exchange.parameters
        half_loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        half = self._exchange.sum(flat.gradient * count)
        flat.zero_gradient()
        return half

    def _cosine(self, half: Tensor) -> Tensor:
        """That of ``half`` and the gradient just used, ``[1]``; 0 where one of the two vanishes.

        Clipping, which has come between, is a factor.
        """
        gradient = self._exchange.parameters.gradient
        norms: Tensor = torch.linalg.vector_norm(half) * torch.linalg.vector_norm(gradient)
        cosine = half.dot(gradient) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
        return cosine.unsqueeze(0)


def every_other(like: Tensor) -> Tensor:
    """Half of the columns of ``like``, ``[..., N]``, as bool ``[N]``.

    Not the first half: prioritized batches are in the order of the replay.
    """
    return torch.arange(like.shape[-1], device=like.device) % 2 == 0
