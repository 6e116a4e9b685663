"""All parameters of a model in one flat tensor, all gradients in another.

So an all-reduce is one call, a chunk of a parameter store is a slice, and an update rule is a few
passes over long vectors. Build it last, after device, dtype and memory format: ``module.to(...)``,
``load_state_dict(assign=True)`` and ``zero_grad(set_to_none=True)`` would put other tensors in the
views' place.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

ALIGNMENT = 16  # elements; 64 bytes of float32, one cache line


class FlatParameters:
    """All parameters of a network in one flat tensor, and all gradients in another.

    The network's own parameters and gradients become views of them. Each view keeps its shape and
    strides, and begins at a multiple of 16 elements. The gaps between views stay 0.

    Args:
        model: the network.

    Attributes:
        parameter: all parameters, ``[P]``.
        gradient: all gradients, ``[P]``.
        gradient_and_more: ``gradient`` with room for 16 more elements that learners send along,
            ``[P + 16]``.

    Raises:
        ValueError: the parameters differ in dtype or device, or one has gaps or overlaps in memory.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters = {plain_name(name): p for name, p in model.named_parameters()}
        kinds = {(p.dtype, p.device) for p in self._parameters.values()}
        if len(kinds) != 1:
            raise ValueError(
                f"the model's parameters are of {len(kinds)} kinds of dtype and device; flat "
                f"parameters need exactly one; convert the model with .to(device, dtype) first"
            )
        self._offsets: dict[str, int] = {}
        end = 0
        for name, p in self._parameters.items():
            if not torch.ops.aten.is_non_overlapping_and_dense(p):
                raise ValueError(f"parameter {name} has gaps or overlaps in memory; make it dense")
            self._offsets[name] = end
            end += -(-p.numel() // ALIGNMENT) * ALIGNMENT
        dtype, device = kinds.pop()
        self.parameter = torch.zeros(end, dtype=dtype, device=device)
        self.gradient_and_more = torch.zeros(end + ALIGNMENT, dtype=dtype, device=device)
        self.gradient = self.gradient_and_more[:end]
        gradients = self.views(self.gradient)
        for name, view in self.views(self.parameter).items():
            p = self._parameters[name]
            view.copy_(p.detach())
            p.data = view
            p.grad = gradients[name]

    @property
    def layout(self) -> dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Place of each parameter in the flat tensors: offset, shape and strides, in elements."""
        return {
            name: (self._offsets[name], tuple(p.shape), p.stride())
            for name, p in self._parameters.items()
        }

    def zero_gradient(self) -> None:
        self.gradient.zero_()

    def attach(self, flat: Tensor) -> None:
        """Make the network's parameters views of another tensor, which becomes ``parameter``.

        Do not call it between a forward pass and its backward pass.

        Args:
            flat: ``[P]``. It belongs to the caller.
        """
        self.parameter = flat
        for name, view in self.views(flat).items():
            self._parameters[name].data = view

    def layers(self) -> dict[str, slice]:
        """Return the slice of each module's own parameters, by the module's name, in order.

        The name of the model itself is ``model``.
        """
        layers: dict[str, slice] = {}
        ends = [*self._offsets.values(), len(self.parameter)][1:]
        for (name, start), end in zip(self._offsets.items(), ends, strict=True):
            layer = name.rpartition(".")[0] or "model"
            layers[layer] = slice(layers[layer].start if layer in layers else start, end)
        return layers

    def to_named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return contiguous copies on the CPU, by the network's names of parameters.

        Args:
            flat: ``parameter``, or a tensor with the same layout, such as an optimizer's state.
        """
        return {
            name: torch.empty(view.shape, dtype=view.dtype).copy_(view)
            for name, view in self.views(flat).items()
        }

    def from_named_(self, flat: Tensor, named: Mapping[str, Tensor]) -> None:
        """Fill a flat tensor from copies by name.

        Args:
            flat: ``[P]``.
            named: of `to_named`.

        Raises:
            ValueError: names or shapes are not those of the network.
        """
        views = self.views(flat)
        expected = {name: list(view.shape) for name, view in views.items()}
        found = {name: list(tensor.shape) for name, tensor in named.items()}
        if expected != found:
            differing = sorted(n for n in expected | found if expected.get(n) != found.get(n))
            raise ValueError(
                f"the saved parameters are not those of this model; they differ in "
                f"{', '.join(differing)}; use the model and environment they were saved with"
            )
        for name, view in views.items():
            view.copy_(named[name])

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of a flat tensor in the shapes of the parameters, by name.

        Args:
            flat: ``parameter``, or a tensor with the same layout.
        """
        flat = flat.detach()
        return {
            name: flat.as_strided(p.shape, p.stride(), flat.storage_offset() + self._offsets[name])
            for name, p in self._parameters.items()
        }


def plain_name(name: str) -> str:
    """Return the name of a parameter without what `torch.compile` of a module adds to it."""
    return name.replace("_orig_mod.", "")
