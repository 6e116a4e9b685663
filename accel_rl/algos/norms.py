"""L2 norms of parameters, gradients and steps, whole and by layer.

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
    whole gradient before clipping is the `GradientSync`'s to tell; that after it is here.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self._flat = parameters
        self._initial = parameters.parameter.clone()
        self._before = torch.empty_like(self._initial)
        self._layers = parameters.layers()
        whole = ("clipped_gradient_norm" if kind == "gradient_norm" else kind for kind in KINDS)
        self.names = (*whole, *(f"{kind}/{layer}" for kind in KINDS for layer in self._layers))

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds: the initial parameters."""
        return {"initial_parameters": self._flat.to_named(self._initial)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._flat.from_named_(self._initial, state["initial_parameters"])

    def begin(self) -> None:
        """To be called just before an update."""
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
