"""Layers one after the other, at the price of their arithmetic."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Dense(nn.Sequential):
    """`nn.Sequential`, which computes small layers itself: calling a module takes as long as they.

    A layer with hooks of its own, or of another class, is called. Activations overwrite what they
    are of, unless it came from outside.
    """

    def forward(self, x: Tensor) -> Tensor:
        given = x
        for layer in self._modules.values():
            assert layer is not None
            kind = type(layer)
            if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
                given = x = layer(x)
            elif kind is nn.Linear:
                own = layer._parameters
                x = F.linear(x, own["weight"], own["bias"])  # type: ignore[arg-type]
            elif kind is nn.LayerNorm:
                own = layer._parameters
                more: Any = layer.normalized_shape, own["weight"], own["bias"], layer.eps
                x = F.layer_norm(x, *more)
            elif kind is nn.ReLU:
                x = x.relu() if x is given else x.relu_()
            elif kind is nn.Tanh:
                x = x.tanh() if x is given else x.tanh_()
            else:
                given = x = layer(x)
        return x
