"""What a network for policy-gradient methods takes and gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class PolicyValue(NamedTuple):
    """Action logits and state values of ``N`` observations."""

    logits: Tensor  # [N, A]
    value: Tensor  # [N]


class PolicyValueModel(nn.Module):
    """A network whose call takes observations ``[N, ...]`` and gives their `PolicyValue`."""

    def forward(self, observation: Tensor) -> PolicyValue:
        """``observation``: ``[N, ...]``, of the environment's own dtype."""
        raise NotImplementedError

    def __call__(self, observation: Tensor) -> PolicyValue:
        """As `forward`; `nn.Module` leaves it untyped."""
        output: PolicyValue = super().__call__(observation)
        return output
