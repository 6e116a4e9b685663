"""The optimizer step of every learner, and what is measured on the way.

Nothing here waits for the device; a measurement that is off costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.algos.measure import Norms, cosine
from accel_rl.graphs import Fixed, Graphs
from accel_rl.parallel import GradientSync, Local

Step = Callable[..., Any]
COSINE = "gradient_cosine"
COSINE_INTERVAL = 10  # updates
_NUM_RATES = 64  # that a GPU gets at once


class Optimizer:
    """Makes the optimizer steps of a learner, and collects their metrics by name.

    The gradient's norm is always measured.

    Args:
        sync: holds the flat parameters of the network and applies the gradients.
        graphs: records the steps as CUDA graphs. None: they run as they are.
        log_norms: whether `Norms` are measured and, at each tenth update, the cosine of gradients;
            needs ``graphs=None``.

    Attributes:
        names: names of the metrics that are measured here, besides those of the loss.
        after: function that is called after each update, within its CUDA graph. None: none is.
    """

    def __init__(
        self,
        sync: GradientSync,
        graphs: Graphs | None = None,
        *,
        log_norms: bool = False,
    ) -> None:
        self._sync, self._graphs = sync, graphs
        # Of several learners one graph before they meet, and one after; a store's is not recorded.
        alone, local = type(sync) is Local, isinstance(sync, Local)
        record = self.recorded
        self._stepped: Step = record(self._step) if alone else self._step
        self._differentiated: Step = self._differentiate if alone else record(self._differentiate)
        self._applied: Step = record(self._apply) if local and not alone else self._apply
        self._rates = Turns()
        self._coming: list[float] = []  # of these, last first
        self.after: Callable[[], None] | None = None
        self._sums: dict[tuple[str, ...], Tensor] = {}  # of metrics since they were taken
        self._counts: dict[tuple[str, ...], int] = {}
        self._interval = COSINE_INTERVAL
        self._half: Tensor | None = None  # gradient of half the samples of this update
        self._norms = Norms(sync.parameters) if log_norms else None
        more = () if self._norms is None else (*self._norms.names, COSINE)
        self.names = ("gradient_norm", *more)

    def get_state(self) -> dict[str, Any]:
        """Return what is added to a learner's state."""
        return {} if self._norms is None else self._norms.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a learner's state."""
        if self._norms is not None:
            self._norms.set_state(state)

    def minimize(self, loss: Callable[..., tuple[Any, ...]], *inputs: Any, lr: float) -> Any:
        """Make one optimizer step on ``loss(*inputs)``.

        These are the forward and the backward pass, the exchange of gradients with other learners,
        and the update rule. Learners that share the update are weighted by the number of
        ``valid`` samples of the first input, if it has that field.

        With CUDA graphs the inputs are trees of tensors and numbers. ``loss`` is then not called
        every time, and gets floats as 0-d tensors.

        Args:
            loss: function that returns what each sample adds to the loss, ``[N]`` or ``[T, B]``
                with gradient; metrics by name, numbers or tensors of one element; and optionally
                something else to return.
            inputs: arguments of ``loss``.
            lr: learning rate.

        Returns:
            The third result of ``loss``, to be used before the next update, or None.
        """
        names, more = self._stepped(loss, self._rate(lr), *inputs)
        self._counts[names] = self._counts.get(names, 0) + 1
        return more

    def recorded(self, function: Step) -> Step:
        """Return a function that is recorded as a CUDA graph, or the same one without graphs.

        Args:
            function: see `Graphs.recorded`.
        """
        return function if self._graphs is None else self._graphs.recorded(function)

    def fixed(self, tree: Any) -> Any:
        """Return an input of `minimize` or of a recorded function that is not copied for graphs.

        Args:
            tree: tensors that are in the same memory each time.
        """
        return tree if self._graphs is None else Fixed(tree)

    def _rate(self, lr: float) -> Any:
        """Count an update, and return its rate, or what takes it from those that the GPU has."""
        sync = self._sync
        rate = sync.advance(lr)
        if self._graphs is None or not isinstance(sync, Local):
            return rate
        if not self._coming or self._coming[-1] != rate:
            rates = sync.rates(_NUM_RATES)
            table = self._rates.fill(torch.tensor(rates, dtype=torch.float64), self._graphs.device)
            self._coming, self._fixed_rate = rates[::-1], Fixed((table,), take_turn)
        self._coming.pop()
        return self._fixed_rate

    def _step(
        self, loss: Callable[..., Any], rate: float | Tensor, *inputs: Any
    ) -> tuple[tuple[str, ...], Any]:
        """Make an update, and add up its metrics; return their names, and what is left."""
        metrics, more = self._differentiated(loss, *inputs)
        self._sync.reduce()
        measured = {**metrics, **self._applied(rate)}
        device = self._sync.parameters.gradient.device
        names = tuple(measured)
        values = torch.stack([as_metric(*item, device) for item in measured.items()])
        if names not in self._sums:
            self._sums[names] = torch.zeros_like(values)
        self._sums[names] += values
        return names, more

    def _differentiate(
        self, loss: Callable[..., Any], *inputs: Any
    ) -> tuple[Mapping[str, Any], Any]:
        """Make the part of an update before learners meet."""
        sync, flat = self._sync, self._sync.parameters
        flat.zero_gradient()
        summands, metrics, *more = loss(*inputs)
        valid = getattr(inputs[0], "valid", None) if inputs and sync.num_sharing > 1 else None
        num_samples = None if valid is None else valid.sum()
        self._half = None
        if self._norms is not None and (sync.num_updates - 1) % self._interval == 0:
            self._half = self._half_gradient(summands, num_samples)
            flat.zero_gradient()
        summands.sum().backward()
        sync.pack(num_samples)
        return metrics, more[0] if more else None

    def _apply(self, rate: float) -> dict[str, Tensor]:
        """Make the part of an update after learners have met."""
        if self._norms is not None:
            self._norms.begin()
        norm = self._sync.apply(rate)
        measured = {"gradient_norm": norm}
        if self._norms is not None:
            measured |= self._norms.end(norm)
        if self._half is not None:
            # Clipping, which has come between, is a factor.
            measured[COSINE] = cosine(self._half, self._sync.parameters.gradient)
        if self.after is not None:
            self.after()
        return measured

    def take_metrics(self, **more: Tensor) -> dict[str, Tensor]:
        """Return the mean of each metric over the steps since the last call, 0-d.

        A metric without a value since then is left out. If several learners share updates, the
        means are those of all learners, so that learners decide alike by them. All must call it.

        Args:
            more: further metrics of this learner, by name.
        """
        means: dict[str, Tensor] = {}
        sizes: dict[str, int] = defaultdict(int)
        counts, self._counts = self._counts, {}
        for names, count in counts.items():
            mean = self._sums[names] / count
            self._sums[names].zero_()
            for name, value in zip(names, mean.unbind(), strict=True):
                sizes[name] += count
                is_new = name not in means  # else it was measured along with others, too
                means[name] = value if is_new else means[name].lerp(value, count / sizes[name])
        sync = self._sync
        device = sync.parameters.gradient.device
        means |= {name: as_metric(name, value, device) for name, value in more.items()}
        if sync.num_sharing == 1 or not means:
            return means
        sums = sync.sum(torch.stack(tuple(means.values())))
        return dict(zip(means, (sums / sync.num_sharing).unbind(), strict=True))

    def _half_gradient(self, summands: Tensor, num_samples: Tensor | None) -> Tensor:
        """Return the gradient of half of all learners' samples, ``[P]``, up to a factor.

        The half is every other sample or, of ``[T, B]``, every other environment. It is not the
        first half, since prioritized batches are in the order of the replay.
        """
        summands[..., ::2].sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        gradient = self._sync.parameters.gradient
        # A copy: the next gradient is written into the same memory.
        return self._sync.sum(gradient * (1 if num_samples is None else num_samples))


