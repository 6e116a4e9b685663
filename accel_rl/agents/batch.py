"""A rollout as a learner sees it: tensors on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents.normalizer import Normalizer
from accel_rl.models import Sequences
from accel_rl.spaces import map_leaves


class RolloutTensors(NamedTuple):
    """``T`` steps of ``B`` environments, aligned as in `accel_rl.rollout`.

    ``M`` is the number of episodes that were truncated without having terminated, most often 0;
    known to the host from the shape, so that nobody asks the device for it. Observations and
    actions of a mapping are dicts of tensors.
    """

    observation: Any  # [T + 1, B, ...]
    action: Any  # [T, B, ...]
    reward: Tensor  # [T, B] float32
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool, False where no step was taken
    final_observation: Any  # [M, ...]
    final_step: Tensor  # [M] int64, the step t of each
    final_env: Tensor  # [M] int64, its column b
    recurrent_state: Tensor | None = None  # [T + 1, B, S], see `Remembered`
    activations: Sequence[Tensor] | None = None  # [T * B, ...] each, of `Activations`
    normalizer: Normalizer | None = None  # of observations, as they were acted upon
    log_prob: Tensor | None = None  # [T, B] float32, of the actions, under the policy that acted
    previous: Tensor | None = None  # [T + 1, B, P], see `Remembered`

    def map(self, change: Callable[[Tensor], Tensor]) -> RolloutTensors:
        """``change`` of each tensor but the activations, which are left out."""
        tensors: list[Any] = [map_leaves(change, each) for each in self[:9]]
        given = {name: getattr(self, name) for name in ("recurrent_state", "log_prob", "previous")}
        more: dict[str, Any] = {
            name: change(each) for name, each in given.items() if each is not None
        }
        return RolloutTensors(*tensors)._replace(normalizer=self.normalizer, **more)

    def without_finals(self) -> RolloutTensors:
        """Likewise, with ``M`` = 0: of one shape in every rollout."""
        observation, step, env = (map_leaves(_none_of, each) for each in self[6:9])
        return self._replace(final_observation=observation, final_step=step, final_env=env)

    def sequences(self, rows: slice) -> Sequences | None:
        """What a recurrent network must know of ``rows``; None for one that is not."""
        if self.recurrent_state is None:
            return None
        # A step that is not valid was the reset of an environment, or comes before one.
        ended = self.terminated | self.truncated | ~self.valid
        # Of row 0 the state says it.
        begins = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))
        begins, previous = begins[rows], self.previous
        if previous is not None:
            previous = previous[rows].masked_fill(begins.unsqueeze(2), 0)
        return Sequences(self.recurrent_state[rows.start], begins, previous)


def _none_of(tensor: Tensor) -> Tensor:
    return tensor[:0]
