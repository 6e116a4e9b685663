"""Small layers in a row, without the time that calling a module takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Dense(nn.Sequential):
    """`nn.Sequential` that computes linear layers, activations and layer norms by itself.

    Calling a small layer takes as long as computing it. Layers of other classes are called, and so
    are those with hooks. An activation overwrites its input if a layer here made it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last layer for ``x``, ``[N, inputs]``."""
        given = x
        for layer in self._modules.values():
            assert layer is not None
            kind = type(layer)
            hooks = layer._forward_hooks or layer._forward_pre_hooks
            if hooks or layer._backward_hooks or layer._backward_pre_hooks:
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
