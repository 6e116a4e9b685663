"""Input and output of a network for policy-gradient methods."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor, nn


class PolicyValue(NamedTuple):
    """The output of a policy network for ``N`` observations.

    Attributes:
        logits: ``[N, A]``, logits of ``A`` actions, or the numbers of another distribution.
        value: ``[N]``, state values.
    """

    logits: Tensor  # [N, A]
    value: Tensor  # [N]


class PolicyValueModel(nn.Module):
    """A network that maps observations ``[N, ...]`` to a `PolicyValue`."""

    def forward(self, observation: Tensor) -> PolicyValue:
        """Compute logits and values.

        Args:
            observation: ``[N, ...]``, in the environment's dtype.
        """
        raise NotImplementedError

    def __call__(self, observation: Tensor) -> PolicyValue:
        """Call `forward`, with types."""
        output: PolicyValue = super().__call__(observation)
        return output


class SharedNetwork(PolicyValueModel):
    """One whose heads, ``policy`` and ``value``, share what comes before: ``width`` features."""

    width: int
    policy: nn.Linear
    value: nn.Linear

    @abstractmethod
    def features(self, observation: Tensor) -> Tensor:
        """``[N, width]`` of ``observation``, ``[N, ...]``."""

    def heads(self, x: Tensor) -> PolicyValue:
        return PolicyValue(self.policy(x), self.value(x).squeeze(1))

    def forward(self, observation: Tensor) -> PolicyValue:
        return self.heads(self.features(observation))
