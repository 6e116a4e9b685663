"""Long short-term memory over sequences in which episodes begin anywhere."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn


class LSTM(nn.Module):
    """Long short-term memory with forget gates (Gers et al. 2000, without peepholes).

    Orthogonal initial weights and biases of 0, as in OpenAI baselines.

    Args:
        width: ``F``, numbers of its output.
        num_inputs: ``I``, numbers of its input; None: as many.

    Attributes:
        state_size: Numbers of the state, ``2 F``.
    """

    def __init__(self, width: int, num_inputs: int | None = None) -> None:
        super().__init__()
        self.state_size = 2 * width
        num_inputs = width if num_inputs is None else num_inputs
        # Gates: input, forget, output; then candidates.
        self.input = nn.Linear(num_inputs, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)
        for layer in (self.input, self.recurrent):
            nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(self.input.bias)

    def forward(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``[T * B, F]`` for ``x`` ``[T * B, I]``, and the state ``[B, 2 F]`` after them.

        ``state``: before them, outputs and cells side by side. ``is_first``: ``[T, B]`` bool, where
        it becomes zeros first. Whatever ``x`` is computed in, the recurrence is in the dtype of the
        weights, float32.
        """
        pushes = self.input(x).view(*is_first.shape, -1)  # of all rows in one product
        weight = self.recurrent.weight
        F, dtype = weight.shape[1], weight.dtype
        keeps = (~is_first).unsqueeze(2).to(dtype)
        is_autocast = pushes.dtype != dtype
        output, cell = state.to(dtype).chunk(2, 1)
        outputs = []
        with torch.autocast(x.device.type, enabled=False) if is_autocast else nullcontext():
            for push, keep in zip(pushes.to(dtype).unbind(), keeps.unbind(), strict=True):
                gates = torch.addmm(push, output * keep, weight.t())
                i, f, o = gates[:, : 3 * F].sigmoid().chunk(3, 1)
                cell = torch.addcmul(f * (cell * keep), i, gates[:, 3 * F :].tanh())
                output = o * cell.tanh()
                outputs.append(output)
        return torch.cat(outputs), torch.cat((output, cell), 1)
