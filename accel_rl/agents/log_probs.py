"""The log-probability of every action of a rollout, under the policy that chose it."""

from __future__ import annotations

import torch
from torch import Tensor


class LogProbs:
    """Keeps the log-probability of each action of a rollout.

    Args:
        horizon: steps of a rollout.
        num_envs: number of environments.
        device: device of the tensors.
        keeps_rollout: True: the tensor that `finish` returns stays valid until the next `finish`.
            False: until the next `keep`.
    """

    def __init__(
        self, horizon: int, num_envs: int, device: torch.device, *, keeps_rollout: bool = False
    ) -> None:
        self._rows = torch.zeros(horizon, num_envs, device=device)
        self._before = torch.zeros_like(self._rows) if keeps_rollout else self._rows

    def keep(self, log_prob: Tensor, t: int, columns: slice) -> None:
        """Keep the log-probabilities of one step.

        Args:
            log_prob: ``[n]``.
            t: the step.
            columns: the environments, as columns of the rollout.
        """
        self._rows[t, columns] = log_prob

    def finish(self) -> Tensor:
        """Return the log-probabilities ``[T, B]`` float32 of a complete rollout."""
        self._rows, self._before = self._before, self._rows
        return self._before
