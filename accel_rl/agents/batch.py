"""A rollout as a learner sees it: tensors on its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.agents.normalizer import Normalizer
from accel_rl.models import Sequences
from accel_rl.spaces import map_leaves


class HostFlags(NamedTuple):
    """Copies in main memory of small tensors of a rollout on a GPU, so that no code waits for the
    GPU.

    Attributes:
        terminated: ``[T, B]``.
        truncated: ``[T, B]``.
        valid: ``[T, B]``.
        final_step: ``[M]``.
        final_env: ``[M]``.
        follows: True if row 0 of every environment is known to be row T of the previous rollout.
    """

    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    final_step: NDArray[np.int64]
    final_env: NDArray[np.int64]
    follows: bool = False


class RolloutTensors(NamedTuple):
    """A rollout of ``T`` steps and ``B`` environments as tensors, aligned as in `Rollout`.

    Observations and actions of a mapping are dicts of tensors.

    Attributes:
        observation: ``[T + 1, B, ...]``.
        action: ``[T, B, ...]``.
        reward: ``[T, B]`` float32.
        terminated: ``[T, B]`` bool.
        truncated: ``[T, B]`` bool.
        valid: ``[T, B]`` bool, False where no step was taken.
        final_observation: ``[M, ...]``, of episodes that were truncated and not terminated. ``M``
            is most often 0.
        final_step: ``[M]`` int64, the step ``t`` of each final observation.
        final_env: ``[M]`` int64, its environment.
        recurrent_state: ``[T + 1, B, S]``, or None if the agent has no memory.
        normalizer: normalizer of observations at acting time, or None.
        log_prob: ``[T, B]`` float32, log-probabilities of the actions under the policy that acted,
            or None.
        value: ``[T, B]`` float32, values of the observations, from the network that acted, or None.
        previous: ``[T + 1, B, P]``, previous actions and rewards for a memory, or None.
        host: copies in main memory, on a GPU.
        stays: True if all rollouts to come are in the memory of this one, or take turns between it
            and that of another, so that a CUDA graph may read them where they are.
    """

    observation: Any
    action: Any
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_observation: Any
    final_step: Tensor
    final_env: Tensor
    recurrent_state: Tensor | None = None
    normalizer: Normalizer | None = None
    log_prob: Tensor | None = None
    value: Tensor | None = None
    previous: Tensor | None = None
    host: HostFlags | None = None
    stays: bool = False

    @property
    def flags(self) -> HostFlags:
        """The copies in main memory. If there are none, reading them waits for the device."""
        if self.host is not None:
            return self.host
        names = ("terminated", "truncated", "valid", "final_step", "final_env")
        return HostFlags(*(getattr(self, name).cpu().numpy() for name in names))

    def map(self, change: Callable[[Tensor], Tensor]) -> RolloutTensors:
        """Return a rollout with a function applied to each tensor.

        Args:
            change: the function.
        """
        kept: dict[str, Any] = {"normalizer": self.normalizer, "host": self.host, "stays": False}
        tensors = {name: each for name, each in self._asdict().items() if name not in kept}
        changed: dict[str, Any] = {
            name: None if each is None else map_leaves(change, each)
            for name, each in tensors.items()
        }
        return RolloutTensors(**changed, **kept)

    def without_finals(self) -> RolloutTensors:
        """Return the rollout with ``M`` = 0, which has the same shape every time."""
        observation, step, env = (map_leaves(lambda x: x[:0], each) for each in self[6:9])
        host = self.host
        if host is not None:
            host = host._replace(final_step=host.final_step[:0], final_env=host.final_env[:0])
        return self._replace(
            final_observation=observation, final_step=step, final_env=env, host=host
        )

    def sequences(self, rows: slice) -> Sequences | None:
        """Return the states and episode starts that a recurrent network needs; None for other
        networks.

        Args:
            rows: steps of the rollout.
        """
        if self.recurrent_state is None:
            return None
        # A step that is not valid was the reset of an environment, or comes before one.
        ended = self.terminated | self.truncated | ~self.valid
        # Of row 0 the state says it.
        is_first = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))
        is_first, previous = is_first[rows], self.previous
        if previous is not None:
            previous = previous[rows].masked_fill(is_first.unsqueeze(2), 0)
        return Sequences(self.recurrent_state[rows.start], is_first, previous)
