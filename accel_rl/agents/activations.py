"""What the layers of a network gave when it acted, at every step of a rollout."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from accel_rl.agents.distributions import sample_categorical
from accel_rl.agents.masks import masked, split_mask
from accel_rl.models.image import ImageNetwork


class Activations:
    """Chooses actions, and keeps the outputs of some layers for the learner.

    The learner then need not compute them again, as long as the parameters have not changed.

    Args:
        model: the network.
        horizon: steps of a rollout.
        num_envs: number of environments.
        num_layers: number of layers to keep, the last ones before the heads, from 1 to
            ``model.num_layers``.
        dtype: float32 or bfloat16. bfloat16 uses a copy of the parameters, which is made at the
            first action of each rollout.
    """

    def __init__(
        self,
        model: ImageNetwork,
        horizon: int,
        num_envs: int,
        num_layers: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._model = model
        self._acting = model
        self._is_short = dtype == torch.bfloat16
        if self._is_short:
            self._acting = copy.deepcopy(model).to(dtype)
            self._acting.convs[0].float()  # rounded when it is scaled, as by autocast
        self._num_envs = num_envs
        self._num_rows = horizon * num_envs
        self._num_layers = num_layers
        self._kept: list[Tensor] = []

    @torch.inference_mode()
    def act(self, observation: Tensor, uniform: Tensor, t: int, columns: slice) -> Tensor:
        """Choose actions at one step, like `PolicyAgent.act`.

        Args:
            observation: ``[N, ...]``.
            uniform: ``[N]`` random numbers in [0, 1).
            t: the step.
            columns: the environments, as columns of the rollout.

        Returns:
            Actions ``[N]`` int64.
        """
        if self._is_short and t == 0 and columns.start == 0:
            pairs = zip(self._acting.parameters(), self._model.parameters(), strict=True)
            for copied, own in pairs:
                copied.copy_(own)
        observation, mask = split_mask(observation)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._is_short):
            activations = self._acting.activations(observation)[-self._num_layers :]
        if not self._kept:
            with torch.inference_mode(False):  # autograd is to save them
                self._kept = [self._make_rows(each) for each in activations]
        start = t * self._num_envs + columns.start
        for kept, new in zip(self._kept, activations, strict=True):
            kept[start : start + len(new)] = new
        logits = self._acting.policy(activations[-1])
        return sample_categorical(masked(logits, mask), uniform, mask)

    def finish(self) -> list[Tensor] | None:
        """Return the outputs of each kept layer, ``[T * B, ...]``, time-major.

        The next rollout overwrites them. None: no action has been chosen yet.
        """
        return self._kept or None

    def _make_rows(self, like: Tensor) -> Tensor:
        """In the memory format of ``like``; zeros, since none may be missing."""
        return torch.zeros_like(like[:1].expand(self._num_rows, *like.shape[1:]))
