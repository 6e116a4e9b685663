"""Observations that are shifted and scaled by running moments before a network sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.spaces import OBSERVATION, map_leaves

LIMIT = 10.0
"""normalized numbers are clipped to this, on both sides"""


class Normalizer(NamedTuple):
    """Normalizes observations by fixed means and standard deviations.

    Attributes:
        mean: by name of the leaf, float64 of its shape. An observation that is one array is the
            leaf ``observation``.
        scale: 1 / standard deviation, float32, with the same names and shapes.
    """

    mean: dict[str, Tensor]
    scale: dict[str, Tensor]

    def __call__(self, observation: Any) -> Any:
        """Return ``(observation - mean) * scale``, float32, within `LIMIT`; ``[..., *shape]``."""
        if isinstance(observation, Tensor):
            return self._normalize(OBSERVATION, observation)
        return {
            name: self._normalize(name, each) if name in self.mean else each
            for name, each in observation.items()
        }

    def _normalize(self, name: str, observation: Tensor) -> Tensor:
        # In float32 observations far from 0 are equal that differ by many deviations.
        shifted: Tensor = observation.to(torch.float64) - self.mean[name]
        return (shifted.to(torch.float32) * self.scale[name]).clamp_(-LIMIT, LIMIT)


def normalizer_state(agent: object) -> dict[str, Any]:
    """Return what a checkpoint holds of an agent's normalizer.

    Args:
        agent: the agent.

    Returns:
        The entry ``normalizer``, or nothing if the agent has none.
    """
    found: Normalizer | None = getattr(agent, "normalizer", None)
    if found is None:
        return {}
    return {"normalizer": map_leaves(lambda each: each.cpu(), found._asdict())}


def set_normalizer(agent: Any, saved: Mapping[str, Any], device: torch.device) -> None:
    """Give an agent the normalizer of a checkpoint.

    Args:
        agent: the agent.
        saved: the checkpoint.
        device: device of the agent's network.
    """
    if "normalizer" in saved:
        agent.normalizer = Normalizer(**map_leaves(lambda x: x.to(device), saved["normalizer"]))
