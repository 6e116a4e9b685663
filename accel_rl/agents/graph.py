"""A policy as one computation of tensors, with the normalisation of observations and the bounds of
actions, for exporters that trace it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from accel_rl.agents.agent import Agent
from accel_rl.agents.bounded import BoundedAgent
from accel_rl.agents.distributions import (
    Categorical,
    Distribution,
    Factored,
    Gaussian,
    masked,
    split_mask,
)
from accel_rl.agents.policy import PolicyAgent
from accel_rl.agents.q import QAgent
from accel_rl.models.memory import joined_size, joined_state, one_step, split_state
from accel_rl.models.soft import SoftModel, flat
from accel_rl.spaces import Leaf, Space, follow, leaves_of, map_leaves


class Port(NamedTuple):
    """An input or output of the graph; ``shape`` is that of one of the ``N`` rows."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    meaning: str

    def describe(self) -> dict[str, Any]:
        """Return the entry of ``export.json``."""
        return {**self._asdict(), "shape": ["N", *self.shape]}


class PolicyGraph(nn.Module):
    """The computation that is exported: a list of tensors in, a tuple of tensors out.

    Attributes:
        inputs: What each tensor given is.
        outputs: What each tensor returned is.
        greedy: How the output action comes from the others, in words.
        evaluations: How evaluations choose actions, in words.
        remembers: Whether there is a state.
    """

    def __init__(self, agent: Agent, observation: Space, action: Space) -> None:
        super().__init__()
        if not isinstance(agent, PolicyAgent | BoundedAgent | QAgent):
            raise ValueError(
                f"the run acts by an agent of its own class, {type(agent).__name__}, which cannot "
                "be exported; export its network with torch.onnx.export yourself"
            )
        self._agent: Any = agent
        self.model: Any = agent.model  # so that its parameters are the graph's
        self._observation, self._action = observation, action
        self._bounds = [
            [None if b is None or leaf.dtype.kind != "f" else torch.tensor(b) for b in leaf.bounds]
            for _, leaf in leaves_of(action)
        ]
        self.remembers = agent.remembers
        self.inputs = _ports("observation", observation, "as the environment gives it")
        if self.remembers:
            size, first = joined_size(self.model), self.model.state_size
            behind = "" if size == first else f"; from {first} on the last action"
            state = f"next_state of the call before, zeros in the first one{behind}"
            self.inputs.append(Port("state", (size,), "float32", state))
            is_first = "whether the observation is the first of its episode"
            self.inputs.append(Port("is_first", (), "bool", is_first))
            if self.model.previous is not None:
                meaning = "of the step before, as the environment gives it"
                self.inputs.append(Port("reward", (), "float32", meaning))
        policy, self.greedy, self.evaluations = _explain(agent, action)
        meaning = "greedy, within the bounds of the environment; one integer counts from 0"
        self.outputs = [*policy, *_ports("action", action, meaning)]
        if self.remembers:
            self.outputs.append(Port("next_state", (size,), "float32", "for the next call"))

    def examples(self, observation: Any) -> list[Tensor]:
        """Return inputs for two observations of the environment, ``[2, ...]``."""
        leaves = leaves_of(self._observation)
        given = [follow(observation, path).contiguous() for path, _ in leaves]
        for port in self.inputs[len(given) :]:
            zeros = torch.zeros(2, *port.shape, dtype=getattr(torch, port.dtype))
            given.append(zeros + 0.25 if zeros.is_floating_point() else zeros)
        return given

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs, ``[N, ...]`` each."""
        given = iter(inputs)
        observation = map_leaves(lambda _: next(given), self._observation)
        if self._agent.normalizer is not None:
            observation = self._agent.normalizer(observation)
        observation, mask = split_mask(observation)
        if not self.remembers:
            *outputs, action = self._choose(self._output(observation), mask)
            return (*outputs, *self._bounded(action))
        state, is_first = next(given), next(given)
        if self.model.previous is not None:
            state = torch.cat((state[:, :-1], next(given).unsqueeze(1)), 1)
        own, previous = split_state(self.model, state.masked_fill(is_first.unsqueeze(1), 0))
        output, after = self.model(observation, one_step(own, previous))
        *outputs, action = self._choose(output, mask)
        return (*outputs, *self._bounded(action), joined_state(self.model, after, action))

    def _output(self, observation: Any) -> Any:
        if isinstance(self._agent, BoundedAgent):
            rows = flat(observation)
            return self.model.gaussian(rows) if isinstance(self.model, SoftModel) else rows
        return self.model(observation)

    def _choose(self, output: Any, mask: Any) -> tuple[Any, ...]:
        """Return what is to be told of the network's ``output``, and the greedy action."""
        agent = self._agent
        if isinstance(self.model, SoftModel):
            mean, log_std = output
            return mean, log_std, agent.scaled(mean.tanh())
        if isinstance(agent, BoundedAgent):
            return (agent.scaled(agent.decide(self.model, output)),)
        if isinstance(agent, QAgent):
            q_values = masked(agent.q_values(output), mask)
            return q_values, q_values.argmax(1)
        outputs, value = output
        distribution = agent.distribution
        outputs = distribution.mask(outputs, mask)
        deviations = [each.expand(len(outputs), -1) for each in distribution.parameters()]
        told = torch.cat((outputs, *deviations), 1) if deviations else outputs
        return told, value, distribution.mode(outputs)

    def _bounded(self, action: Any) -> list[Tensor]:
        """The leaves of ``action``, floats within their bounds."""
        leaves = []
        paths = (path for path, _ in leaves_of(self._action))
        for path, (low, high) in zip(paths, self._bounds, strict=True):
            values = follow(action, path)
            values = values if low is None else torch.maximum(values, low)
            leaves.append(values if high is None else torch.minimum(values, high))
        return leaves


