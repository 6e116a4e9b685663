"""Long short-term memory over sequences in which episodes begin anywhere."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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

    def forward(self, x: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``[T * B, F]`` for ``x`` ``[T * B, I]``, and the state ``[B, 2 F]`` after them.

        ``state``: before them, outputs and cells side by side; a constant. ``begins``: ``[T, B]``
        bool, where it becomes zeros first. Whatever ``x`` is computed in, the recurrence is in the
        dtype of the weights, float32.
        """
        pushes = self.input(x).view(*begins.shape, -1)  # of all rows in one product
        dtype = self.recurrent.weight.dtype
        keeps = (~begins).unsqueeze(2).to(dtype)
        is_autocast = pushes.dtype != dtype
        go_through = _Recurrence.apply if torch.is_grad_enabled() else _go_through
        with torch.autocast(x.device.type, enabled=False) if is_autocast else nullcontext():
            outputs, cell = go_through(
                pushes.to(dtype), self.recurrent.weight, state.to(dtype), keeps
            )
        return outputs.flatten(0, 1), torch.cat((outputs[-1], cell), 1)


class _Step(NamedTuple):
    """What comes of one step, and what its gradient needs; ``[B, F]``, but ``opening``."""

    output: Tensor
    cell: Tensor
    opening: Tensor  # [B, 3 F], gates: input, forget, output
    candidate: Tensor
    squashed: Tensor  # tanh of the cell


def _take_step(push: Tensor, weight: Tensor, output_tm1: Tensor, cell_tm1: Tensor) -> _Step:
    F = output_tm1.shape[1]
    gates = torch.addmm(push, output_tm1, weight.t())
    opening, candidate = gates[:, : 3 * F].sigmoid(), gates[:, 3 * F :].tanh()
    i, f, o = opening.chunk(3, 1)
    cell = torch.addcmul(f * cell_tm1, i, candidate)
    squashed = cell.tanh()
    return _Step(o * squashed, cell, opening, candidate, squashed)


def _go_through(
    pushes: Tensor, weight: Tensor, state: Tensor, keeps: Tensor
) -> tuple[Tensor, Tensor]:
    """As `_Recurrence`, without gradient."""
    output, cell = state.chunk(2, 1)
    outputs = []
    for push, keep in zip(pushes.unbind(), keeps.unbind(), strict=True):
        output, cell, *_ = _take_step(push, weight, output * keep, cell * keep)
        outputs.append(output)
    return torch.stack(outputs), cell


class _Recurrence(torch.autograd.Function):
    """The steps of an LSTM: ``gates[t] = pushes[t] + weight @ (keeps[t] * outputs[t - 1])``.

    With a backward pass of its own, since autograd would compute a gradient of ``weight`` for each
    step and add them all up; here that is one product.
    """

    @staticmethod
    def forward(
        ctx: Any, pushes: Tensor, weight: Tensor, state: Tensor, keeps: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[T, B, F]`` and the last cells ``[B, F]``.

        ``pushes``: ``[T, B, 4 F]``. ``weight``: ``[4 F, F]``. ``keeps``: ``[T, B, 1]``, 0 or 1.
        """
        output, cell = state.chunk(2, 1)
        steps = []
        for push, keep in zip(pushes.unbind(), keeps.unbind(), strict=True):
            output_tm1, cell_tm1 = output * keep, cell * keep
            output, cell, *kept = _take_step(push, weight, output_tm1, cell_tm1)
            steps.append((output, output_tm1, cell_tm1, *kept))
        outputs, *saved = (torch.stack(each) for each in zip(*steps, strict=True))
        ctx.save_for_backward(weight, keeps, *saved)
        ctx.mark_non_differentiable(cell)
        return outputs, cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight, keeps, outputs_tm1, cells_tm1, opening, candidate, squashed = ctx.saved_tensors
        i, f, o = opening.chunk(3, 2)
        # What the gradient of the cell (of the output, for o) is multiplied with, at each gate.
        slopes = torch.stack(
            (
                candidate * i * (1 - i),
                cells_tm1 * f * (1 - f),
                squashed * o * (1 - o),
                i * (1 - candidate.square()),
            ),
            2,
        )  # [T, B, 4, F]
        into_cell, back = o * (1 - squashed.square()), f * keeps
        on_output, on_cell = torch.zeros_like(gradient[0]), torch.zeros_like(gradient[0])
        on_gates = []
        for t in reversed(range(len(gradient))):
            on_output = gradient[t] + on_output
            on_cell = torch.addcmul(on_cell, on_output, into_cell[t])
            of_step = torch.stack((on_cell, on_cell, on_output, on_cell), 1).mul_(slopes[t])
            on_gates.append(of_step.flatten(1))
            on_output = (on_gates[-1] @ weight) * keeps[t]
            on_cell = on_cell * back[t]
        pushes = torch.stack(on_gates[::-1])  # [T, B, 4 F]
        return pushes, pushes.flatten(0, 1).t() @ outputs_tm1.flatten(0, 1), None, None
