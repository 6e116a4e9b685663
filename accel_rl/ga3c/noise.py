"""Uniform numbers by environment and step, for environments that do not step together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accel_rl.samplers.block import NOISE_STREAM

_BLOCK = 64


class EnvNoise:
    """For each environment a stream of its own: its ``k``-th action has the ``k``-th number of it.

    So actions do not depend on who steps with whom. Streams are disjoint over seeds, environments
    and ``generation``.
    """

    def __init__(self, seed: int, num_envs: int) -> None:
        self._seed = seed
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._block = np.zeros((num_envs, _BLOCK))
        self._used = np.full(num_envs, _BLOCK)

    def begin(self, columns: slice, generation: int) -> None:
        """Environments ``columns`` begin their streams of this generation."""
        for b in range(columns.start, columns.stop):
            key = (NOISE_STREAM, b, generation)
            self._rngs[b] = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key))
        self._used[columns] = _BLOCK

    def take(self, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """The next number in [0, 1) of each of ``columns``, ``[n]``."""
        for b in columns[self._used[columns] == _BLOCK].tolist():
            rng = self._rngs[b]
            assert rng is not None, "begin first"
            rng.random(out=self._block[b])
            self._used[b] = 0
        used = self._used[columns]
        self._used[columns] = used + 1
        uniform: NDArray[np.float64] = self._block[columns, used]
        return uniform