def _ports(name: str, space: Space, meaning: str) -> list[Port]:
    if isinstance(space, Leaf):
        return [Port(name, space.shape, space.dtype.name, meaning)]
    return [
        Port(".".join((name, *path)), leaf.shape, leaf.dtype.name, meaning)
        for path, leaf in leaves_of(space)
    ]


def _explain(agent: Any, action: Space) -> tuple[list[Port], str, str]:
    """Return the outputs beside the action, and how greedy and evaluated actions are chosen."""
    if isinstance(agent, BoundedAgent) and not isinstance(agent.model, SoftModel):
        how = "the greedy action, if the algorithm's evaluating() returns the greedy agent"
        return [], "the best action, scaled from -1 .. 1 to the bounds", how
    if isinstance(agent, BoundedAgent):
        D = agent.num_actions
        ports = [
            Port("mean", (D,), "float32", "of the Gaussian, before the tanh"),
            Port("log_std", (D,), "float32", "logarithms of its deviations"),
        ]
        return ports, "tanh(mean), scaled from -1 .. 1 to the bounds", "the greedy action"
    if isinstance(agent, QAgent):
        assert isinstance(action, Leaf) and action.counts is not None
        meaning = "value of each action, the lowest float where the mask forbids it"
        ports = [Port("q_values", (action.counts[0],), "float32", meaning)]
        return ports, "argmax of q_values", "any allowed action now and then (epsilon_evaluation)"
    distribution: Distribution = agent.distribution
    size = distribution.num_outputs + sum(each.numel() for each in distribution.parameters())
    value = Port("value", (), "float32", "of the observation, as the learner's returns count")
    if isinstance(distribution, Categorical | Factored):
        meaning = "of a softmax for each integer of the action, one after the other"
        ports = [Port("logits", (size,), "float32", meaning), value]
        return ports, "argmax of the logits of each integer", "drawn from softmax(logits)"
    meaning = (
        "all means, then the logarithms of all deviations, in units of half the width of bounds"
    )
    if not isinstance(distribution, Gaussian):
        meaning = "logits of integers and means of floats, by leaf; then logarithms of deviations"
    ports = [Port("distribution", (size,), "float32", meaning), value]
    greedy = "argmax of logits, means of floats, within the bounds"
    return ports, greedy, "drawn from the distribution, floats clipped to the bounds"
