"""Update rules, in place on slices of flat vectors: ``[n]`` each, of one dtype and device."""

from __future__ import annotations

from dataclasses import dataclass

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
        """The rule's memory, by name; each tensor like ``parameter``."""
        return {"mean_square": torch.full_like(parameter, self.initial)}

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float
    ) -> None:
        """Apply the rule to these slices of parameter, gradient and state."""
        rmsprop_(parameter, gradient, state["mean_square"], lr, self.decay, self.eps)
