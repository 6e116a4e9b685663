"""Learning on a CPU from the forward passes that acting has made.

A2C learns from observations that the same parameters have acted on. So what each layer gave is
known, and two thirds of an update remain: the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_rl.models.image import ImageNetwork, flattened
from accel_rl.models.policy_value import PolicyValue


class ForwardCache:
    """Runs the network of an agent, and keeps the outputs of its layers when it acts.

    The observations of an update are known by their memory, which was acted on, and are compared.
    If one is not known, or the parameters have changed since, the network runs as always.
    """

    def __init__(self, network: ImageNetwork, parameter: Tensor) -> None:
        self._network, self._parameter = network, parameter
        # Observations, and the outputs of layers, by address.
        self._kept: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self._version = -1  # of the parameters that gave them

    def __call__(self, observation: Tensor) -> PolicyValue:
        """Return the network's output."""
        network = self._network
        if torch.is_inference_mode_enabled():
            return network.heads(self._act(observation)[-1])
        known = self._take(observation) if torch.is_grad_enabled() else None
        if known is None:
            return network(observation)
        convs: list[Any] = list(network.convs)
        x = convs[0].pixels(observation)
        for layer, output in zip(convs, known, strict=False):
            weight = layer.weight * layer.scale if layer is convs[0] else layer.weight
            given = x, weight, layer.bias, output, layer.stride, layer.padding
            x = _KnownConv.apply(*given)  # type: ignore[no-untyped-call]
        hidden = network.hidden
        features = _KnownLinear.apply(flattened(x), hidden.weight, hidden.bias, known[-1])  # type: ignore[no-untyped-call]
        return network.heads(features)

    def __deepcopy__(self, memo: Any) -> None:
        """Return None: an agent that is copied has other parameters, and acts by its network."""

    def _act(self, observation: Tensor) -> list[Tensor]:
        if self._version != self._parameter._version:
            self._kept, self._version = {}, self._parameter._version
        outputs, x = [], observation
        for conv in self._network.convs:
            x = F.relu_(conv(x))
            outputs.append(x)
        outputs.append(F.relu_(self._network.hidden(flattened(x))))
        if observation.is_contiguous():
            self._kept[observation.data_ptr()] = observation.clone(), outputs
        return outputs

    def _take(self, observation: Tensor) -> list[Tensor] | None:
        """Return the outputs of each layer for ``observation``, or None if some are not known."""
        kept, self._kept = self._kept, {}
        if self._version != self._parameter._version or not observation.is_contiguous():
            return None
        found, row = [], 0
        while row < len(observation):
            seen, outputs = kept.get(observation[row].data_ptr(), (observation, []))
            rows = observation[row : row + len(seen)]
            if not outputs or not torch.equal(seen, rows):  # other memory, or overwritten
                return None
            found.append(outputs)
            row += len(seen)
        return [torch.cat(each) for each in zip(*found, strict=True)]


class _KnownConv(torch.autograd.Function):
    """A convolution and ReLU whose ``output`` is known."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, output: Tensor, stride: Any, padding: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight, output)
        ctx.settings = [len(weight)], stride, padding, (1, 1), False, (0, 0), 1
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, output = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradient, output, 0)
        needed = (ctx.needs_input_grad[0], True, True)
        found = torch.ops.aten.convolution_backward(gradient, x, weight, *ctx.settings, needed)
        return *found, None, None, None


class _KnownLinear(torch.autograd.Function):
    """A fully connected layer and ReLU whose ``output`` is known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, output: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, output)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, output = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradient, output, 0)
        return gradient @ weight, gradient.t() @ x, gradient.sum(0), None
