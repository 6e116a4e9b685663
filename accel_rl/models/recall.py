"""Learning from a forward pass that acting has made: its gradient without its computation.

Actor-critic methods without replay learn from observations that the same parameters have acted on.
So what each layer gave is known, and two thirds of an update remain: the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from accel_rl.models.image import PIXEL_SCALE, ImageNetwork, channels_last, product_gradients
from accel_rl.models.policy_value import PolicyValue


def recall(
    network: ImageNetwork, observation: Tensor, activations: Sequence[Tensor]
) -> PolicyValue:
    """``network(observation)``, with gradient, on the CPU; float32.

    ``activations``: of ``observation``, ``[N, C, H, W]`` uint8, with the present parameters; to be
    left as they are until the backward pass. What is computed is in their type, float32, or
    bfloat16 as under autocast.
    """
    parameters = *network.convs.parameters(), *network.hidden.parameters()
    features = _Recalled.apply(network, observation, activations, *parameters)  # type: ignore[no-untyped-call]
    return recall_heads(network, features)


def recall_heads(network: ImageNetwork, features: Tensor) -> PolicyValue:
    """What the heads give for ``features``, ``[N, width]``, in float32, computed in their type."""
    with torch.autocast("cpu", torch.bfloat16, enabled=features.dtype == torch.bfloat16):
        output = network.heads(features)
    return PolicyValue(output.logits.float(), output.value.float())


class _Recalled(torch.autograd.Function):
    """The features, which are known, as a function of the layers' parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        network: ImageNetwork,
        observation: Tensor,
        activations: Sequence[Tensor],
        *parameters: Tensor,
    ) -> Tensor:
        ctx.network = network
        ctx.save_for_backward(observation, *activations)
        return activations[-1].detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, *maps, features = ctx.saved_tensors
        dtype = features.dtype
        gradient = _before_relu(gradient, features)
        weight = ctx.network.hidden.weight.to(dtype)
        gradient, *gradients = product_gradients(gradient, maps[-1], weight)
        inputs = [channels_last(image).to(dtype), *maps[:-1]]
        for conv, x, y in reversed(list(zip(ctx.network.convs, inputs, maps, strict=True))):
            gradient, *own = _conv_gradients(_before_relu(gradient, y), x, conv, x is not inputs[0])
            gradients = [*own, *gradients]
        gradients[0] = gradients[0].float() * PIXEL_SCALE
        return None, None, None, *gradients  # as float32, into which autograd turns them


def _before_relu(gradient: Tensor, output: Tensor) -> Tensor:
    return cast(Tensor, torch.ops.aten.threshold_backward(gradient, output, 0))


def _conv_gradients(
    gradient: Tensor, x: Tensor, conv: nn.Conv2d, is_inner: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the input ``x``, if it ``is_inner``, the weights and the bias."""
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient,
        x,
        conv.weight.to(x.dtype),
        [conv.out_channels],
        *(conv.stride, conv.padding, (1, 1), False, (0, 0), 1),
        (is_inner, True, True),
    )
    return gradients
