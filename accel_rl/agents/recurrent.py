"""The agent of policy-gradient methods whose network remembers."""

from __future__ import annotations

import torch
from torch import Tensor

from accel_rl.agents.categorical import sample_categorical
from accel_rl.capture import EAGER, Capture
from accel_rl.models import PolicyValue, RecurrentModel, Sequences


class RecurrentAgent:
    """Draws actions from the softmax of ``model``'s logits, given a recurrent state.

    It keeps none itself: that belongs to the environments; see `accel_rl.samplers.ActionServer`.
    ``capture`` and ``is_greedy``: as of `CategoricalAgent`.
    """

    def __init__(
        self, model: RecurrentModel, capture: Capture = EAGER, *, is_greedy: bool = False
    ) -> None:
        self.model = model
        self.capture = capture
        self._choose = capture(_most_probable if is_greedy else _choose)

    @torch.inference_mode()
    def act(self, observation: Tensor, uniform: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Actions ``[N]`` int64, and the state ``[N, S]`` after them.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1). ``state``: ``[N, S]``, zeros
        where an episode begins.
        """
        return self._choose(self.model, observation, uniform, state)

    def greedy(self) -> RecurrentAgent:
        """One of the same network that takes the most probable action."""
        return RecurrentAgent(self.model, self.capture, is_greedy=True)

    def follow(self, other: object) -> None:
        """Do nothing: all that acts are the parameters."""

    def evaluate(self, observation: Tensor, sequences: Sequences | None = None) -> PolicyValue:
        """Logits ``[T * B, A]`` and values of ``observation``, ``[T * B, ...]``, with gradient."""
        assert sequences is not None
        output, _ = self.model(observation, sequences)
        return output


def _choose(
    model: RecurrentModel, observation: Tensor, uniform: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    output, after = model(observation, _one_step(state))
    return sample_categorical(output.logits, uniform), after


def _most_probable(
    model: RecurrentModel, observation: Tensor, uniform: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    output, after = model(observation, _one_step(state))
    return output.logits.argmax(1), after


def _one_step(state: Tensor) -> Sequences:
    return Sequences(state, torch.zeros(1, len(state), dtype=torch.bool, device=state.device))
