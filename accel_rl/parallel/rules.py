"""Update rules, in place on slices of flat vectors: ``[n]`` each, of one dtype and device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@torch.no_grad()
def rmsprop_(
    parameter: Tensor, gradient: Tensor, mean_square: Tensor, lr: float, decay: float, eps: float
) -> None:
    """One step of RMSProp with ``eps`` inside the root.

    ``mean_square <- decay * mean_square + (1 - decay) * gradient ** 2``;
    ``parameter <- parameter - lr * gradient / sqrt(mean_square + eps)``.

    Tieleman and Hinton 2012 (Lecture 6.5, Neural networks for machine learning); the place of
    ``eps`` is that of Lasagne and TensorFlow, and not that of `torch.optim.RMSprop`.
    """
    mean_square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
    root = torch.add(mean_square, eps).sqrt_()
    parameter.addcdiv_(gradient, root, value=-lr)


@torch.no_grad()
def adam_(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    mean_square: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> None:
    """The ``step``-th step of Adam, counted from 1 (Kingma and Ba 2015, arXiv:1412.6980).

    ``mean <- beta1 * mean + (1 - beta1) * gradient``;
    ``mean_square <- beta2 * mean_square + (1 - beta2) * gradient ** 2``;
    ``parameter <- parameter - lr * sqrt(1 - beta2 ** step) / (1 - beta1 ** step) * mean /
    (sqrt(mean_square) + eps)``.

    The place of ``eps`` is that of the last lines of their section 2, of Lasagne and of TensorFlow;
    `torch.optim.Adam` adds it after the correction of the bias.
    """
    mean.lerp_(gradient, 1 - beta1)
    mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    rate = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    parameter.addcdiv_(mean, mean_square.sqrt().add_(eps), value=-rate)


class Rule(Protocol):
    """An update rule with its constants."""

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """The rule's memory, by name; each tensor like ``parameter``."""
        ...

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float, step: int
    ) -> None:
        """Apply the rule, for the ``step``-th time counted from 1, to these slices."""
        ...


@dataclass(frozen=True, kw_only=True)
class RMSProp:
    """`rmsprop_` with its constants.

    ``initial``: what the running mean of squares begins with: 0 in Lasagne and torch, which makes
    the first step about ``lr / sqrt(1 - decay)`` in each direction; 1 in TensorFlow.
    """

    decay: float
    eps: float
    initial: float

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """As `Rule.make_state`."""
        return {"mean_square": torch.full_like(parameter, self.initial)}

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float, step: int
    ) -> None:
        """As `Rule.step_`; the same at every ``step``."""
        rmsprop_(parameter, gradient, state["mean_square"], lr, self.decay, self.eps)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """`adam_` with its constants."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """As `Rule.make_state`."""
        return {"mean": torch.zeros_like(parameter), "mean_square": torch.zeros_like(parameter)}

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float, step: int
    ) -> None:
        """As `Rule.step_`."""
        adam_(
            parameter,
            gradient,
            state["mean"],
            state["mean_square"],
            lr,
            self.beta1,
            self.beta2,
            self.eps,
            step,
        )
