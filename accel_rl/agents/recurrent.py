"""The agent of policy-gradient methods whose network remembers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.agents.distributions import CATEGORICAL, Distribution, Drawn
from accel_rl.agents.masks import split_mask
from accel_rl.agents.normalizer import Normalizer
from accel_rl.capture import EAGER, Capture
from accel_rl.models import PolicyValue, RecurrentModel, Sequences


class RecurrentAgent:
    """A `PolicyAgent` whose network has a memory.

    The agent itself keeps no recurrent state, since each environment has its own; see
    `RecurrentStates`. Its arguments and attributes are those of `PolicyAgent`.
    """

    normalizer: Normalizer | None = None
    tells_log_prob: bool = False

    def __init__(
        self,
        model: RecurrentModel,
        capture: Capture = EAGER,
        *,
        is_greedy: bool = False,
        distribution: Distribution = CATEGORICAL,
    ) -> None:
        self.model = model
        self.capture = capture
        self.distribution = distribution
        self._choose = capture(_most_probable if is_greedy else _choose)
        self._draw = capture(_draw)

    @torch.inference_mode()
    def act(
        self,
        observation: Any,
        uniform: Tensor,
        state: Tensor,
        columns: slice | None = None,
        previous: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """Choose an action for each of ``N`` environments.

        Args:
            observation: ``[N, ...]``.
            uniform: ``[N]`` random numbers in [0, 1).
            state: recurrent state ``[N, S]``, zeros where an episode begins.
            columns: not used.
            previous: previous actions and rewards ``[N, P]`` for a network with `PreviousInputs`,
                zeros where an episode begins.

        Returns:
            Actions ``[N, ...]``, and the recurrent state ``[N, S]`` after them.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        before = one_step(state, previous)
        return self._choose(self.model, self.distribution, observation, uniform, before)

    @torch.inference_mode()
    def act_with_log_prob(
        self,
        observation: Any,
        uniform: Tensor,
        state: Tensor,
        columns: slice | None = None,
        previous: Tensor | None = None,
    ) -> tuple[Drawn, Tensor]:
        """Draw actions like `act` of an agent that is not greedy.

        Returns:
            The actions with their log-probabilities, and the recurrent state ``[N, S]``.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        before = one_step(state, previous)
        *drawn, after = self._draw(self.model, self.distribution, observation, uniform, before)
        return Drawn(*drawn), after

    def greedy(self) -> RecurrentAgent:
        """Return an agent with the same network that always takes the most probable action."""
        agent = RecurrentAgent(
            self.model, self.capture, is_greedy=True, distribution=self.distribution
        )
        agent.normalizer = self.normalizer
        return agent

    def follow(self, other: object) -> None:
        """Take over the normalizer of another agent.

        Args:
            other: an agent of this class.
        """
        assert isinstance(other, RecurrentAgent)
        self.normalizer = other.normalizer

    def evaluate(self, observation: Any, sequences: Sequences | None = None) -> PolicyValue:
        """Run the network over sequences, with gradient.

        Args:
            observation: normalized observations of ``T`` steps of ``B`` environments,
                ``[T * B, ...]``.
            sequences: their recurrent states and episode starts; needed.

        Returns:
            Masked outputs ``[T * B, P]``, and values ``[T * B]``.
        """
        assert sequences is not None
        observation, mask = split_mask(observation)
        (outputs, value), _ = self.model(observation, sequences)
        return PolicyValue(self.distribution.mask(outputs, mask), value)


def _choose(
    model: RecurrentModel,
    distribution: Distribution,
    observation: Any,
    uniform: Tensor,
    before: Sequences,
) -> tuple[Any, Tensor]:
    observation, mask = split_mask(observation)
    output, after = model(observation, before)
    return distribution.draw(distribution.mask(output.logits, mask), uniform, mask), after


def _draw(
    model: RecurrentModel,
    distribution: Distribution,
    observation: Any,
    uniform: Tensor,
    before: Sequences,
) -> tuple[Any, Tensor, Tensor]:
    observation, mask = split_mask(observation)
    output, after = model(observation, before)
    outputs = distribution.mask(output.logits, mask)
    action = distribution.draw(outputs, uniform, mask)
    return action, distribution.log_prob(outputs, action), after


def _most_probable(
    model: RecurrentModel,
    distribution: Distribution,
    observation: Any,
    uniform: Tensor,
    before: Sequences,
) -> tuple[Any, Tensor]:
    observation, mask = split_mask(observation)
    output, after = model(observation, before)
    return distribution.mode(distribution.mask(output.logits, mask)), after


def joined_state(model: RecurrentModel, after: Tensor, action: Any) -> Tensor:
    """Return ``[N, S + P]``: the state ``after`` a step, and behind it what tells its action.

    The last number is for the action's reward, which is to come, and 0. Without `PreviousInputs`
    that is ``after`` itself, ``[N, S]``.
    """
    if model.previous is None:
        return after
    return torch.cat((after, model.previous(action, torch.zeros_like(after[:, 0]))), 1)


def split_state(model: RecurrentModel, state: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the two parts of a `joined_state`: the state, and the previous inputs or None."""
    size = model.state_size
    return state[:, :size], None if model.previous is None else state[:, size:]


def one_step(state: Tensor, previous: Tensor | None) -> Sequences:
    """Return what a network must know of one row of observations.

    Args:
        state: ``[N, S]``, before it.
        previous: ``[N, P]``, or None.
    """
    begins = torch.zeros(1, state.shape[0], dtype=torch.bool, device=state.device)
    return Sequences(state, begins, None if previous is None else previous.unsqueeze(0))
