"""The policy of GA3C's predictors, and copies of arrays to the device for GA3C's threads.

The number of samples differs each time. A CUDA graph has one shape and reads the same memory each
time, so for graphs batches are filled up to a few sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.agents import PolicyAgent, sample_categorical
from accel_rl.ga3c.sampler import Prediction
from accel_rl.ga3c.versions import VersionSync
from accel_rl.graphs import Fixed, Graphs

Put = Callable[[Mapping[str, NDArray[Any]]], dict[str, Tensor]]
"""Brings arrays to a device."""

_FEWEST_ROWS = 8


class Predictor:
    """A `QueuedPolicy` that acts with the latest parameters."""

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
        self._graphs = graphs
        if graphs is not None:
            self._put = Places(2 * most, device).put  # each may have a last observation
            self._act = graphs.recorded(self._act, kind="actions")

    @torch.no_grad()
    def __call__(self, observation: NDArray[Any], noise: NDArray[np.float64]) -> Prediction:
        """Act for ``n`` environments; see `QueuedPolicy`."""
        self._sync.pull()
        arrays = {"observation": observation, "noise": noise}
        inputs: list[Any] = list(self._put(arrays).values())
        if self._graphs is not None:
            inputs = [Fixed(each) for each in inputs]
        action, value, probability = self._act(*inputs)
        n = len(noise)
        value = value[: len(observation)].cpu().numpy()  # waits for the device
        told = None if probability is None else probability[:n].cpu().numpy()
        return Prediction(action[:n].cpu().numpy(), value, self._sync.version, told)


def act(
    agent: PolicyAgent, tells_probability: bool, observation: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return actions ``[n]``, values ``[n + m]``, and probabilities ``[n]``.

    ``observation`` is ``[n + m, ...]``, and ``noise`` ``[n]`` in [0, 1).
    """
    logits, value = agent.model(observation)
    logits = logits[: len(noise)]
    action = sample_categorical(logits, noise)
    probability = None
    if tells_probability:
        probability = logits.softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)
    return action, value, probability


def padded_size(num_rows: int) -> int:
    """Return the next power of two, at least 8."""
    return max(_FEWEST_ROWS, 1 << (num_rows - 1).bit_length())


class Places:
    """Memory on ``device`` for arrays of at most ``most`` rows, the same each time."""

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


def to_device(device: torch.device, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return ``arrays`` on ``device``: on the CPU as they are, else copies from pinned memory.

    The device may read the copies while the host goes on.
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device.type == "cpu":
        return tensors
    return {name: x.pin_memory().to(device, non_blocking=True) for name, x in tensors.items()}
