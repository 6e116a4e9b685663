"""What is measured of updates: L2 norms, whole and by layer, and the cosine of gradients.

A layer is a module that owns parameters: its weights and biases together, under its name in the
model. Stooke and Abbeel 2018 (arXiv:1803.02811), figure 8, compare these between batch sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from accel_rl.parallel import FlatParameters

KINDS = ("parameter_norm", "gradient_norm", "step_norm", "distance_norm")
"""of the parameters after an update, the gradient before clipping, the change of the parameters in
the update, and their distance from the initial ones"""


class Norms:
    """The norms of an update; takes a copy of the parameters before it, and one of the initial.

    ``names``: of the values: whole ones, then by layer as ``step_norm/convs.0``. The norm of the
    whole gradient is the one after clipping; a `GradientSync` returns the one before.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self._flat = parameters
        self._initial = parameters.parameter.clone()
        self._before = torch.empty_like(self._initial)
        self._layers = parameters.layers()
        whole = ("clipped_gradient_norm" if kind == "gradient_norm" else kind for kind in KINDS)
        self.names = (*whole, *(f"{kind}/{layer}" for kind in KINDS for layer in self._layers))

    def get_state(self) -> dict[str, Any]:
        return {"initial_parameters": self._flat.to_named(self._initial)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._flat.from_named_(self._initial, state["initial_parameters"])

    def begin(self) -> None:
        """Remember the parameters, just before an update."""
        self._before.copy_(self._flat.parameter)

    @torch.no_grad()
    def end(self, gradient_norm: Tensor) -> dict[str, Tensor]:
        """Return the values of ``names``, 0-d each, just after an update.

        ``gradient_norm``: of the gradient that was used, before clipping, 0-d; the flat gradient is
        that gradient, clipped. Clipping is a factor, so the layers' norms before it follow.
        """
        parameter = self._flat.parameter
        step = torch.sub(parameter, self._before, out=self._before)
        norms = [self._by_layer(each) for each in (parameter, self._flat.gradient, step)]
        distance = torch.sub(parameter, self._initial, out=self._before)
        by_layer = torch.stack((*norms, self._by_layer(distance)))  # [4, layers]
        whole = torch.linalg.vector_norm(by_layer, dim=1)  # the squares add up
        by_layer[1] *= gradient_norm / whole[1].clamp(min=torch.finfo(whole.dtype).tiny)
        return dict(zip(self.names, torch.cat((whole, by_layer.flatten())), strict=True))

    def _by_layer(self, flat: Tensor) -> Tensor:
        return torch.stack([torch.linalg.vector_norm(flat[each]) for each in self._layers.values()])


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of two vectors, 0-d; 0 if one of them is 0."""
    norms: Tensor = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    return a.dot(b) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
