"""Layers one after the other, at the price of their arithmetic."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Dense(nn.Sequential):
    """`nn.Sequential`, which computes small layers itself: calling a module takes as long as they.

    A layer with hooks of its own, or of another class, is called.
    """

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            assert layer is not None
            kind = type(layer)
            if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
                x = layer(x)
            elif kind is nn.Linear:
                own = layer._parameters
                x = F.linear(x, own["weight"], own["bias"])  # type: ignore[arg-type]
            elif kind is nn.LayerNorm:
                own = layer._parameters
                x = F.layer_norm(x, layer.normalized_shape, own["weight"], own["bias"], layer.eps)
            elif kind is nn.ReLU:
                x = x.relu()
            elif kind is nn.Tanh:
                x = x.tanh()
            else:
                x = layer(x)
        return x
