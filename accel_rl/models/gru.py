"""Gated recurrent units over sequences in which episodes begin anywhere."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn


class GRU(nn.Module):
    """Gated recurrent units (Cho et al. 2014, arXiv:1406.1078), as in `torch.nn.GRU`.

    ``h[t] = (1 - z) * n + z * h[t - 1]``, where ``n = tanh(W_n x[t] + b_n + r * (U_n h[t - 1]))``,
    and ``r`` and ``z`` are sigmoids of ``W x[t] + b + U h[t - 1]``. Initial weights as in `LSTM`.

    Args:
        width: ``F``, numbers of its output.
        num_inputs: ``I``, numbers of its input; None: as many.

    Attributes:
        state_size: Numbers of the state, ``F``.
    """

    def __init__(self, width: int, num_inputs: int | None = None) -> None:
        super().__init__()
        self.state_size = width
        num_inputs = width if num_inputs is None else num_inputs
        self.input = nn.Linear(num_inputs, 3 * width)  # gates: reset, update; then candidates
        self.recurrent = nn.Linear(width, 3 * width, bias=False)
        for layer in (self.input, self.recurrent):
            nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(self.input.bias)

    def forward(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``[T * B, F]`` for ``x`` ``[T * B, I]``, and the state ``[B, F]`` after them.

        As `LSTM.forward`; the state is the last output.
        """
        pushes = self.input(x).view(*is_first.shape, -1)  # of all rows in one product
        weight = self.recurrent.weight
        F, dtype = weight.shape[1], weight.dtype
        keeps = (~is_first).unsqueeze(2).to(dtype)
        is_autocast = pushes.dtype != dtype
        h, outputs = state.to(dtype), []
        with torch.autocast(x.device.type, enabled=False) if is_autocast else nullcontext():
            for push, keep in zip(pushes.to(dtype).unbind(), keeps.unbind(), strict=True):
                h = h * keep
                pull = h @ weight.t()
                gates = (push[:, : 2 * F] + pull[:, : 2 * F]).sigmoid()
                reset, update = gates.chunk(2, 1)
                candidate = torch.addcmul(push[:, 2 * F :], reset, pull[:, 2 * F :]).tanh()
                h = candidate.lerp(h, update)
                outputs.append(h)
        return torch.cat(outputs), h
