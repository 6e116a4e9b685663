"""What the layers of a network gave when it acted, at every step of a rollout."""

from __future__ import annotations

import torch
from torch import Tensor

from accel_rl.agents.categorical import CategoricalAgent, sample_categorical
from accel_rl.models.image import ImageNetwork


class Activations:
    """Acts with ``agent``, which has an `ImageNetwork`, and keeps what some of its layers give.

    ``observation``: ``[T, B, C, H, W]`` uint8, where those of a rollout are found. ``num_layers``:
    how many of the last ones before the heads.
    """

    def __init__(self, agent: CategoricalAgent, observation: Tensor, num_layers: int) -> None:
        assert isinstance(agent.model, ImageNetwork)
        self._model = agent.model
        self._num_envs = observation.shape[1]
        with torch.no_grad():
            kept = self._model.activations(observation[0, :1])[-num_layers:]
        size = len(observation) * self._num_envs
        # Each keeps its memory format. Zeros, since no number may be missing for lost environments.
        self._kept = [torch.zeros_like(each.expand(size, *each.shape[1:])) for each in kept]

    @torch.inference_mode()
    def act(self, observation: Tensor, uniform: Tensor, t: int, columns: slice) -> Tensor:
        """As `CategoricalAgent.act`, at step ``t``."""
        activations = self._model.activations(observation)
        start = t * self._num_envs + columns.start
        for kept, new in zip(self._kept, activations[-len(self._kept) :], strict=True):
            kept[start : start + len(new)] = new
        return sample_categorical(self._model.heads(activations[-1]).logits, uniform)

    def finish(self) -> list[Tensor]:
        """Of each layer, ``[T * B, ...]``, time-major; the next rollout writes over them."""
        return self._kept
