"""Batches of changing sizes, filled up to a few sizes, for each of which a CUDA graph is recorded.

GA3C's threads take what there is: other numbers of samples each time. A graph has one shape and
reads the same memory each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.agents import PolicyAgent, sample_categorical
from accel_rl.ga3c.sampler import Prediction
from accel_rl.ga3c.versions import VersionExchange
from accel_rl.graphs import Fixed, Graphs

_FEWEST_ROWS = 8


def padded_size(num_rows: int) -> int:
    """Return the next power of two, at least 8."""
    return max(_FEWEST_ROWS, 1 << (num_rows - 1).bit_length())


class Places:
    """Where arrays of at most ``most`` rows are brought on ``device``: the same memory each time.

    Args:
        most: Maximum number of rows.
        device: A GPU.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self._most = padded_size(most)
        self._device = device
        self._places: dict[str, Tensor] = {}

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Return tensors of the `padded_size` of the longest of ``arrays``, ``[n, ...]`` each.

        Rows behind an array are what earlier ones have left there, and at the start 1 or, of whole
        numbers, 0: numbers that any formula takes. The host does not wait.
        """
        size = padded_size(max(map(len, arrays.values())))
        return {name: self._put(name, array)[:size] for name, array in arrays.items()}

    def _put(self, name: str, array: NDArray[Any]) -> Tensor:
        given = torch.from_numpy(array)
        if name not in self._places:
            fill = 1 if given.is_floating_point() else 0
            shape = (self._most, *given.shape[1:])
            self._places[name] = torch.full(shape, fill, dtype=given.dtype, device=self._device)
        place = self._places[name]
        place[: len(array)].copy_(given.pin_memory(), non_blocking=True)
        return place


class GraphPredictor:
    """A `QueuedPolicy` that acts by graphs, for an agent without memory.

    Args:
        agent: Of this thread alone.
        exchange: Has its parameters, in memory of their own.
        graphs: Records them.
        device: The GPU.
        tells_probability: Whether trainers need the probabilities of actions.
        most: Maximum number of environments for which it acts at once.
    """

    def __init__(
        self,
        agent: PolicyAgent,
        exchange: VersionExchange,
        graphs: Graphs,
        device: torch.device,
        tells_probability: bool,
        most: int,
    ) -> None:
        self._exchange, self._graphs = exchange, graphs
        self._places = Places(2 * most, device)  # each may have a last observation
        (self._act,) = graphs.whole(partial(act, agent, tells_probability), kind="actions")

    @torch.no_grad()
    def __call__(self, observation: NDArray[Any], uniform: NDArray[np.float64]) -> Prediction:
        """Act with the latest parameters."""
        self._exchange.pull()
        placed = self._places.put({"observation": observation, "uniform": uniform})
        action, value, probability = self._act(
            Fixed(placed["observation"]), Fixed(placed["uniform"])
        )
        self._graphs.count("actions", is_replayed=self._act.is_replayed)
        n = len(uniform)
        values = value[: len(observation)].cpu().numpy()  # waits for the device
        told = None if probability is None else probability[:n].cpu().numpy()
        acted = action[:n].cpu().numpy()
        return Prediction(acted, values, self._exchange.version, told)


def act(
    agent: PolicyAgent, tells_probability: bool, observation: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return actions and their probabilities, ``[n]``, and values, ``[n + m]``.

    Args:
        agent: Whose network acts.
        tells_probability: Whether probabilities are wanted.
        observation: ``[n + m, ...]``.
        uniform: ``[n]`` float64 in [0, 1).
    """
    output = agent.evaluate(observation)
    logits = output.logits[: len(uniform)]
    action = sample_categorical(logits, uniform)
    return action, output.value, probability_of(action, logits) if tells_probability else None


def probability_of(action: Tensor, logits: Tensor) -> Tensor:
    """Return the probabilities of ``action``, ``[n]``, under ``logits``, ``[n, A]``."""
    return logits.softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)
