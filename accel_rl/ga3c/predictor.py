"""The policy of GA3C's predictors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.agents import PolicyAgent, sample_categorical
from accel_rl.ga3c.padding import Places, Put, to_device
from accel_rl.ga3c.sampler import Prediction
from accel_rl.ga3c.versions import VersionSync
from accel_rl.graphs import Fixed, Graphs
from accel_rl.models.memory import joined_state, one_step, run, split_state


class Predictor:
    """A `QueuedPolicy` that acts with the latest parameters.

    Args:
        agent: The agent of this thread alone.
        sync: Has its parameters; with ``graphs`` in memory of their own.
        device: Where it acts.
        tells_probability: Whether trainers need the probabilities of actions.
        graphs: Records acting, unless the agent remembers. None: it runs as it is.
        most: Maximum number of environments for which it acts at once, with ``graphs``.
    """

    def __init__(
        self,
        agent: PolicyAgent,
        sync: VersionSync,
        device: torch.device,
        tells_probability: bool,
        graphs: Graphs | None = None,
        most: int = 0,
    ) -> None:
        self._sync = sync
        self._put: Put = partial(to_device, device)
        self._act: Any = partial(act, agent, tells_probability)
        self._graphs = None if agent.remembers else graphs
        if self._graphs is not None:
            self._put = Places(2 * most, device).put  # each may have a last observation
            self._act = self._graphs.recorded(self._act, kind="actions")

    @torch.no_grad()
    def __call__(
        self,
        observation: NDArray[Any],
        noise: NDArray[np.float64],
        state: NDArray[np.float32] | None = None,
    ) -> Prediction:
        """Act for ``n`` environments; see `QueuedPolicy`."""
        self._sync.pull()
        arrays = {"observation": observation, "noise": noise}
        if state is not None:
            arrays["state"] = state
        inputs: list[Any] = list(self._put(arrays).values())
        if self._graphs is not None:
            inputs = [Fixed(each) for each in inputs]
        action, value, probability, after = self._act(*inputs)
        n = len(noise)
        value = value[: len(observation)].cpu().numpy()  # waits for the device
        told = None if probability is None else probability[:n].cpu().numpy()
        remembered = None if after is None else after.cpu().numpy()
        acted = action[:n].cpu().numpy()
        return Prediction(acted, value, self._sync.version, told, remembered)


def act(
    agent: PolicyAgent,
    tells_probability: bool,
    observation: Tensor,
    noise: Tensor,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return actions ``[n]``, values ``[n + m]``, probabilities ``[n]``, and states after actions.

    ``observation`` is ``[n + m, ...]``, ``noise`` ``[n]`` in [0, 1), and ``state`` ``[n + m, S]``
    for an agent with a memory.
    """
    n = len(noise)
    memory = None if state is None else one_step(*split_state(agent.model, state))
    (logits, value), after = run(agent.model, observation, memory)
    logits = logits[:n]
    action = sample_categorical(logits, noise)
    probability = None
    if tells_probability:
        probability = logits.softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)
    if after is not None:
        after = joined_state(agent.model, after[:n], action)
    return action, value, probability, after
