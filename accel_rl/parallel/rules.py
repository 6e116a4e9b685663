"""Update rules, in place on slices of flat vectors: ``[n]`` each, of one dtype and device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@torch.no_grad()
def rmsprop_(
    parameter: Tensor,
    gradient: Tensor,
    mean_square: Tensor,
    lr: float | Tensor,
    decay: float,
    eps: float,
) -> None:
    """Take a step of RMSProp with ``eps`` inside the root. ``lr`` is a number or a 0-d tensor.

    ``mean_square <- decay * mean_square + (1 - decay) * gradient ** 2``;
    ``parameter <- parameter - lr * gradient / sqrt(mean_square + eps)``.

    Tieleman and Hinton 2012 (Lecture 6.5, Neural networks for machine learning); the place of
    ``eps`` is that of Lasagne and TensorFlow, and not that of `torch.optim.RMSprop`.
    """
    mean_square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
    scale = torch.add(mean_square, eps).rsqrt_()  # on a CPU much faster than a root
    if isinstance(lr, Tensor):  # which ``value`` may not be
        parameter.addcmul_(gradient * lr, scale, value=-1)
    else:
        parameter.addcmul_(gradient, scale, value=-lr)


@torch.no_grad()
def adam_(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    mean_square: Tensor,
    rate: float | Tensor,
    beta1: float,
    beta2: float,
    eps: float | Tensor,
) -> None:
    """Take a step of Adam (Kingma and Ba 2015, arXiv:1412.6980) with the ``rate`` of `adam_rate`.

    ``mean <- beta1 * mean + (1 - beta1) * gradient``;
    ``mean_square <- beta2 * mean_square + (1 - beta2) * gradient ** 2``;
    ``parameter <- parameter - rate * mean / (sqrt(mean_square) + eps)``.

    The place of ``eps``, a number or ``[n]``, is that of the last lines of their section 2, of
    Lasagne and of TensorFlow; `Adam` can have that of `torch.optim.Adam`.
    """
    if isinstance(rate, Tensor) and rate.is_cuda and not isinstance(eps, Tensor):
        rate = rate.float()  # which the kernel reads on the device
    elif isinstance(rate, Tensor) or isinstance(eps, Tensor):
        mean.lerp_(gradient, 1 - beta1)
        mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = mean_square.sqrt().add_(eps)
        parameter.addcdiv_(mean * rate, root, value=-1)
        return
    torch._fused_adam_(  # one pass over memory instead of ten
        [parameter],
        [gradient],
        [mean],
        [mean_square],
        [],
        [_after_all_steps(parameter.device)],  # where it corrects no bias; the rate does
        lr=rate,
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def adam_rate(lr: float, beta1: float, beta2: float, step: int) -> float:
    """Return Adam's rate: ``lr * sqrt(1 - beta2 ** step) / (1 - beta1 ** step)``."""
    return lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)


@torch.no_grad()
def radam_(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    mean_square: Tensor,
    rate: float | Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Take a step of rectified Adam (Liu et al. 2020, arXiv:1908.03265); see `radam_rate`.

    With a rate of at least 0 it is `adam_`. With a rate below 0 it is not rectified yet: the
    moments change as in `adam_`, and ``parameter <- parameter - |rate| * mean``.
    """
    if isinstance(rate, Tensor):
        mean.lerp_(gradient, 1 - beta1)
        mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = torch.where(rate < 0, 1.0, mean_square.sqrt().add_(eps))
        parameter.addcdiv_(mean * rate.abs(), root, value=-1)
    elif rate >= 0:
        adam_(parameter, gradient, mean, mean_square, rate, beta1, beta2, eps)
    else:
        mean.lerp_(gradient, 1 - beta1)
        mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        parameter.add_(mean, alpha=rate)


def radam_rate(lr: float, beta1: float, beta2: float, step: int) -> float:
    """Return the rate of rectified Adam's ``step``-th step, below 0 if it is not rectified.

    With ``rho_inf = 2 / (1 - beta2) - 1`` and ``rho = rho_inf - 2 * step * beta2 ** step / (1 -
    beta2 ** step)``, a step is rectified where ``rho > 5``, as in `torch.optim.RAdam`; the paper
    has 4. The rate is then `adam_rate` times ``sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf -
    4) * (rho_inf - 2) * rho))``, and else ``-lr / (1 - beta1 ** step)``.
    """
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 5:
        return -lr / (1 - beta1**step)
    variance = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    return adam_rate(lr, beta1, beta2, step) * math.sqrt(variance)


@functools.cache
def _after_all_steps(device: torch.device) -> Tensor:
    return torch.full((), math.inf, dtype=torch.float32, device=device)


class UpdateRule(Protocol):
    """An update rule with its constants."""

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the optimizer's state at the start, by name.

        Args:
            parameter: flat parameters, ``[P]``. Each tensor of the state has this shape.
        """
        ...

    def rate(self, lr: float, step: int) -> float:
        """Return the rate that the rule uses in one step. Without a rule of its own, it is ``lr``.

        Args:
            lr: learning rate.
            step: number of the step, from 1.
        """
        return lr

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
    ) -> None:
        """Apply the rule, in place.

        Args:
            parameter: parameters, or a slice of them, ``[n]``.
            gradient: their gradient, ``[n]``.
            state: the optimizer's state, ``[n]`` each.
            rate: of `rate`, a number or a 0-d tensor.
        """
        ...


