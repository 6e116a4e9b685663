"""The option ``init``: trained parameters that a new run starts from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from accel_rl.agents import Agent
from accel_rl.config import TrainConfig
from accel_rl.parallel.flat import plain_name
from accel_rl.runs.checkpoint import load_checkpoint, taking_from
from accel_rl.runs.saved import find_checkpoint


class Initial(NamedTuple):
    """Trained parameters that were given to a new network."""

    text: str = ""  # a line for people; empty if the run has no ``init``
    # running moments of observations and rewards, by the names in a learner's state
    moments: Mapping[str, Any] = {}

    def give_moments(self, learner: Any) -> None:
        """Let a learner that normalizes go on from the moments, if they are of its numbers."""
        own: Any = getattr(learner, "normalization", None)
        state = own.get_state() if own is not None else {}
        fitting = {
            name: each
            for name, each in self.moments.items()
            if name in state and _shapes(each) == _shapes(state[name])
        }
        if fitting:
            own.set_state({**state, **fitting})


def take_initial(config: TrainConfig, agent: Agent) -> Initial:
    """Copy the parameters that ``init`` names into the network of ``agent``, by name and shape.

    A resumed run has parameters of its own, and takes none.
    """
    if config.init is None or config.resume is not None:
        return Initial()
    given = Path(config.init)
    if not os.path.exists(given):  # which fails for no name
        raise ValueError(f"init={given} does not exist; name a run directory or a checkpoint")
    path = given if given.is_file() else find_checkpoint(given)
    saved = load_checkpoint(path)
    own = {plain_name(name): each for name, each in agent.model.named_parameters()}
    with taking_from(path), torch.no_grad():
        steps, found = int(saved["counts"]["steps"]), saved["learner"]["parameters"]
        fitting = {name for name in own if name in found and found[name].shape == own[name].shape}
        if not fitting:
            raise ValueError(
                f"init={given} has no parameter with the name and shape of one of this network; "
                f"give the model of that run, or leave init out"
            )
        for name in fitting:
            own[name].copy_(found[name])
        algorithm = saved.get("algorithm", {})
        moments = {
            name: algorithm[name]
            for name in ("observation_moments", "reward_moments")
            if name in algorithm
        }
    text = f"starts with the parameters of {path} after {steps:,} steps"
    if left := ", ".join(name for name in dict.fromkeys((*own, *found)) if name not in fitting):
        text += f", but for {left}, which do not fit"
    return Initial(text, moments)


def _shapes(moments: Any) -> Any:
    """Return the shapes of the tensors in a tree of dictionaries."""
    if not isinstance(moments, dict):
        return moments.shape
    return {name: _shapes(each) for name, each in moments.items()}