class Turns:
    """Rows on a GPU that CUDA graphs take in turns: each time that `take_turn` runs, the next one.

    Attributes:
        table: the rows, behind one whose first element says which is next.
    """

    def __init__(self) -> None:
        self.table: Tensor | None = None

    def fill(self, rows: Tensor, device: torch.device) -> Tensor:
        """Return a new table, most often where the one before was.

        Args:
            rows: ``[K]`` or ``[K, m]``, of the host.
            device: the GPU.
        """
        given = torch.cat((torch.zeros_like(rows[:1]), rows)).pin_memory()
        if self.table is None or self.table.shape != given.shape:
            self.table = torch.empty_like(given, device=device)
        return self.table.copy_(given, non_blocking=True)


def take_turn(table: Tensor) -> Tensor:
    """Return the next row of a table of `Turns`, 0-d or ``[m]``."""
    place = table[:1].flatten()[:1]
    row = table[1:].index_select(0, place.long()).squeeze(0)
    place += 1
    return row


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
        is_plain = value.dtype == torch.float32 and value.ndim == 0 and not value.requires_grad
        if is_plain and value.device == device:  # most often
            return value
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
    return x * shares(valid, x.dtype)


def shares(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what each element weighs in a mean over those that count.

    Args:
        valid: ``[...]`` bool, which elements count.
        dtype: of the result.
    """
    return valid.to(dtype) / valid.sum().clamp(min=1)


def sums(per_sample: Mapping[str, Tensor], share: Tensor | None = None) -> dict[str, Tensor]:
    """Return the sum of each but ``total``, 0-d without gradient, for the metrics.

    Args:
        per_sample: ``[...]`` each, by name.
        share: of `shares`, ``[...]``: the sums are means over the elements that count.
    """
    names = [name for name in per_sample if name != "total"]
    values = torch.stack([per_sample[name].detach() for name in names])
    values = values if share is None else values * share
    return dict(zip(names, values.flatten(1).sum(1).unbind(), strict=True))