class ParameterRule(UpdateRule):
    """An update rule that sees each parameter by its name and in its shape, unlike `UpdateRule`.

    A subclass defines `make_state`, as for `UpdateRule`, and `step_parameter_`. It works for one
    learner and for learners in step. A parameter store changes slices of all parameters.
    """

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
    ) -> None:
        raise NotImplementedError("it needs the parameters one by one")

    def step_parameter_(
        self,
        name: str,
        parameter: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        rate: float | Tensor,
    ) -> None:
        """Apply the rule to one parameter, in place.

        Args:
            name: name of the parameter in the network.
            parameter: the parameter, in its shape.
            gradient: its gradient, of the same shape.
            state: the optimizer's state, of the same shape each.
            rate: of `rate`, a number or a 0-d tensor.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RMSProp(UpdateRule):
    """The rule RMSProp; see `rmsprop_`.

    Attributes:
        decay: decay of the running mean of squared gradients.
        eps: small number under the root.
        initial: first value of the running mean: 0 as in Lasagne and torch, where the first step is
            about ``lr / sqrt(1 - decay)`` in each direction, or 1 as in TensorFlow.
    """

    decay: float
    eps: float
    initial: float

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"mean_square": torch.full_like(parameter, self.initial)}

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
    ) -> None:
        rmsprop_(parameter, gradient, state["mean_square"], rate, self.decay, self.eps)


@dataclass(frozen=True, kw_only=True)
class Adam(UpdateRule):
    """The rule Adam; see `adam_`.

    Attributes:
        beta1: decay of the running mean of gradients.
        beta2: decay of the running mean of squared gradients.
        eps: small number that is added to the root.
        eps_after_correction: whether ``eps`` is added after the correction of the bias, as in
            `torch.optim.Adam`: ``parameter <- parameter - rate * mean / (sqrt(mean_square) + eps *
            sqrt(1 - beta2 ** step))``.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float
    eps_after_correction: bool = False

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        names = ["mean", "mean_square"]
        if self.eps_after_correction:
            names.append("weight")  # ``1 - beta2 ** step``, as a running mean of ones
        return {name: torch.zeros_like(parameter) for name in names}

    def rate(self, lr: float, step: int) -> float:
        return adam_rate(lr, self.beta1, self.beta2, step)

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
    ) -> None:
        mean, mean_square = state["mean"], state["mean_square"]
        eps: float | Tensor = self.eps
        if self.eps_after_correction:
            weight = state["weight"].mul_(self.beta2).add_(1 - self.beta2)
            is_on_gpu = isinstance(rate, Tensor) or weight.is_cuda  # where reading it would wait
            eps = weight.sqrt() * eps if is_on_gpu else math.sqrt(weight[0].item()) * eps
        adam_(parameter, gradient, mean, mean_square, rate, self.beta1, self.beta2, eps)


@dataclass(frozen=True, kw_only=True)
class RAdam(UpdateRule):
    """The rule rectified Adam; see `accel_rl.parallel.rules.radam_`.

    Attributes:
        beta1: decay of the running mean of gradients.
        beta2: decay of the running mean of squared gradients.
        eps: small number that is added to the root.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"mean": torch.zeros_like(parameter), "mean_square": torch.zeros_like(parameter)}

    def rate(self, lr: float, step: int) -> float:
        return radam_rate(lr, self.beta1, self.beta2, step)

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
    ) -> None:
        mean, mean_square = state["mean"], state["mean_square"]
        radam_(parameter, gradient, mean, mean_square, rate, self.beta1, self.beta2, self.eps)
