"""Observations that are shifted and scaled by running moments before a network sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.spaces import OBSERVATION, map_leaves

LIMIT = 10.0
"""normalized numbers are clipped to this, on both sides"""


class Normalizer(NamedTuple):
    """Normalizes observations by fixed means and standard deviations.

    Attributes:
        mean: by name of the leaf, see `named_leaves`, float64 of its shape.
        scale: 1 / standard deviation, float32, with the same names and shapes.
    """

    mean: dict[str, Tensor]
    scale: dict[str, Tensor]

    def __call__(self, observation: Any) -> Any:
        """Return ``(observation - mean) * scale``, float32, within `LIMIT`; ``[..., *shape]``."""
        names = named_leaves(observation)

        def change(leaf: Tensor) -> Tensor:
            name, _ = next(names)
            return self._normalize(name, leaf) if name in self.mean else leaf

        return map_leaves(change, observation)

    def _normalize(self, name: str, observation: Tensor) -> Tensor:
        # In float32 observations far from 0 are equal that differ by many deviations.
        shifted: Tensor = observation.to(torch.float64) - self.mean[name]
        return (shifted.to(torch.float32) * self.scale[name]).clamp_(-LIMIT, LIMIT)


def named_leaves(observation: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an observation or of its space, with their names.

    The leaf ``b`` of a mapping ``a`` is ``a.b``. An observation of one leaf is ``observation``.
    """
    if not isinstance(observation, Mapping):
        yield prefix or OBSERVATION, observation
        return
    for name, each in observation.items():
        yield from named_leaves(each, f"{prefix}.{name}" if prefix else name)


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
