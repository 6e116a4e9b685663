"""The optimizer step of every learner, and what is measured on the way.

Nothing here waits for the device; a measurement that is off costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.algos.learner_config import LearnerConfig
from accel_rl.algos.norms import Norms
from accel_rl.graphs import Graphs
from accel_rl.parallel import Exchange, Local

COSINE = "gradient_cosine"

Compute = Callable[..., tuple[Tensor, Mapping[str, Tensor], Tensor | None, Any]]
"""Gives the first, second and last argument of `Update.step`, and what else there is to return."""


Names = tuple[tuple[str, ...], ...]
"""of metrics that were added up together, each"""


class Update:
    """Makes the optimizer steps of a learner, and collects their metrics by name.

    The gradient's norm is always measured; `Norms` and the gradient cosine if the config asks.

    Attributes:
        names: Names of the metrics that are measured here, beside those of the learner.
    """

    def __init__(
        self, config: LearnerConfig, exchange: Exchange, graphs: Graphs | None = None
    ) -> None:
        self._exchange = exchange
        # One graph where there is one learner; else one before learners meet, and one behind.
        self._is_alone = type(exchange) is Local
        self._graphs = graphs
        if graphs is not None:
            self._recorded = graphs.whole(self._minimize, self._begin, self._end)
        self._totals: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}
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
        measured = {**metrics, **self._norms_of(self._exchange.step(lr, num_samples))}
        if half is not None:
            measured[COSINE] = self._cosine(half)
        for name, value in measured.items():
            self._values.setdefault(name, []).append(as_metric(name, value, loss.device))

    def run(self, compute: Compute, lr: float, *inputs: Any, is_usual: bool = True) -> Any:
        """`step` with the loss, metrics and number of samples that ``compute(*inputs)`` gives.

        With graphs, all of it is one graph. Then ``inputs`` are trees of tensors and numbers, of
        which ``compute`` gets floats as 0-d tensors, and ``compute`` is not called every time.

        Args:
            compute: The forward pass.
            lr: Learning rate.
            inputs: Its arguments.
            is_usual: Whether ``inputs`` are of a shape that comes often; others are not recorded.

        Returns:
            What else ``compute`` gave, to be used up before the next update.
        """
        if self._graphs is None:
            loss, metrics, num_samples, more = compute(*inputs)
            self.step(loss, metrics, lr, num_samples)
            return more
        exchange, (whole, first, second) = self._exchange, self._recorded
        used = whole if self._is_alone else first
        if self._is_alone and is_usual:
            assert isinstance(exchange, Local)
            names, more = whole(compute, exchange.advance(lr), *inputs)
        else:
            names, more = (first if is_usual else self._begin)(compute, *inputs)
            if isinstance(exchange, Local):
                exchange.reduce()
                names += second(exchange.advance(lr))
            else:
                names += self._add(self._norms_of(exchange.step(lr)))
        self._graphs.count("updates", is_replayed=is_usual and used.is_replayed)
        for each in names:
            self._counts[each] = self._counts.get(each, 0) + 1
        return more

    def _minimize(self, compute: Compute, rate: Tensor, *inputs: Any) -> tuple[Names, Any]:
        """All of an update, for one learner."""
        metrics, more = self._differentiate(compute, *inputs)
        return self._add(metrics | self._apply(rate)), more

    def _begin(self, compute: Compute, *inputs: Any) -> tuple[Names, Any]:
        """The part up to where learners meet."""
        metrics, more = self._differentiate(compute, *inputs)
        return self._add(metrics), more

    def _end(self, rate: Tensor) -> Names:
        """The part behind that."""
        return self._add(self._apply(rate))

    def _differentiate(self, compute: Compute, *inputs: Any) -> tuple[dict[str, Tensor], Any]:
        self._exchange.parameters.zero_gradient()
        loss, metrics, num_samples, more = compute(*inputs)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        if self._norms is not None:
            self._norms.begin()
        if isinstance(self._exchange, Local):
            self._exchange.pack(num_samples)
        return dict(metrics), more

    def _apply(self, rate: Tensor) -> dict[str, Tensor]:
        assert isinstance(self._exchange, Local)
        return self._norms_of(self._exchange.apply(rate))

    def _norms_of(self, gradient_norm: Tensor) -> dict[str, Tensor]:
        """Return what is measured behind the exchange's step, which gave ``gradient_norm``."""
        norms = {} if self._norms is None else self._norms.end(gradient_norm)
        return {"gradient_norm": gradient_norm, **norms}

    @torch.no_grad()
    def _add(self, measured: Mapping[str, Tensor]) -> Names:
        """Add them up where they stay, since a graph writes the next ones in the same place."""
        names = tuple(measured)
        device = self._exchange.parameters.gradient.device
        values = torch.stack([as_metric(*item, device).float() for item in measured.items()])
        if names not in self._totals:  # while nothing is recorded yet
            self._totals[names] = torch.zeros_like(values)
        self._totals[names].add_(values)
        return (names,)

    def take(self, **more: Tensor) -> dict[str, Tensor]:
        """Return the mean of each metric over the steps since the last call, 0-d.

        A metric without a value since then is left out. If several learners share updates, the
        means are those of all learners, so that learners decide alike by them. All must call it.

        Args:
            more: further metrics of this learner, by name.
        """
        values, self._values = self._values, {}
        means = {
            name: each[0] if len(each) == 1 else torch.stack(each).mean()
            for name, each in values.items()
        }
        counts, self._counts = self._counts, {}
        for names, count in counts.items():
            means |= zip(names, (self._totals[names] / count).unbind(), strict=True)
            self._totals[names].zero_()
        exchange = self._exchange
        device = exchange.parameters.gradient.device
        means |= {name: as_metric(name, value, device) for name, value in more.items()}
        if exchange.num_sharing == 1 or not means:
            return means
        sums = exchange.sum(torch.stack(tuple(means.values())))
        return dict(zip(means, (sums / exchange.num_sharing).unbind(), strict=True))

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


def as_metric(name: str, value: Any, device: torch.device) -> Tensor:
    """Return a metric as a 0-d tensor of floats, without gradient.

    Args:
        name: name of the metric, for the message.
        value: a tensor of one element, or a number.
        device: device of the tensor.

    Raises:
        ValueError: the value is not one real number.
    """
    if isinstance(value, Tensor):
        if value.numel() == 1 and not value.is_complex():
            dtype = torch.promote_types(value.dtype, torch.float32)
            return value.detach().reshape(()).to(device, dtype)
    elif np.ndim(value) == 0:
        with suppress(TypeError, ValueError):
            return torch.full((), float(value), device=device)
    is_tensor = isinstance(value, Tensor)
    found = f"a tensor of shape {list(value.shape)}" if is_tensor else f"{value!r:.100}"
    raise ValueError(
        f"the metric {name} is {found}; it must be one real number: take the mean of several"
    )


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of ``x`` where ``valid``, of the same shape: 0-d; 0 if nothing is valid."""
    return (x * valid).sum() / valid.sum().clamp(min=1)


def masked_shares(x: Tensor, valid: Tensor) -> Tensor:
    """Return what each element adds to the mean over the elements that count.

    Args:
        x: ``[...]`` float.
        valid: ``[...]`` bool, which elements count.

    Returns:
        ``[...]`` float: ``x / sum(valid)``, and 0 where ``valid`` is False.
    """
    return x * valid / valid.sum().clamp(min=1)


def sums(per_sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of each but ``total``, 0-d without gradient, for the metrics."""
    return {name: each.detach().sum() for name, each in per_sample.items() if name != "total"}
