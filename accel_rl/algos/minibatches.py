"""Learning from a rollout in epochs of shuffled minibatches: settings, and the minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos.learner import LearnerConfig, check_halves, restore
from accel_rl.algos.specs import Batch, RunOptions, SamplerOptions
from accel_rl.models import Sequences
from accel_rl.options import require
from accel_rl.spaces import map_leaves


@dataclass(frozen=True, kw_only=True)
class MinibatchConfig(LearnerConfig):
    """Settings of algorithms that make several updates of each rollout.

    Raises:
        ValueError: A value is out of range.
    """

    cheaper: ClassVar[str] = "fewer epochs or a larger minibatch_size"

    epochs: int
    """Passes over each rollout."""
    minibatch_size: int
    """Steps in one update. It must divide num_envs * horizon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "at least 1", lambda value: value >= 1, "epochs", "minibatch_size")
        check_halves(self, "minibatch_size", self.minibatch_size)

    def check_run(self, run: RunOptions) -> None:
        """Check that minibatches divide the rollouts; see `check_rollout`.

        Raises:
            ValueError: They do not.
        """
        num_sequences = 0
        if run.memory is not None:
            num_sequences = run.num_learners if run.parallel.sync == "all_reduce" else 1
        self.check_rollout(run.sampler.num_envs, run.sampler.horizon, num_sequences)

    def samples_per_update(self, num_collected: int) -> int:
        """Return the samples of one update."""
        return self.minibatch_size

    def batches(self, sampler: SamplerOptions) -> dict[str, Batch]:
        """Return the batches that learners in step must be able to divide: minibatches."""
        return {"minibatch_size": Batch(self.minibatch_size, sampler.num_envs * sampler.horizon)}

    def check_rollout(self, num_envs: int, horizon: int, num_sequences: int = 0) -> None:
        """Check that minibatches divide the rollout.

        Args:
            num_envs: Environments of all learners that share updates.
            horizon: Steps of each environment.
            num_sequences: Number of environments of which a minibatch must hold a multiple, with
                all their steps, since a recurrent network learns from whole sequences: one for
                each learner in step. 0: a minibatch may hold any steps.

        Raises:
            ValueError: They do not.
        """
        size = num_envs * horizon
        if size % self.minibatch_size:
            why = f"does not divide a rollout of num_envs={num_envs} x horizon={horizon} = {size} "
            why += "steps"
        elif num_sequences and self.minibatch_size % (num_sequences * horizon):
            shares = f" for each of {num_sequences} learners" if num_sequences > 1 else ""
            why = f"is not a multiple of horizon={horizon}{shares}, and a memory learns from "
            why += "whole sequences of that length"
        else:
            return
        fits = _fitting(self.minibatch_size, size, max(1, num_sequences * horizon))
        use = f"minibatch_size={fits}, or another" if fits else "another"
        raise ValueError(
            f"minibatch_size={self.minibatch_size} {why}; use {use} num_envs or horizon"
        )


def _fitting(most: int, size: int, unit: int) -> int | None:
    """Return the largest multiple of ``unit`` that divides ``size``, up to ``most``; None: none.

    If all are larger, return the smallest.
    """
    fits = [each for each in range(unit, max(unit, min(size, most)) + 1, unit) if size % each == 0]
    return fits[-1] if fits else None


class Minibatches:
    """Divides each rollout of a learner into minibatches, in another order in each epoch.

    A recurrent network gets whole sequences: all steps of some environments.

    Args:
        config: The settings.
        num_sharing: Learners that share each update, among whom a minibatch is divided.
        seed: Seed of the order.
        device: Device of the rollouts.
    """

    def __init__(
        self, config: MinibatchConfig, num_sharing: int, seed: int, device: torch.device
    ) -> None:
        self._config = config
        self._num_sharing = num_sharing
        self._shuffling = torch.Generator(device).manual_seed(seed)

    def get_state(self) -> dict[str, Any]:
        """Return what is added to a learner's state."""
        return {"shuffling": self._shuffling.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a learner's state. A state without a generator changes nothing."""
        if "shuffling" in state:
            restore(self._shuffling, state["shuffling"])

    def of(self, batch: RolloutTensors) -> Iterator[tuple[Tensor, Sequences | None]]:
        """Yield the minibatches of all epochs of a rollout.

        Args:
            batch: The rollout.

        Returns:
            Places ``[N]`` int64 of the steps among all steps, ``[T * B]``, and their order for a
            network with a memory.
        """
        config, num_sharing = self._config, self._num_sharing
        T, B = batch.reward.shape
        sequences = batch.sequences(slice(0, T))
        if sequences is not None:
            config.check_rollout(B * num_sharing, T, num_sharing)
        length = 1 if sequences is None else T  # steps that stay together
        device = batch.reward.device
        first = B * torch.arange(length, device=device).unsqueeze(1)
        for _ in range(config.epochs):
            order = torch.randperm(T * B // length, generator=self._shuffling, device=device)
            for chosen in torch.split(order, config.minibatch_size // num_sharing // length):
                if sequences is None:
                    yield chosen, None
                else:
                    yield (first + chosen).flatten(), sequences.of(chosen)


def all_steps(tree: Any) -> Any:
    """Return ``[T * B, ...]`` of each tensor ``[T, B, ...]`` of observations."""
    return map_leaves(_steps, tree)


def choose(whole: Any, index: Tensor, sequences: Sequences | None) -> Any:
    """Return the steps ``index`` ``[N]`` of all steps of a rollout, with their ``sequences``.

    ``whole`` and the result are NamedTuples that have a field ``sequences``.
    """

    def rows(field: Any) -> Any:
        return None if field is None else map_leaves(lambda each: _rows(each, index), field)

    return type(whole)(*map(rows, whole))._replace(sequences=sequences)


def _steps(observation: Tensor) -> Tensor:
    flat = observation.flatten(0, 1)
    if _has_channels_first(flat):
        # As convolutions want them, once instead of once for every minibatch.
        return flat.contiguous(memory_format=torch.channels_last)
    return flat


def _rows(observation: Tensor, index: Tensor) -> Tensor:
    """``observation[index]``, images likewise channels last; it takes half the time on the CPU."""
    if not _has_channels_first(observation):
        return observation[index]
    return observation.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)


def _has_channels_first(observation: Tensor) -> bool:
    return observation.ndim == 4 and observation.shape[1] < observation.shape[3]
