"""The agent of policy-gradient methods: actions are drawn from a softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from accel_rl.agents.masks import masked, split_mask
from accel_rl.capture import EAGER, Capture
from accel_rl.models import PolicyValue, PolicyValueModel, Sequences


class CategoricalAgent:
    """Draws actions from the softmax of ``model``'s logits; those that a mask forbids never.

    The mask is the leaf ``action_mask`` of observations that are a dict, see `split_mask`.

    ``capture``: of acting, and for its learner. ``is_greedy``: it takes the most probable action
    instead, the first of several.
    """

    def __init__(
        self, model: PolicyValueModel, capture: Capture = EAGER, *, is_greedy: bool = False
    ) -> None:
        self.model = model
        self.capture = capture
        self.is_greedy = is_greedy
        self._choose = capture(_most_probable if is_greedy else _choose)

    @torch.inference_mode()
    def act(self, observation: Tensor, uniform: Tensor, columns: slice) -> Tensor:
        """Actions ``[N]`` int64, with the parameters as they are now.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1), one for each action.
        Greedy, ``uniform`` changes nothing, and ``columns`` never does.
        """
        return self._choose(self.model, observation, uniform)

    def greedy(self) -> CategoricalAgent:
        """One of the same network that takes the most probable action."""
        return CategoricalAgent(self.model, self.capture, is_greedy=True)

    def follow(self, other: object) -> None:
        """Do nothing: all that acts are the parameters."""

    def evaluate(self, observation: Tensor, sequences: Sequences | None = None) -> PolicyValue:
        """Logits ``[N, A]`` and values ``[N]`` of ``observation`` ``[N, ...]``, with gradient.

        ``sequences``: in which order they came; it changes nothing here.
        """
        observation, mask = split_mask(observation)
        logits, value = self.model(observation)
        return PolicyValue(masked(logits, mask), value)


def _choose(model: PolicyValueModel, observation: Tensor, uniform: Tensor) -> Tensor:
    observation, mask = split_mask(observation)
    logits, _ = model(observation)
    return sample_categorical(masked(logits, mask), uniform, mask)


def _most_probable(model: PolicyValueModel, observation: Tensor, uniform: Tensor) -> Tensor:
    observation, mask = split_mask(observation)
    logits, _ = model(observation)
    return masked(logits, mask).argmax(1)


def sample_categorical(logits: Tensor, uniform: Tensor, mask: Tensor | None = None) -> Tensor:
    """Draw from softmax(``logits``) by inverse CDF.

    The action is the first whose cumulative probability exceeds ``uniform``, so that it depends on
    nothing but its own row.

    ``logits``: ``[N, A]``. ``uniform``: ``[N]`` in [0, 1). ``mask``: ``[N, A]``, the actions that
    are allowed, by which ``logits`` are `masked` already. Returns ``[N]`` int64. No gradient.
    """
    cumulative = logits.double().softmax(1).cumsum_(1)
    action = (cumulative <= uniform.unsqueeze(1)).sum(1)
    # Rounding may leave the last cumulative probability below 1, and the uniform above it.
    last = logits.shape[1] - 1
    if mask is None:
        return action.clamp_(max=last)
    return torch.minimum(action, last - mask.flip(1).ne(0).int().argmax(1))
