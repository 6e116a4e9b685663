"""The optimizer step of every learner, and what is measured on the way.

Nothing here waits for the device; a measurement that is off costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.learner_config import LearnerConfig
from accel_rl.algos.norms import Norms
from accel_rl.parallel import Exchange

COSINE = "gradient_cosine"


class Update:
    """Makes the optimizer steps of a learner, and collects their metrics by name.

    The gradient's norm is always measured; `Norms` and the gradient cosine if the config asks.

    Attributes:
        names: Names of the metrics that are measured here, beside those of the learner.
    """

    def __init__(self, config: LearnerConfig, exchange: Exchange) -> None:
        self._exchange = exchange
        self._interval = config.gradient_cosine_interval
        self._norms = Norms(exchange.parameters) if config.log_norms else None
        self._values: dict[str, list[Tensor]] = {}
        norms = () if self._norms is None else self._norms.names
        self.names = ("gradient_norm", *norms, *((COSINE,) if self._interval else ()))

    def get_state(self) -> dict[str, Any]:
        return {} if self._norms is None else self._norms.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        if self._norms is not None:
            self._norms.set_state(state)

    def step(
        self,
        loss: Tensor,
        metrics: Mapping[str, Tensor],
        lr: float,
        num_samples: Tensor | None = None,
    ) -> None:
        """Minimize ``loss.sum()``: zero the gradient, ``backward``, ``exchange.step``.

        Args:
            loss: What each sample adds to the loss, ``[N]`` or ``[T, B]``, with gradient.
            metrics: What the learner measured of this batch, 0-d tensors without gradient.
            lr: Learning rate.
            num_samples: Number of samples that the loss is the mean over, 0-d, if learners that
                share the update may have different numbers; see `Exchange.step`.
        """
        flat, half = self._exchange.parameters, None
        flat.zero_gradient()
        if self._interval and self._exchange.num_updates % self._interval == 0:
            half = self._half_gradient(loss, num_samples)
            flat.zero_gradient()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        if self._norms is not None:
            self._norms.begin()
        gradient_norm = self._exchange.step(lr, num_samples)
        measured = {**metrics, "gradient_norm": gradient_norm}
        if self._norms is not None:
            measured |= self._norms.end(gradient_norm)
        if half is not None:
            measured[COSINE] = self._cosine(half)
        for name, value in measured.items():
            self._values.setdefault(name, []).append(value)

    def take(self) -> dict[str, Tensor]:
        """Return the mean of each metric over the steps since the last call, 0-d.

        A metric without a value since then is left out.
        """
        values, self._values = self._values, {}
        return {
            name: each[0] if len(each) == 1 else torch.stack(each).mean()
            for name, each in values.items()
        }

    def _half_gradient(self, loss: Tensor, num_samples: Tensor | None) -> Tensor:
        """Return the gradient of half of all learners' samples, ``[P]``, up to a factor.

        The half is every other sample or, of ``[T, B]``, every other environment. It is not the
        first half, since prioritized batches are in the order of the replay.
        """
        loss[..., ::2].sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        gradient = self._exchange.parameters.gradient
        # A copy: the next gradient is written into the same memory.
        return self._exchange.sum(gradient * (1 if num_samples is None else num_samples))

    def _cosine(self, half: Tensor) -> Tensor:
        """Return the cosine of ``half`` and the gradient just used, 0-d; 0 if one of them is 0.

        Clipping, which has come between, is a factor.
        """
        gradient = self._exchange.parameters.gradient
        norms: Tensor = torch.linalg.vector_norm(half) * torch.linalg.vector_norm(gradient)
        return half.dot(gradient) / norms.clamp(min=torch.finfo(norms.dtype).tiny)


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of ``x`` where ``valid``, of the same shape: 0-d; 0 if nothing is valid."""
    return (x * valid).sum() / valid.sum().clamp(min=1)


def masked_shares(x: Tensor, valid: Tensor) -> Tensor:
    """Return what each element of ``x`` adds to `masked_mean`, in the same shape."""
    return x * valid / valid.sum().clamp(min=1)


def sums(per_sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of each but ``total``, 0-d without gradient, for the metrics."""
    return {name: each.detach().sum() for name, each in per_sample.items() if name != "total"}
