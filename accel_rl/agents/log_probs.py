"""The log-probability of every action of a rollout, under the policy that chose it."""

from __future__ import annotations

import torch
from torch import Tensor


class LogProbs:
    """Keeps them for ``num_envs`` environments, in rollouts of ``horizon`` steps.

    ``keeps_rollout``: the tensors that `finish` gives do not change until it is called again.
    """

    def __init__(
        self, horizon: int, num_envs: int, device: torch.device, *, keeps_rollout: bool = False
    ) -> None:
        self._rows = torch.zeros(horizon, num_envs, device=device)
        self._before = torch.zeros_like(self._rows) if keeps_rollout else self._rows

    def keep(self, log_prob: Tensor, t: int, columns: slice) -> None:
        """Keep ``log_prob``, ``[n]``, of step ``t`` of the environments ``columns``."""
        self._rows[t, columns] = log_prob

    def finish(self) -> Tensor:
        """Return the log-probabilities ``[T, B]`` float32 of the rollout that is complete."""
        self._rows, self._before = self._before, self._rows
        return self._before
